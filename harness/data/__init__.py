"""Datasets: a card names a source, the source writes one prepared folder, and everything reads that folder.

`load(name)` returns a `Dataset`. The first call prepares it: texts become one byte blob per column, labels and filter
pairs become CSR arrays, and a content digest (independent of the dataset's name) goes into the manifest. Later calls
map those files into memory.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from harness.data.card import DatasetCard
    from harness.data.ragged import Texts

__all__ = ["Dataset", "load"]


@dataclass(frozen=True)
class Dataset:
    """Texts and labels of one dataset, memory-mapped.

    Label and filter matrices hold sorted, unique column indices (int32) and ones (float32). A filter pair is never
    predicted and never used as a negative: the query itself, or the reverse of a known pair.
    """

    card: "DatasetCard"
    folder: Path
    digest: str
    metadata: dict[str, Any]
    """The manifest: measured statistics, provenance, files."""
    train_text: "Texts"
    test_text: "Texts"
    label_text: "Texts"
    label_id: "Texts"
    train: "csr_array"
    """Positives of the train rows, [N, L]."""
    test: "csr_array"
    """Positives of the test rows, [M, L]."""
    train_filter: "csr_array"
    """Filter pairs of the train rows, [N, L]."""
    test_filter: "csr_array"
    """Filter pairs of the test rows, [M, L]."""

    @property
    def name(self) -> str:
        """Name of the dataset, from its card."""
        return self.card.name

    def column_digest(self, column: str) -> str:
        """Return a hash of one text column's content, from the manifest; the column itself is not read."""
        files = self.metadata["files"]
        return f"{files[f'{column}.values.npy']['sha256']}-{files[f'{column}.offsets.npy']['sha256']}"


def load(name_or_folder: str | Path, *, use_filter: bool = True) -> Dataset:
    """Load a dataset by card name, or from a folder of files, preparing it on first use.

    `use_filter=False` accepts missing filter files even if the card requires them, and leaves the filters empty.
    """
    from harness.data.prepare import load_prepared

    return load_prepared(name_or_folder, use_filter=use_filter)
