"""`harness sweep`."""

import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness import DEFAULT_DATASET, DEFAULT_METHOD
from harness.cli.show import print_json, print_table, say, short_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from signal import Signals

    from harness.sweep import Plan, Request, Timing
    from harness.sweep.queue import Slot

EXAMPLES = """
Examples:

harness sweep --trials 20                                       (unidec on the embedded data, the papers' knobs)

harness sweep --trials 20 --over lambda,beta,eta,tau --workers 2

harness sweep --method dexml --trials 30 --over lr_encoder=1e-5:1e-3:log,epochs=5:20

harness sweep --objective P@1,PSP@5 --trials 40                 (head against tail: a Pareto front)

harness sweep --trials 50                                       (again, with more trials: goes on up to 50)

harness sweep --trials 100 --storage postgresql://me@db/studies (the same on several machines: they share the trials)

optuna-dashboard sqlite:///workspace/studies/unidec-lf-pydocstitles/study.db     (look at it while it runs)
"""
_TOP = 5


Method = Annotated[str, typer.Option(help="Method; `harness ls methods`.")]
DatasetName = Annotated[str, typer.Option(help="Dataset name (`harness ls datasets`) or folder.")]
Encoder = Annotated[str | None, typer.Option(help="Encoder name (`harness ls encoders`) or model folder.")]
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
    str, typer.Option(metavar="METRIC[,METRIC]", help="What counts, on held-out train rows; two for a Pareto front.")
]
Override = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of `run` for all trials, repeatable.")
]
Seed = Annotated[int, typer.Option(min=0, help="Of all trials, of the held-out rows and of the sampler.")]
Workers = Annotated[int, typer.Option(min=1, help="Trials side by side; they share the cores.")]
StudyName = Annotated[str | None, typer.Option(metavar="NAME", help="Name of the study. Default: METHOD-DATASET.")]
Storage = Annotated[
    str | None, typer.Option(metavar="URL", help="Database for several machines: postgresql://USER@HOST/NAME.")
]
Sampler = Annotated[str, typer.Option(help="Who proposes points: tpe or random.")]
Pruner = Annotated[str, typer.Option(help="Who ends hopeless trials early: median, hyperband or none; one objective.")]
MaxRetry = Annotated[int, typer.Option(help="How often a trial whose worker died is tried again.")]
Track = Annotated[str, typer.Option(help="Where else to log: mlflow or none.")]
Out = Annotated[Path | None, typer.Option(help="Folder for studies. Default: workspace/studies.")]
Recover = Annotated[
    bool, typer.Option("--recover", help="Rebuild a damaged study.db from the run folders, then go on.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the study as JSON.")]
Beat = Annotated[int, typer.Option(hidden=True, min=1, help="Seconds between two signs of life of a trial.")]
Grace = Annotated[int, typer.Option(hidden=True, min=1, help="Seconds of silence after which a trial is given away.")]


def sweep(
    method: Method = DEFAULT_METHOD,
    dataset: DatasetName = DEFAULT_DATASET,
    encoder: Encoder = None,
    trials: Trials = 20,
    over: Over = None,
    objective: Objective = "P@1",
    override: Override = None,
    seed: Seed = 0,
    workers: Workers = 1,
    study: StudyName = None,
    storage: Storage = None,
    sampler: Sampler = "tpe",
    pruner: Pruner = "median",
    max_retry: MaxRetry = 2,
    track: Track = "mlflow",
    out: Out = None,
    recover: Recover = False,
    as_json: Json = False,
    heartbeat: Beat = 60,
    grace: Grace = 180,
) -> None:
    """Search for good settings with Optuna, on held-out train rows; test rows are never looked at.

    Give the same command again to go on: trials that were interrupted continue from their checkpoints.
    Exit code 1 if no trial came to its end.
    """
    from harness.sweep import Request, Timing

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


sweep.__doc__ = f"{sweep.__doc__}\n{EXAMPLES}"


def _sweep(request: "Request", timing: "Timing", workers: int, recover: bool, as_json: bool) -> int:
    """Plans, runs and shows; returns the exit code."""
    from harness.progress import clock
    from harness.sweep.display import counted

    began = time.monotonic()
    done = run_sweep(request, timing, workers, recover)
    if as_json:
        print_json(done.facts())
    else:
        _show(done.plan, done.slots)
    say(f"{counted(done.slots, done.plan)}; {clock(time.monotonic() - began)}", err=as_json)
    if done.signal is not None:
        say(f"stopped by {done.signal.name}; to go on: {how_to_go_on(request, workers)}", err=True)
        return 128 + done.signal
    return 0 if any(slot.state == "COMPLETE" for slot in done.slots) else 1


@dataclass(frozen=True)
class Swept:
    """A sweep that has ended, or was cut short by a signal."""

    plan: "Plan"
    slots: "list[Slot]"
    signal: "Signals | None"
    facts: "Callable[[], dict[str, Any]]"
    """For programs."""


def run_sweep(request: "Request", timing: "Timing", workers: int, recover: bool = False) -> Swept:
    """Plans a sweep and works on it until every trial has ended or a signal arrives."""
    from harness.sweep.display import make_display
    from harness.sweep.joining import join
    from harness.sweep.keeping import Keeper
    from harness.sweep.loop import Loop
    from harness.sweep.plan import make_plan
    from harness.sweep.results import Results

    plan = make_plan(request, timing)
    if recover:
        _recover(plan)
    study, group = join(plan)
    _introduce(plan)
    loop = Loop(plan, study, group, make_display(plan), Keeper(plan, study, group), workers)
    signal = loop.run()
    return Swept(plan, loop.slots, signal, lambda: Results(plan, study, group).facts())


def _recover(plan: "Plan") -> None:
    from harness.sweep.recovering import recover

    aside, count = recover(plan)
    kept = f"; the old one is {short_path(aside)}" if aside else ""
    say(f"rebuilt the study's database with {count} ended trials from {short_path(plan.runs)}{kept}", err=True)


def _introduce(plan: "Plan") -> None:
    """What is about to happen, in a few lines."""
    from harness.sweep.space import describe

    say(f"study {plan.study}: {', '.join(plan.objectives)} of {plan.method} on {plan.dataset}", err=True)
    for line in describe(plan.space):
        say(f"  {line}", err=True)
    if plan.pruner != "none" and not plan.pruning:
        say("  no pruning: with two objectives there is no order to judge a trial by", err=True)


def _show(plan: "Plan", slots: "list[Slot]") -> None:
    """The best trials, and what to do with them."""
    from harness.sweep.display import shown
    from harness.sweep.results import best_slots, row_of

    best = best_slots(slots)
    two = len(plan.objectives) > 1
    rows = [row_of(slot, plan.max_retry) for slot in (best if two else best[:_TOP])]
    if rows:
        columns = ["trial", *plan.objectives, *plan.space, "epochs", "seconds"]
        cells = [
            [
                str(row["trial"]),
                *(f"{value:.2f}" for value in row["values"]),
                *(shown(row["params"][name]) for name in plan.space),
                str(row["epochs"] or ""),
                "" if row["seconds"] is None else f"{row['seconds']:.1f}",  # a recovered trial has no clock
            ]
            for row in rows
        ]
        what = f"{len(rows)} trials that no other beats" if two else f"best {len(rows)} trials"
        print_table(f"{plan.study}: {what}, % on held-out train rows", columns, cells, numeric=columns)
    for row in (row_of(slot, plan.max_retry) for slot in slots):
        if row["state"] == "FAIL":
            say(f"failed: trial {row['trial']}: {row['reason']}")
    say(f"study       {short_path(plan.folder)}   (study.json, trials.csv, runs/)")
    if rows:
        say(f"plots       {short_path(plan.folder / 'plots')}")
        names = "pareto-<trial>.yaml, best.yaml: best first objective" if two else "best.yaml"
        say(f"settings    {short_path(plan.folder)}/{names}")
        config = shlex.quote(short_path(plan.folder / "best.yaml"))
        say(f"run it      python -m harness run --config {config}   (all train rows, test rows once)")


def how_to_go_on(request: "Request", workers: int) -> str:
    """The command that was given, or one that means the same; an address with a password is left to the user."""
    from dataclasses import fields

    words = ["python", "-m", "harness", "sweep"]
    for field in fields(request):
        value = getattr(request, field.name)
        if field.name == "settings":
            words += [word for setting in value for word in ("--set", setting)]
        elif field.name == "storage" and value is not None:
            words += ["--storage", "URL"]
        elif field.name == "trials" or value != field.default:
            words += [f"--{field.name.replace('_', '-')}", str(value)]
    words += ["--workers", str(workers)] if workers > 1 else []
    return shlex.join(words)
