"""`harness sweep`."""

import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness import DEFAULT_DATASET, DEFAULT_METHOD
from harness.cli.options import Encoder, Json, Override, Track, Workers
from harness.cli.show import print_json, print_table, say, short_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from signal import Signals

    from harness.experiments.sweep import Plan, Request, Timing
    from harness.experiments.sweep.trials import Slot

_TOP = 5


Method = Annotated[str, typer.Option(help="Method; `harness ls methods`.")]
Trials = Annotated[int, typer.Option(help="Trials in all, those of earlier sweeps of this study included.")]
Over = Annotated[
    str | None,
    typer.Option(
        metavar="A,B=LOW:HIGH,C=[X,Y]",
        help="What is searched: ranges that the method declares, or your own (`:log`, `:step=S`). Default: those of "
        "lambda, beta, eta, tau, refresh that the method has.",
    ),
]
Objective = Annotated[
    str, typer.Option(metavar="METRIC[,METRIC]", help="Metric to maximise on validation rows; two for a Pareto front.")
]
StudyName = Annotated[str | None, typer.Option(metavar="NAME", help="Name of the study. Default: METHOD-DATASET.")]
Storage = Annotated[
    str | None, typer.Option(metavar="URL", help="Database for several machines: postgresql://USER@HOST/NAME.")
]
Pruner = Annotated[str, typer.Option(help="Who ends hopeless trials early: median, hyperband or none; one objective.")]
Recover = Annotated[
    bool, typer.Option("--recover", help="Rebuild a damaged study.db from the run folders, then go on.")
]
Beat = Annotated[int, typer.Option(hidden=True, min=1, help="Seconds between two signs of life of a trial.")]
Grace = Annotated[int, typer.Option(hidden=True, min=1, help="Seconds of silence after which a trial is given away.")]


def sweep(
    method: Method = DEFAULT_METHOD,
    dataset: Annotated[str, typer.Option(help="Dataset name (`harness ls datasets`) or folder.")] = DEFAULT_DATASET,
    encoder: Encoder = None,
    trials: Trials = 20,
    over: Over = None,
    objective: Objective = "P@1",
    override: Override = None,
    seed: Annotated[int, typer.Option(min=0, help="Of all trials, of the validation rows and of the sampler.")] = 0,
    workers: Workers = 1,
    study: StudyName = None,
    storage: Storage = None,
    sampler: Annotated[str, typer.Option(help="How trials are chosen: tpe or random.")] = "tpe",
    pruner: Pruner = "median",
    max_retry: Annotated[int, typer.Option(help="How often a trial whose worker died is tried again.")] = 2,
    track: Track = "mlflow",
    out: Annotated[Path | None, typer.Option(help="Folder for studies. Default: workspace/studies.")] = None,
    recover: Recover = False,
    as_json: Json = False,
    heartbeat: Beat = 60,
    grace: Grace = 180,
) -> None:
    """Search for good settings with Optuna on validation rows, taken from train; test rows are never looked at.

    Give the same command again to go on: trials that were interrupted continue from their checkpoints.
    Exit code 1 if no trial came to its end.

    Examples:
        harness sweep --trials 20                                 (unidec on the default dataset)
        harness sweep --trials 20 --over lambda,beta,eta,tau --workers 2
        harness sweep --method dexml --trials 30 --over lr_encoder=1e-5:1e-3:log,epochs=5:20
        harness sweep --objective P@1,PSP@5 --trials 40           (head against tail: a Pareto front)
        harness sweep --trials 50                                 (again, with more trials: goes on up to 50)
        harness sweep --trials 100 --storage postgresql://me@db/studies    (on several machines, which share the trials)
        optuna-dashboard sqlite:///workspace/studies/unidec-lf-pydocstitles/study.db     (look at it while it runs)
    """
    from harness.experiments.sweep import Request, Timing

    given = tuple(override or ())
    request = Request(
        method, dataset, trials, encoder, over, objective, given, seed, study, storage, sampler, pruner, max_retry,
        track, out,
    )  # fmt: skip
    try:
        code = _sweep(request, Timing(heartbeat, grace), workers, recover, as_json)
    except KeyboardInterrupt:
        say("stopped", err=True)
        raise typer.Exit(130) from None
    if code:
        raise typer.Exit(code)


def _sweep(request: "Request", timing: "Timing", workers: int, recover: bool, as_json: bool) -> int:
    """Plans, runs and shows; returns the exit code."""
    from harness.experiments.sweep.run import summary
    from harness.io.progress import clock

    began = time.monotonic()
    done = run_sweep(request, timing, workers, recover)
    if as_json:
        print_json(done.as_dict())
    else:
        _show(done.plan, done.slots)
    say(f"{summary(done.slots)}; {clock(time.monotonic() - began)}", err=as_json)
    if done.signal is not None:
        say(f"stopped by {done.signal.name}; the same command goes on", err=True)
        return 128 + done.signal
    return 0 if any(slot.state == "COMPLETE" for slot in done.slots) else 1


@dataclass(frozen=True)
class Swept:
    """A sweep that has ended, or was cut short by a signal."""

    plan: "Plan"
    slots: "list[Slot]"
    signal: "Signals | None"
    as_dict: "Callable[[], dict[str, Any]]"
    """For programs."""


def run_sweep(request: "Request", timing: "Timing", workers: int, recover: bool = False) -> Swept:
    """Plan a sweep and work on it until every trial has ended or a signal arrives."""
    from harness.experiments.sweep.plan import make_plan
    from harness.experiments.sweep.results import Results
    from harness.experiments.sweep.run import work_on
    from harness.experiments.sweep.study import join

    plan = make_plan(request, timing)
    if recover:
        _recover(plan)
    study, group = join(plan)
    _introduce(plan)
    slots, signal = work_on(plan, study, group, workers)
    return Swept(plan, slots, signal, lambda: Results(plan, study, group).as_dict())


def _recover(plan: "Plan") -> None:
    from harness.experiments.sweep.runs import recover

    aside, count = recover(plan)
    kept = f"; the old one is {short_path(aside)}" if aside else ""
    say(f"rebuilt the study's database with {count} ended trials from {short_path(plan.runs)}{kept}", err=True)


def _introduce(plan: "Plan") -> None:
    """What is about to happen, in a few lines."""
    from harness.experiments.sweep.space import describe

    say(f"study {plan.study}: {', '.join(plan.objectives)} of {plan.method} on {plan.dataset}", err=True)
    for line in describe(plan.space):
        say(f"  {line}", err=True)
    if plan.pruner != "none" and not plan.pruning:
        say("  no pruning: with two objectives there is no order to judge a trial by", err=True)


def _show(plan: "Plan", slots: "list[Slot]") -> None:
    """The best trials, and what to do with them."""
    from harness.experiments.sweep.run import format_value
    from harness.experiments.sweep.trials import best_slots

    best = best_slots(slots)
    two = len(plan.objectives) > 1
    rows = [slot.as_dict() for slot in (best if two else best[:_TOP])]
    if rows:
        columns = ["trial", *plan.objectives, *plan.space, "epochs", "seconds"]
        cells = [
            [
                str(row["trial"]),
                *(f"{value:.2f}" for value in row["values"]),
                *(format_value(row["params"][name]) for name in plan.space),
                str(row["epochs"] or ""),
                "" if row["seconds"] is None else f"{row['seconds']:.1f}",  # a recovered trial has no clock
            ]
            for row in rows
        ]
        what = f"{len(rows)} trials that no other beats" if two else f"best {len(rows)} trials"
        print_table(f"{plan.study}: {what}, % on validation rows", columns, cells, numeric=columns)
    for row in (slot.as_dict() for slot in slots):
        if row["state"] == "FAIL":
            say(f"failed: trial {row['trial']}: {row['reason']}")
    say(f"study       {short_path(plan.folder)}   (study.json, trials.csv, runs/)")
    if rows:
        say(f"plots       {short_path(plan.folder / 'plots')}")
        names = "pareto-<trial>.yaml, best.yaml: best first objective" if two else "best.yaml"
        say(f"settings    {short_path(plan.folder)}/{names}")
        config = shlex.quote(short_path(plan.folder / "best.yaml"))
        say(f"run it      python -m harness run --config {config}   (all train rows, test rows once)")
