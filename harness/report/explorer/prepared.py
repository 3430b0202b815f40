"""A prepared dataset as the explorer shows it: test rows, their true labels, and how frequent every label is.

The data is found by the digest in a run's record, so names and cards do not matter; it is never built for this.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness import metrics
from harness.data.prepare import load_matrix
from harness.data.ragged import Texts
from harness.files import MANIFEST, home, read_manifest


@dataclass(frozen=True)
class Prepared:
    """Texts and labels, memory-mapped where they are large."""

    texts: Texts
    """Of the test rows, [M]."""
    label_text: Texts
    """[L]."""
    label_id: Texts
    """[L]."""
    truth: csr_array
    """True labels of the test rows, [M, L]."""
    train_rows: NDArray[np.int64]
    """How many train rows have each label, [L]."""
    bins: NDArray[np.int64]
    """0, 1, 2 for head, torso, tail as `harness.metrics.contributions` counts them, [L]."""

    def least(self, last_bin: int) -> int:
        """The fewest train rows of a label up to this bin; more than any label has if there is none."""
        within = self.train_rows[self.bins <= last_bin]
        return int(within.min()) if len(within) else int(self.train_rows.max()) + 1


def prepared_folders() -> dict[str, Path]:
    """The complete prepared folders of this machine, by the digest of their content."""
    found = {}
    for path in sorted((home() / "cache" / "datasets").glob(f"*/{MANIFEST}")):
        manifest = read_manifest(path.parent)
        if manifest is not None and "digest" in manifest:
            found[str(manifest["digest"])] = path.parent
    return found


def open_prepared(folder: Path) -> Prepared:
    """Opens a prepared folder."""
    label_text = Texts.load(folder, "labels.text")
    train = load_matrix(folder, "train.labels", len(label_text))
    return Prepared(
        texts=Texts.load(folder, "test.text"),
        label_text=label_text,
        label_id=Texts.load(folder, "labels.id"),
        truth=load_matrix(folder, "test.labels", len(label_text)),
        train_rows=np.bincount(train.indices, minlength=len(label_text)),
        bins=metrics.frequency_bins(train),
    )
