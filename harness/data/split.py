"""Validation rows: train rows set aside, drawn so that they are like test rows.

Every label of a test row here also has a train row. After a plain draw of train rows that is not so: a label with one
row loses it, and on data with two or three rows a label this concerns a quarter of the validation pairs. Methods that
learn one vector per label would be judged on labels they never see, and settings chosen for that.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

_AT_ONCE, _AT_LEAST = 2, 1024
"""Rows considered in a round: this many for each wanted row, plus at least this many."""


def covered_draw(train: csr_array, order: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The first rows of an order whose labels all keep a row that is not drawn, completed by others if too few.

    Args:
        train: Positives, [N, L].
        order: All rows, [N].
        count: How many are wanted, fewer than N.

    Returns:
        Rows, [count].
    """
    spare = np.bincount(train.indices, minlength=train.shape[1]) - 1  # rows that each label can do without, [L]
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
        # a row that lost its place to one that was not chosen either may be chosen in the next round
        fits = _without(np.concatenate([row[spare[labels] < 1], chosen]), len(looked_at))
        waiting = np.concatenate([looked_at[fits], later])
    found = np.concatenate(drawn)
    return found if not wanted else np.concatenate([found, order[~np.isin(order, found)][:wanted]])


def _without(places: NDArray[np.int64], size: int) -> NDArray[np.bool_]:
    """True except at these places, [size]."""
    kept = np.ones(size, bool)
    kept[places] = False
    return kept


def _place_among_equals(values: NDArray[np.integer]) -> NDArray[np.int64]:
    """How many equal values precede each one, [n]."""
    by_value = np.argsort(values, kind="stable")
    ordered = values[by_value]
    places = np.empty(len(values), np.int64)
    places[by_value] = np.arange(len(values)) - np.searchsorted(ordered, ordered)
    return places
