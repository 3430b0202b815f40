"""A study as images: frame of trials -> history, importance, slices, learning curves, front.

The frame has one row a trial: `number`; `state`, as Optuna names it; a column per objective and one per range, named
like these; `intermediate`, pairs (epoch, first objective) or a dict of them. What is not known is None or NaN.
Objectives are metrics of held-out rows in percent, larger is better. The same frame gives the same bytes: no dates, no
fonts or styles of the user's.
"""

import io
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.files import write_bytes
from harness.sweep.plots.drawing import draw_curves, draw_front, draw_history, draw_importance
from harness.sweep.plots.panels import STYLE
from harness.sweep.plots.slicing import draw_slices
from harness.sweep.space import from_json

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from optuna import Study

_DPI = 160


def importances(study: "Study", objective: int = 0) -> dict[str, float]:
    """How much each range decides about an objective, shares that sum to 1, largest first (PED-ANOVA).

    Empty where the study says nothing yet: too few complete trials, or all alike.
    """
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
    from optuna.trial import TrialState

    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(complete) < 4 or len({trial.values[objective] for trial in complete}) < 2:
        return {}
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the evaluator asks what makes the target small: hence the minus
            found = get_param_importances(
                study,
                evaluator=PedAnovaImportanceEvaluator(),
                target=lambda trial: -float(trial.values[objective]),
            )
    except (ValueError, RuntimeError):  # ranges that differ between trials, or a single value of a range
        return {}
    finally:
        optuna.logging.set_verbosity(before)
    return {name: share for name, share in found.items() if share == share}


def draw_plots(frame: "pd.DataFrame", facts: Mapping[str, Any], out: Path) -> list[Path]:
    """Draws every image that the frame has something for; returns their paths.

    Args:
        frame: Trials, see the module.
        facts: `objectives`, names of metrics; `space`, the ranges by name or their JSON (`harness.sweep.space`);
            optional `method` and `dataset` for the titles, and `importance`, see `importances`.
        out: Folder, made if absent; images of the same names are replaced.
    """
    frame = frame[frame["number"].notna()].astype({"number": int}).sort_values("number", ignore_index=True)
    if frame.empty:
        return []
    import matplotlib.style
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    facts = {**facts, "space": from_json(facts.get("space") or {})}
    drawings: dict[str, Callable[[], Figure | None]] = {
        "history.png": lambda: draw_history(frame, facts),
        "importance.png": lambda: draw_importance(facts),
        "slice.png": lambda: draw_slices(frame, facts),
        "intermediate.png": lambda: draw_curves(frame, facts),
        "pareto.png": lambda: draw_front(frame, facts),
    }
    written = []
    with matplotlib.style.context(["default", STYLE]):
        for name, draw in drawings.items():
            figure = draw()
            if figure is None:
                continue
            FigureCanvasAgg(figure)
            image = io.BytesIO()
            figure.savefig(image, format="png", dpi=_DPI, metadata={"Software": None})
            write_bytes(out / name, image.getvalue())
            written.append(out / name)
    return written
