"""What a person sees while a model trains: a live bar in a terminal, one line per epoch everywhere."""

import sys
from types import TracebackType
from typing import Any, Self

from harness.io.progress import terminal

_PARTS = ("encode", "loss", "backward", "optimiser", "pool", "gather", "mining", "validation", "rest")


class Display:
    """Progress of one stage; everything goes to standard error."""

    def __init__(self, name: str, epochs: int, steps: int, done: int = 0, *, name_lines: bool = False) -> None:
        """Store the number of steps per epoch, how many are `done`, and whether lines begin with the stage's name."""
        self._prefix = f"{name}  " if name_lines else ""
        self._name, self._epochs, self._steps, self._done = name, epochs, steps, done
        self._bar: Any = None
        self._task: Any = None
        self._loss = float("nan")

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("steps  loss {task.fields[loss]:.3f}"),
                TimeRemainingColumn(),
                console=terminal(),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task(
                f"train {self._name}", total=self._epochs * self._steps, completed=self._done, loss=self._loss
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, loss: float) -> None:
        """Advance the bar by one step and show its loss."""
        if self._bar is not None:
            self._bar.update(self._task, advance=1, loss=loss)

    def epoch(self, epoch: int, figures: dict[str, float], scores: dict[str, float]) -> None:
        """Move the bar to the end of the epoch and print the epoch's line."""
        if self._bar is not None:
            self._bar.update(self._task, completed=epoch * self._steps)
        self.say(self._prefix + epoch_line(epoch, self._epochs, figures, scores))

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        if self._bar is not None:
            self._bar.console.print(line, highlight=False, markup=False)
        else:
            print(line, file=sys.stderr, flush=True)  # noqa: T201


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 1e6 else f"{value:.3g}"


def epoch_line(epoch: int, epochs: int, figures: dict[str, float], scores: dict[str, float]) -> str:
    """Format the averages and validation scores of an epoch as one line."""
    names = sorted((name for name in figures if name.startswith("train/loss_")), reverse=True)
    losses = [f"{name.removeprefix('train/loss_')} {figures[name]:.3f}" for name in names]
    parts = [
        f"epoch {epoch:>{len(str(epochs))}}/{epochs}",
        f"loss {_number(figures['train/loss'])}" + (f" ({', '.join(losses)})" if losses else ""),
        f"positives {figures['train/positives']:.1f}",
        f"pool {figures['train/pool']:,.0f}",
        f"{figures['train/seconds']:.1f} s",
        f"{figures.get('train/rows_per_second', 0.0):,.0f} rows/s",
        ", ".join(
            f"{name} {figures[f'time/{name}']:.0%}" for name in _PARTS if figures.get(f"time/{name}", 0) >= 0.005
        ),
    ]
    parts += [f"{name.removeprefix('validation/')} {value:.2f}" for name, value in scores.items()][:3]
    return "  ".join(parts)
