"""Drawing validation rows from the train rows so that they are like test rows.

Every label of a test row here also has a train row. A uniform draw of validation rows breaks that: a label with one
row loses it, and on data with two or three rows per label this affects a quarter of the validation pairs. Methods that
learn one vector per label would be judged on labels they never see, and settings chosen accordingly.

Rows with the same text are drawn together. A validation row whose text is also trained on is answered by memory, and
settings that memorise would win. Groups come in the order of the draw of their first rows, so that a row is as likely
to be drawn with others as alone; a group that is larger than what is still wanted is passed over.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.data.ragged import Ragged
from harness.errors import UserError

Rows = NDArray[np.int64]

_AT_ONCE, _AT_LEAST = 2, 1024
"""Groups considered in a round: `_AT_ONCE` for each wanted row, plus `_AT_LEAST`."""


def groups_in_order(order: Rows, first: Rows) -> Ragged:
    """Return the groups of train rows that are drawn together, in the order of the draw.

    Args:
        order: All train rows in the order of the draw, [N].
        first: For each train row the first row of its group, [N]; itself if it is alone.
    """
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    of_group = place[first]
    rows = np.argsort(of_group, kind="stable")
    begins = np.flatnonzero(np.diff(of_group[rows], prepend=-1))
    return Ragged(rows, np.append(begins, len(rows)))


def any_draw(groups: Ragged, count: int) -> Rows:
    """Return the rows of the first groups; as many as wanted, or as near to it as one group more or less can be.

    Args:
        groups: Train rows that are drawn together, in the order of the draw, [groups].
        count: Number of rows to draw, at least 1 and fewer than N.
    """
    return _completed(groups, np.zeros(0, np.int64), count)


def covered_draw(train: csr_array, groups: Ragged, count: int) -> Rows:
    """Return the rows of the first groups whose labels all keep a row that is not drawn; of other groups if too few.

    Args:
        train: Positives of the train rows, [N, L].
        groups: Train rows that are drawn together, in the order of the draw, [groups].
        count: Number of rows to draw, at least 1 and fewer than N; met as nearly as in `any_draw`.
    """
    spare = np.bincount(train.indices, minlength=train.shape[1]) - 1  # rows of each label that may still be drawn, [L]
    sizes = groups.lengths
    waiting, drawn, wanted = np.arange(len(groups)), [np.zeros(0, np.int64)], count
    while wanted and len(waiting):
        looked_at, later = np.split(waiting, [_AT_ONCE * wanted + _AT_LEAST])
        rows = groups.take(looked_at)
        some = train[rows.values]
        labels = some.indices
        group = np.repeat(np.repeat(np.arange(len(looked_at)), rows.lengths), np.diff(some.indptr))
        fitting = np.flatnonzero(_without(group[_place_among_equals(labels) >= spare[labels]], len(looked_at)))
        chosen = fitting[_first_that_fit(sizes[looked_at[fitting]], wanted)]
        drawn.append(looked_at[chosen])
        wanted -= int(sizes[looked_at[chosen]].sum())
        of_chosen = ~_without(chosen, len(looked_at))[group]
        spare -= np.bincount(labels[of_chosen], minlength=len(spare))
        # a group passed over for an earlier one that was not chosen either may be chosen in the next round
        within = _place_among_equals(group * len(spare) + labels) if len(rows.values) > len(rows) else 0
        fits = _without(np.concatenate([group[spare[labels] <= within], chosen]), len(looked_at))
        waiting = np.concatenate([looked_at[fits], later])
        waiting = waiting[sizes[waiting] <= wanted]
    return _completed(groups, np.concatenate(drawn), count)


def _completed(groups: Ragged, drawn: Rows, count: int) -> Rows:
    """Return the rows of the groups that are drawn, and of further ones in order until there are `count`.

    What the groups left over are too large for stays open, unless the smallest of them comes nearer to `count`.
    """
    if len(groups) < 2:
        raise UserError(
            f"all {len(groups.values):,} train rows have the same text, so none can be held out for validation; set "
            "validation.size=0"
        )
    sizes = groups.lengths
    open_rows = count - int(sizes[drawn].sum())
    others = np.flatnonzero(_without(drawn, len(groups)))
    more = _first_that_fit(sizes[others], open_rows)
    drawn, others = np.concatenate([drawn, others[more]]), others[_without(more, len(others))]
    open_rows = count - int(sizes[drawn].sum())
    if open_rows and len(others) > 1:
        smallest = others[np.argmin(sizes[others])]
        if sizes[smallest] < 2 * open_rows or not len(drawn):
            drawn = np.append(drawn, smallest)
    return groups.take(drawn).values


def _first_that_fit(sizes: Rows, room: int) -> Rows:
    """Return the places of the sizes that are taken in turn, each if it is no more than what is left of `room`."""
    taken, places = [np.zeros(0, np.int64)], np.arange(len(sizes))
    while len(places := places[sizes[places] <= room]):
        filled = np.cumsum(sizes[places])
        whole = int(np.searchsorted(filled, room, "right"))
        taken.append(places[:whole])
        room, places = room - int(filled[whole - 1]), places[whole:]
    return np.concatenate(taken)


def _without(places: Rows, size: int) -> NDArray[np.bool_]:
    """Return a mask that is False at `places`, else True, [size]."""
    kept = np.ones(size, bool)
    kept[places] = False
    return kept


def _place_among_equals(values: NDArray[np.integer]) -> Rows:
    """Return for each value how many equal ones precede it, [n]."""
    by_value = np.argsort(values, kind="stable")
    ordered = values[by_value]
    places = np.empty(len(values), np.int64)
    places[by_value] = np.arange(len(values)) - np.searchsorted(ordered, ordered)
    return places
