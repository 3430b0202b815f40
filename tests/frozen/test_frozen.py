"""What every command gives, compared with what it gave when the JSON files beside this module were written.

The tests use the command line and `harness.run.resolve_config`, so that modules may move and files change their format
while behaviour stays. Figures are compared with a relative tolerance, because the last digits differ between
processors; what differs from run to run (times, memory, paths, ids, versions) is replaced by the name of its type.

After an intended change, write the files anew and look at the difference:

    OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 python -m tests.frozen.test_frozen [PART ...]
"""

import contextlib
import csv
import io
import json
import math
import os
import re
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import harness.run
from harness.experiments.sweep.results import Results
from tests.support.commands import call

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TOLERANCE = 1e-3
"""Relative, of losses and scores: the last digits differ between processors, and training carries them on."""
POINTS = 2.0
"""Absolute, of a metric in percent of a small run: two labels that all but tie change places, on one row of sixty."""
DATA = "synthetic:train=240,test=60,labels=90"
CARDS = ("lf-pydocstitles", "lf-amazontitles-131k", "lf-wikiseealso-320k")
TABLES = ("thesis-2.1", "thesis-2.2", "thesis-2.5", "preprint-6", "comparison", "benchmark", "claims")
KINDS = ("methods", "datasets", "encoders", "losses", "augmentations", "metrics", "backends", "published", "tables")

QUIET = ["--track", "none", "--set", "tracking.system_seconds=0"]
SHORT = ["batch_size=60", "epochs=2", "warmup_epochs=0", "lr_encoder=1e-3"]
MINING = ["random_epochs=1", "refresh_epochs=1"]
RUNS: dict[str, list[str]] = {
    **{
        name: [*SHORT, *MINING]
        for name in (
            *("ance", "depsl", "depsl-v1", "dexml", "dexml-hnm", "dexml-inbatch", "dexml-topk", "dpr"),
            *("unidec", "unidec-thesis", "unidec-v1"),
        )
    },
    "ngame": [*SHORT, "refresh_epochs=1", "classifier_epochs=2", "classifier_warmup_epochs=0"],
    "renee": [*SHORT, "warm_epochs=1"],
    "parabel": [],
    "tfidf-knn": [],
    "zeroshot": [],
    "unidec augment=gandalf": [*SHORT, *MINING, "augment=gandalf"],
    "depsl validation.size=0.2": [*SHORT, *MINING, "validation.size=0.2"],
}
"""Small trainings, by method and what is special about them."""

VOLATILE = re.compile(
    r"^(time|seconds)/|(^|[_/ ])"
    r"(seconds|time|timings|started|ended|date|gib|percent|identity|environment|git|harness|optuna"
    r"|run|runs|run_id|folder|path|out|url|storage|packages|host|pid|rows_per_second|commit|cell|sha256)$"
)
"""Names of what is different in every run, or on every machine."""

PASSING = {
    r"\d{8}-\d{6}-[a-z0-9.-]+-[0-9a-f]{4}\b": "RUN",
    r"harness \d+\.\d+\.\d+": "harness VERSION",
}
"""The same within texts."""


def normal(value: Any, name: str = "") -> Any:
    """The value without what is volatile."""
    if VOLATILE.search(name) and value is not None:
        return type(value).__name__
    if isinstance(value, dict):
        return {key: normal(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [normal(inner) for inner in value]
    if isinstance(value, str):
        text = value.replace(os.environ["HARNESS_HOME"], "HOME").replace(str(ROOT), "ROOT")
        for pattern, name_of_it in PASSING.items():
            text = re.sub(pattern, name_of_it, text)
        return text
    return value


def differences(was: Any, now: Any, place: str = "") -> Iterator[str]:
    """One line for each value that is not as it was."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in [*was, *(key for key in now if key not in was)]:
            if key not in was or key not in now:
                yield f"{place}/{key}: {'gone' if key in was else 'new'}"
            else:
                yield from differences(was[key], now[key], f"{place}/{key}")
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for number, (one, other) in enumerate(zip(was, now, strict=True)):
            yield from differences(one, other, f"{place}/{number}")
    elif not same(was, now, POINTS if "@" in place and was not in (0, 100) else 1e-9):
        yield f"{place}: was {str(was)[:200]}, is {str(now)[:200]}"


def same(was: Any, now: Any, absolute: float) -> bool:
    if isinstance(was, float) or isinstance(now, float):
        numbers = all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in (was, now))
        return numbers and math.isclose(was, now, rel_tol=TOLERANCE, abs_tol=absolute)
    return type(was) is type(now) and was == now


def printed(*words: str, code: int = 0) -> str:
    """What a command prints on standard output."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()) as err:
        assert call(*words) == code, f"{words}: {err.getvalue()}"
    return out.getvalue()


def answer(*words: str, code: int = 0) -> Any:
    """What a command prints with `--json`, without what is volatile."""
    return normal(json.loads(printed(*words, "--json", code=code)))


def train(method: str, *settings: str, name: str = DATA) -> dict[str, Any]:
    """The record of a small run, as printed."""
    given = [word for setting in ("encoder=tiny", *settings) for word in ("--set", setting)]
    record: dict[str, Any] = json.loads(printed("run", "--method", method, "--dataset", name, *QUIET, *given, "--json"))
    return record


# -- what is frozen, a function for each part


def resolved_row(name: str) -> dict[str, Any] | None:
    """Settings of a published row, taken from `harness run` before it begins, as no command prints them.

    None for a row of a method that the harness does not have.
    """
    found: list[Any] = []
    resolve = harness.run.resolve_config

    class Enough(Exception):
        pass

    def resolve_and_stop(*arguments: Any, **named: Any) -> None:
        found.append(resolve(*arguments, **named)[0])
        raise Enough

    with (
        mock.patch("harness.run.resolve_config", resolve_and_stop),
        contextlib.suppress(Enough),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        call("run", "--published", name, "--track", "none")
    return flat(found[0].model_dump(mode="json")) if found else None


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """One level, so that a changed setting is one line of a diff."""
    lines: dict[str, Any] = {}
    for key, value in sorted(values.items()):
        lines |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return lines


def apart(settings: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """Only what is not as in `base`, to keep the file small."""
    missing = {f"{key} (missing)": True for key in base if key not in settings}
    return {key: value for key, value in settings.items() if key not in base or base[key] != value} | missing


def settings() -> Any:
    """Settings of every method on the first dataset, what the others change, and those of every 14th published row."""
    names = [row["name"] for row in answer("ls", "methods")]
    rows = [row["row"] for row in answer("ls", "published")]

    def own(method: str, dataset: str) -> dict[str, Any]:
        return flat(harness.run.resolve_config(method, dataset, [])[0].model_dump(mode="json"))

    base = {name: own(name, CARDS[0]) for name in names}
    cards = {f"{name} on {card}": apart(own(name, card), base[name]) for name in names for card in CARDS[1:]}
    found = {name: resolved_row(name) for name in rows[::14]}
    return {
        "methods": base,
        "other datasets": cards,
        "published rows": {
            name: row and {"method": row["method"]} | apart(row, base[row["method"]]) for name, row in found.items()
        },
    }


def runs() -> Any:
    """Records, losses, events and run folders of small trainings."""
    found = {name: one_run(name.split()[0], wanted) for name, wanted in RUNS.items()}
    return found | {"parabel": without_figures(found["parabel"])}


def without_figures(value: Any) -> Any:
    """The same with the word `float` for every figure: Parabel's library takes no seed."""
    if isinstance(value, dict):
        return {key: without_figures(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_figures(inner) for inner in value]
    return "float" if isinstance(value, float) else value


def one_run(method: str, wanted: list[str]) -> Any:
    record = train(method, *wanted)
    folder = Path(os.environ["HARNESS_HOME"]) / "runs" / record["run_id"]
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    metrics = [event for event in events if event["event"] == "metrics"]
    config = json.loads((folder / "config.json").read_text())
    shown = ("metrics", "views", "contributions", "training", "search", "augmentation", "warnings", "status", "curves")
    return {
        "record": normal({key: record[key] for key in shown if key in record}),
        "record keys": sorted(record),
        "record is what is stored": sorted(json.loads((folder / "record.json").read_text())) == sorted(record),
        "config keys": {key: sorted(value) for key, value in config.items()},
        "files": sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()),
        "events": [event["event"] for event in events],
        "values": [{"step": event["step"]} | normal(event["values"]) for event in metrics],
    }


def dataset() -> Any:
    """Generated data: the record of a run names it, `data` prepares and checks it."""
    record = train("zeroshot")
    return {
        "record": normal(record["dataset"]),
        "prepare": answer("data", "prepare", DATA),
        "check": answer("data", "check", DATA, "--all"),
        "ls": [row["name"] for row in answer("data", "ls")],
    }


def lists() -> Any:
    """Every list, and what is checked without data; of the machine's state only what is looked at."""
    lists = {kind: answer("ls", kind) for kind in KINDS if kind != "published"}
    published = [" ".join(str(value) for value in row.values()) for row in answer("ls", "published")]
    for row in lists["datasets"]:
        del row["state"]  # what can be built depends on the machine
    doctor = sorted({key for row in answer("doctor") for key in row})
    return lists | {"published": published, "validate": answer("validate"), "doctor": doctor}


def plans() -> Any:
    """What is foreseen for each method on a card's dataset, and in full for one."""
    where = ("--dataset", "lf-amazontitles-131k", "--device-memory", "24GB")
    every = json.loads(printed("plan", "--all", "--encoder", "static", *where, "--json"))
    short = {
        f"{one['method']} on {one['dataset']}": [one["fits"], one["device_bytes"], one["host_bytes"]] for one in every
    }
    return {"unidec": answer("plan", "--method", "unidec", *where), "all": short}


def use() -> Any:
    """Commands that take finished runs."""
    for method in ("depsl", "unidec"):
        train(method, *RUNS[method])
    home = Path(os.environ["HARNESS_HOME"])
    added = home / "labels.txt"
    added.write_text("mozu faqo\nzigo ruca muci\n")
    predict = ["predict", "--run", "last", "--text", "mozu faqo", "--text", "zigo ruca", "-k", "3", "--json"]
    exported = answer("export", "--run", "last", "--out", str(home / "weights"), "--format", "safetensors")

    def lines(*more: str) -> Any:
        return [normal(json.loads(line)) for line in printed(*predict, *more).splitlines()]

    return {
        "predict": lines(),
        "predict by text alone": lines("--scorer", "de"),
        "predict with new labels": lines("--add-labels", str(added)),
        "ls runs": answer("ls", "runs"),
        "compare": answer("report", "--compare", "unidec", "depsl", "--resamples", "200"),
        "report": answer("report"),
        "table": answer("report", "--table", "comparison"),
        "export": exported,
        "exported files": sorted(path.name for path in (home / "weights").rglob("*")),
        "reap": answer("runs", "reap"),
    }


def bench() -> Any:
    """Two cells, run and then found; each is a process of its own."""
    words = ["bench", "--methods", "tfidf-knn,zeroshot", "--datasets", DATA, "--encoder", "tiny", "--track", "none"]
    found = {"dry run": answer(*words, "--dry-run"), "first": answer(*words), "second": answer(*words)}
    return found | {"tune": answer("tune", "benchmark", "--rows", "renee", "--dry-run")}


def sweep() -> Any:
    """Two trials in a process of their own, and the same command again, which finds them."""
    given = [word for setting in (*SHORT, *MINING, "tracking.system_seconds=0") for word in ("--set", setting)]
    words = ["sweep", "--method", "depsl", "--dataset", DATA, "--encoder", "tiny", "--trials", "2"]
    words += ["--over", "beta,eta", "--sampler", "random", "--track", "none", *given]
    with mock.patch.object(Results, "draw", return_value=[]):  # takes seconds, and no command prints it
        return {"first": answer(*words), "second": answer(*words)}


def golden() -> Any:
    """Tables of a few records that were made by hand, in every form."""
    where = ("--runs", str(ROOT / "tests" / "golden" / "runs"))
    forms = {form: printed("report", "--table", "thesis-2.5", "--format", form, *where) for form in ("md", "tex")}
    return forms | {
        "comparison": answer("report", "--table", "comparison", *where),
        "report": [{key: row[key] for key in row if key != "settings"} for row in answer("report", *where)],
    }


def tables() -> Any:
    """Cells of tables made from the committed records, a line for each row."""
    return {name: [",".join(map(rounded, row)) for row in table_rows(name)] for name in TABLES}


def table_rows(name: str) -> list[list[str]]:
    text = printed("report", "--table", name, "--format", "csv", "--runs", str(ROOT / "reports" / "results"))
    return list(csv.reader(io.StringIO(text)))


def rounded(cell: str) -> str:
    return f"{float(cell):.2f}" if re.fullmatch(r"-?\d+\.\d+", cell) else cell


def records() -> Any:
    """How many committed records there are of each kind, and the means of two metrics for all settings."""
    rows = committed_records()
    by_run = {row["run_id"]: row for row in rows}.values()
    groups: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        groups[f"{row['dataset']} {row['method']} {row['encoder']}"][f"{row['settings']} {row['scorer']}"].append(row)
    return {
        "rows": len(rows),
        **{
            key: dict(sorted(Counter(str(row[key]) for row in by_run).items())) for key in ("dataset", "method", "seed")
        },
        "means": {name: means(groups[name]) for name in sorted(groups)},
    }


def means(by_settings: dict[str, list[dict[str, Any]]]) -> list[str]:
    """A line for every setting: those that differ within the group, seeds, and mean P@1 and PSP@5."""
    known = [json.loads(rows[0]["settings"]) for rows in by_settings.values()]
    keys = sorted({key for one in known for key in one if any(other.get(key) != one[key] for other in known)})
    lines = []
    for own, rows in zip(known, by_settings.values(), strict=True):
        varied = " ".join(f"{key.removeprefix('params.')}={own[key]}" for key in keys if key in own)
        seeds = ",".join(str(seed) for seed in sorted(row["seed"] for row in rows))
        figures = " ".join(f"{name} {sum(row[name] for row in rows) / len(rows):.3f}" for name in ("P@1", "PSP@5"))
        lines.append(f"{rows[0]['scorer']} seeds {seeds}: {figures}; {varied}")
    return sorted(lines)


def committed_records() -> list[dict[str, Any]]:
    """Each committed run and way of scoring, read by the command that reports them."""
    rows: list[dict[str, Any]] = json.loads(printed("report", "--json", "--runs", str(ROOT / "reports" / "results")))
    return rows


PARTS: dict[str, Callable[[], Any]] = {
    part.__name__: part for part in (settings, runs, dataset, lists, plans, use, bench, sweep, golden, tables, records)
}


@pytest.mark.usefixtures("one_thread", "mlflow_store")
@pytest.mark.parametrize("name", PARTS)
def test_as_it_was(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(ROOT)
    was = json.loads((HERE / f"{name}.json").read_text())
    found = list(differences(was, json.loads(json.dumps(PARTS[name]()))))
    assert not found, "\n".join([f"{len(found)} differences", *found[:40]])


def test_a_changed_value_is_seen() -> None:
    """Every file: what stands last is changed."""
    for name in PARTS:
        was = json.loads((HERE / f"{name}.json").read_text())
        assert not list(differences(was, was))
        assert list(differences(was, changed(was)))
    assert list(differences({"a": [1.0]}, {"a": [1.01]}))
    assert not list(differences({"a": [1.0]}, {"a": [1.00001]}))
    assert list(differences({"a": 1}, {"a": True}))
    assert list(differences({"a": None}, {}))
    assert list(differences({}, {"a": None}))
    assert list(differences([1], [1, 2]))


def changed(value: Any) -> Any:
    """The same with another last leaf."""
    if isinstance(value, dict) and value:
        *_, last = value
        return value | {last: changed(value[last])}
    if isinstance(value, list) and value:
        return [*value[:-1], changed(value[-1])]
    return value * 1.05 + 2.5 if isinstance(value, float) else f"not {value}"


def write(names: list[str]) -> None:
    """Writes the files anew, each part from a workspace of its own."""
    torch.set_num_threads(1)
    os.environ["COLUMNS"] = "200"
    os.chdir(ROOT)
    for name in names or PARTS:
        with tempfile.TemporaryDirectory() as home:
            os.environ["HARNESS_HOME"] = home
            text = json.dumps(PARTS[name](), indent=1, ensure_ascii=False)
        (HERE / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    write(sys.argv[1:])
