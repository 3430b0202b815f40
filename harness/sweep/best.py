"""What a sweep is for: its best settings as an ordinary config, `python -m harness run --config best.yaml`.

The file holds what the user typed and what the best trial drew, and nothing else: method and card bring the rest, as
they did for the trial. `evaluate` and `validation` stay out, so that the final run trains on all train rows and looks
at the test rows once.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.config import Layer, RunConfig, merge
from harness.files import write_text
from harness.printable import printable
from harness.sweep.space import Value, from_json, settings_of
from harness.yaml import format_yaml

BEST = "best.yaml"
_OF_TRIALS = ("evaluate", "validation")


def write_best(folder: Path, facts: Mapping[str, Any], params: Mapping[str, Value], values: Sequence[float]) -> Path:
    """Writes best.yaml for one trial.

    Args:
        folder: Of the study.
        facts: `study`, `method`; `dataset` and `encoder` (or None) as the user gave them; `settings`, nested settings
            of all trials, or a list of such in the order they were typed; `space`, the ranges by name or their JSON;
            `objectives`; `sampler`, words; `trials`, how many have ended; `trial`, the number of this one.
        params: What the trial drew, by range.
        values: Its objectives on held-out rows.
    """
    return _write(folder / BEST, "Best trial", facts, params, values)


def write_front(
    folder: Path, facts: Mapping[str, Any], front: Sequence[tuple[int, Mapping[str, Value], Sequence[float]]]
) -> list[Path]:
    """Writes pareto-<number>.yaml for every trial of a front, and best.yaml for the one with the best first objective.

    Files of trials that another one has beaten since are removed.

    Args:
        folder: Of the study.
        facts: As for `write_best`, without `trial`.
        front: Number, drawn values and objectives of every trial that no other beats.
    """
    written = []
    for number, params, values in front:
        path = folder / f"pareto-{number}.yaml"
        written.append(_write(path, "On the Pareto front", {**facts, "trial": number}, params, values))
    for stale in set(folder.glob("pareto-*.yaml")) - set(written):
        stale.unlink(missing_ok=True)
    if front:
        number, params, values = max(front, key=lambda one: (tuple(one[2]), -one[0]))
        written.insert(0, write_best(folder, {**facts, "trial": number}, params, values))
    return written


def best_settings(facts: Mapping[str, Any], params: Mapping[str, Value]) -> dict[str, Any]:
    """The config of a final run, nested; facts and params as for `write_best`."""
    typed = facts.get("settings") or []
    typed = [typed] if isinstance(typed, Mapping) else typed
    layers = [{"encoder": facts["encoder"]}] if facts.get("encoder") else []
    layers = [*map(dict, typed), *layers, settings_of(params, from_json(facts["space"]))]
    merged, _ = merge(Layer("", _knobs_apart(values)) for values in layers)
    kept = {key: value for key, value in merged.items() if key not in (*_OF_TRIALS, "params")}
    knobs = {"params": merged["params"]} if merged.get("params") else {}
    return {"method": facts["method"], "dataset": str(facts["dataset"]), **kept, **knobs}


def _knobs_apart(values: dict[str, Any]) -> dict[str, Any]:
    """Settings with every knob of the method under `params`, so that one written in two ways is one."""
    own = {key: value for key, value in values.items() if key not in RunConfig.model_fields}
    rest = {key: value for key, value in values.items() if key not in own}
    return {**rest, "params": {**rest.get("params", {}), **own}} if own else rest


def _write(
    path: Path, what: str, facts: Mapping[str, Any], params: Mapping[str, Value], values: Sequence[float]
) -> Path:
    scores = ", ".join(f"{metric} {value:.4f}" for metric, value in zip(facts["objectives"], values, strict=True))
    comments = [
        f"{what} of the study {facts['study']}: trial {facts['trial']}, {facts['trials']} trials ended.",
        f"On held-out train rows, in percent: {scores}.",
        "That is its best epoch's value, chosen by the first objective; a run on all rows reports its last epoch.",
        f"Sampler: {facts['sampler']}.",
        f"Train on all rows and look at the test rows once: python -m harness run --config {path.name}",
    ]
    text = "".join(f"# {_one_line(comment)}\n" for comment in comments)
    write_text(path, f"{text}\n{format_yaml(best_settings(facts, params))}")
    return path


def _one_line(text: str) -> str:
    """Text that cannot leave its comment."""
    return " ".join(printable(text).split())
