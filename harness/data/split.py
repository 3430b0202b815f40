"""Drawing validation rows from the train rows so that they are like test rows.

Every label of a test row here also has a train row. A uniform draw of validation rows breaks that: a label with one
row loses it, and on data with two or three rows per label this affects a quarter of the validation pairs. Methods that
learn one vector per label would be judged on labels they never see, and settings chosen accordingly.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

_AT_ONCE, _AT_LEAST = 2, 1024
"""Rows considered in a round: `_AT_ONCE` for each wanted row, plus `_AT_LEAST`."""


def covered_draw(train: csr_array, order: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return the first rows in `order` whose labels all keep a row that is not drawn; other rows if too few.

    Args:
        train: Positives of the train rows, [N, L].
        order: All train rows in the order of the draw, [N].
        count: Number of rows to draw, fewer than N.

    Returns:
        The drawn rows, [count].
    """
    spare = np.bincount(train.indices, minlength=train.shape[1]) - 1  # rows of each label that may still be drawn, [L]
    waiting, drawn, wanted = order, [np.empty(0, np.int64)], count
    while wanted and len(waiting):
        looked_at, later = np.split(waiting, [_AT_ONCE * wanted + _AT_LEAST])
        some = train[looked_at]
        labels, row = some.indices, np.repeat(np.arange(len(looked_at)), np.diff(some.indptr))
        chosen = np.flatnonzero(_without(row[_place_among_equals(labels) >= spare[labels]], len(looked_at)))[:wanted]
        drawn.append(looked_at[chosen])
        wanted -= len(chosen)
        of_chosen = ~_without(chosen, len(looked_at))[row]
        spare -= np.bincount(labels[of_chosen], minlength=len(spare))
        # a row passed over for an earlier row that was not chosen either may be chosen in the next round
        fits = _without(np.concatenate([row[spare[labels] < 1], chosen]), len(looked_at))
        waiting = np.concatenate([looked_at[fits], later])
    found = np.concatenate(drawn)
    return found if not wanted else np.concatenate([found, order[~np.isin(order, found)][:wanted]])


def _without(places: NDArray[np.int64], size: int) -> NDArray[np.bool_]:
    """Return a mask that is False at `places`, else True, [size]."""
    kept = np.ones(size, bool)
    kept[places] = False
    return kept


def _place_among_equals(values: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return for each value how many equal ones precede it, [n]."""
    by_value = np.argsort(values, kind="stable")
    ordered = values[by_value]
    places = np.empty(len(values), np.int64)
    places[by_value] = np.arange(len(values)) - np.searchsorted(ordered, ordered)
    return places
