"""How long a bench will take, judged by what the like of its cells took, in this bench or before."""

import heapq
from collections.abc import Sequence
from typing import Any

from harness.bench import State
from harness.facts import recorded
from harness.record import RunRecord
from harness.report import settings_of

RUNNING = ("running", "resumed")
Likeness = tuple[tuple[str, ...], ...]
"""Ways of being alike, the closest first."""


class Estimate:
    """Seconds that cells take, and that the whole bench still needs."""

    def __init__(self, states: Sequence[State], earlier: Sequence[RunRecord], workers: int) -> None:
        """`earlier` are finished runs of the shelf, those that are cells of this bench among them or not."""
        self._states, self._workers = states, workers
        self._alike = {state.cell.key: _likeness(recorded(state.cell.config), state.cell.data_name) for state in states}
        self._earlier = [(_likeness(record.config, record.dataset["name"]), record.seconds) for record in earlier]
        self._known = {record.run_id for record in earlier}

    def left(self, now: float) -> float | None:
        """Seconds until the last cell ends, by the monotonic clock; None while there is nothing to judge a cell by."""
        means = self._means()
        busy: list[float] = []
        waiting: list[float] = []
        for state in self._states:
            if state.status not in ("waiting", *RUNNING):
                continue
            usual = next((means[like] for like in self._alike[state.cell.key] if like in means), None)
            if usual is None:
                return None
            if state.status == "waiting":
                waiting.append(usual)
            else:
                busy.append(max(0.0, usual - (now - state.began)))
        # each waiting cell goes to the worker that is free first, as it will
        free = busy + [0.0] * max(0, self._workers - len(busy))
        heapq.heapify(free)
        for seconds in waiting:
            heapq.heapreplace(free, free[0] + seconds)
        return max(free)

    def _means(self) -> dict[tuple[str, ...], float]:
        spent: dict[tuple[str, ...], list[float]] = {}
        ended = [
            (self._alike[state.cell.key], state.took or state.seconds or 0.0)
            for state in self._states
            if state.status == "done" and state.run_id not in self._known
        ]
        for likeness, seconds in [*self._earlier, *ended]:
            for like in likeness:
                spent.setdefault(like, []).append(seconds)
        return {like: sum(each) / len(each) for like, each in spent.items()}


def _likeness(config: dict[str, Any], dataset: str) -> Likeness:
    """Other seeds of the same run, then the same method with other settings, then anything on the dataset."""
    method, encoder = config["method"], config["encoder"]
    return (dataset, method, encoder, settings_of(config)), (dataset, method, encoder), (dataset, method), (dataset,)
