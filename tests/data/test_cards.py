"""The cards in `datasets/`, held against figures written down a second time, and the card schema."""

import math
import re
from pathlib import Path
from typing import Any

import pytest

from harness.data.card import CARD_FOLDER, DatasetCard, load_card, read_card
from harness.errors import DataError, UserError

# name -> N train, M test, L, rows per label, labels per row, words per row, A, B, longest text in tokens
LF = {
    "lf-amazontitles-131k": (294_805, 134_835, 131_073, 5.15, 2.29, 6.92, 0.6, 2.6, 32),
    "lf-amazon-131k": (294_805, 134_835, 131_073, 5.15, 2.29, None, 0.6, 2.6, 128),
    "lf-amazontitles-1.3m": (2_248_619, 970_237, 1_305_265, 38.24, 22.20, 8.74, 0.6, 2.6, 32),
    "lf-wikiseealso-320k": (693_082, 177_515, 312_330, 4.67, 2.11, None, 0.55, 1.5, 128),
    "lf-wikiseealsotitles-320k": (693_082, None, 312_330, 4.67, 2.11, 3.01, 0.55, 1.5, 32),
    "lf-wikititles-500k": (1_813_391, None, 501_070, 17.15, 4.74, 3.10, 0.5, 0.4, 32),
    "lf-wikipedia-500k": (1_813_391, 783_743, 501_070, None, 4.77, None, 0.5, 0.4, 256),
}
BUILT = {
    "lf-pydocs",
    "lf-pydocstitles",
    "lf-debian",
    "lf-debiantitles",
    "lf-wordnet",
    "lf-manpages",
    "lf-manpagestitles",
    "lf-debtags",
    "synthetic",
}

# |Q_B| as the papers print it
PUBLISHED_BATCH = {
    ("lf-amazon-131k", "unidec"): 576,
    ("lf-amazon-131k", "unidec-v1"): 576,
    ("lf-wikiseealso-320k", "unidec"): 677,
    ("lf-wikiseealso-320k", "unidec-v1"): 677,
    ("lf-amazontitles-1.3m", "unidec"): 1098,
    ("lf-amazontitles-1.3m", "unidec-v1"): 1098,
    ("lf-amazontitles-1.3m", "depsl"): 2196,
    ("lf-wikipedia-500k", "depsl"): 221,
}


@pytest.mark.parametrize("name", LF)
def test_figures_are_the_published_ones(name: str) -> None:
    card = load_card(name)
    figures = card.statistics
    assert card.propensity is not None
    assert LF[name] == (
        figures.train,
        figures.test,
        figures.labels,
        figures.rows_per_label,
        figures.labels_per_row,
        figures.words_per_row,
        card.propensity.a,
        card.propensity.b,
        card.defaults["max_len"],
    )
    assert not figures.approximate
    assert figures.tolerance == 0.01
    # only there are rows and labels of different kinds, so that nothing has to be filtered
    assert card.filter == ("optional" if name == "lf-wikipedia-500k" else "required")
    assert card.source == "repository"
    assert card.text == ("title" if "titles" in name else "title+content")


@pytest.mark.parametrize("name", LF)
def test_figures_agree_with_each_other(name: str) -> None:
    """Rows per label = N x labels per row / L, to the two digits the papers print."""
    figures = load_card(name).statistics
    assert figures.train is not None
    assert figures.labels is not None
    assert figures.labels_per_row is not None
    derived = figures.train * figures.labels_per_row / figures.labels
    if figures.rows_per_label is not None:
        assert figures.rows_per_label == pytest.approx(derived, rel=figures.tolerance)
    else:
        assert not math.isclose(derived, 24.75, rel_tol=0.1)  # the published figure counts test rows too


@pytest.mark.parametrize(("name", "method"), PUBLISHED_BATCH)
def test_batch_sizes_yield_the_published_batches(name: str, method: str) -> None:
    """The reference cuts N rows into 2^floor(log2(N / batch_size)) clusters, each of which is one batch."""
    card = load_card(name)
    rows, size = card.statistics.train, card.recommended[method]["batch_size"]
    assert rows is not None
    assert round(rows / 2 ** math.floor(math.log2(rows / size))) == PUBLISHED_BATCH[name, method]


def test_the_folder_has_exactly_the_expected_cards_and_no_python() -> None:
    """A package called `datasets` would be imported instead of the library of that name."""
    assert {path.stem for path in CARD_FOLDER.glob("*.yaml")} == set(LF) | BUILT
    assert {path.suffix for path in CARD_FOLDER.rglob("*") if path.is_file()} <= {".yaml", ".md"}
    assert [path.name for path in CARD_FOLDER.rglob("*") if path.is_dir()] == ["published"]


def test_the_page_about_cards_names_every_key() -> None:
    page = (CARD_FOLDER / "README.md").read_text(encoding="utf-8")
    for key in DatasetCard.model_fields:
        assert key == "name" or re.search(rf"`{key}`", page), key
    for name in LF:
        assert name in page


def write_card(home: Path, name: str, text: str) -> Path:
    path = home / "cards" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


GOOD = "title: Mine\nsummary: my rows\nsource: jsonl\n"


def test_a_name_that_no_card_or_two_cards_have(home: Path) -> None:
    with pytest.raises(UserError, match=r"did you mean 'lf-amazon-131k'\?"):
        load_card("lf-amazon-131")
    write_card(home, "lf-amazon-131k", GOOD)
    with pytest.raises(UserError, match="two cards are called 'lf-amazon-131k'"):
        load_card("lf-amazon-131k")


def test_all_faults_of_a_card_are_reported_at_once(home: Path) -> None:
    """fault 65."""
    path = write_card(
        home,
        "bad",
        """
        title: Bad
        source: nowhere
        sumary: misspelt
        statistics: {train: -3, labels: 2.5, labels_per_rwo: 2, words_per_row: .nan, tolerance: 1.5}
        propensity: {a: 0, c: 1}
        filter: maybe
        downloads:
          - {url: "http://elsewhere.invalid/a", filename: "../a.zip", sha256: abc, contain: x}
        """,
    )
    with pytest.raises(UserError) as caught:
        read_card(path)
    lines = str(caught.value).splitlines()
    keys = {line.removeprefix(f"{path}: ").partition(":")[0] for line in lines}
    own = {"summary", "source", "sumary", "filter", "propensity.a", "propensity.b", "propensity.c"}
    figures = {"train", "labels", "labels_per_rwo", "words_per_row", "tolerance"}
    link = {"url", "filename", "sha256", "contain"}
    assert keys == own | {f"statistics.{key}" for key in figures} | {f"downloads.0.{key}" for key in link}
    assert all(line.startswith(f"{path}: ") for line in lines)


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("propensities: {a: 1, b: 1}", "did you mean 'propensity'?"),
        ("downloads: [{url: 'https://a/b', filename: b, sha: x}]", "did you mean 'sha256'?"),
        ("propensity: {a: 1, b: 1, zzz: 1}", "known: a, b"),
    ],
)
def test_an_unknown_key_gets_the_nearest_name(line: str, hint: str, home: Path) -> None:
    """fault 65."""
    with pytest.raises(UserError) as caught:
        read_card(write_card(home, "bad", GOOD + line + "\n"))
    assert len(str(caught.value).splitlines()) == 1
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (GOOD + "title: Twice\n", "duplicate key"),
        (GOOD + "notes: &a [x]\nobtain: *a\n", "anchors"),
        (GOOD + "notes: !!python/object/apply:os.getcwd []\n", "tags"),
    ],
)
def test_a_card_is_data_only(text: str, match: str, home: Path) -> None:
    """faults 65 and 66."""
    with pytest.raises(DataError, match=match):
        read_card(write_card(home, "bad", text))


def test_names_of_cards(home: Path) -> None:
    """fault 70; more names in tests/io/test_files.py."""
    with pytest.raises(UserError, match="make them equal"):
        read_card(write_card(home, "one", GOOD + "name: other\n"))
    values: dict[str, Any] = {"title": "t", "summary": "s", "source": "jsonl"}
    for name in ("../x", "x" * 300, "-x"):
        with pytest.raises(ValueError, match="cannot be used"):
            DatasetCard.model_validate({**values, "name": name})
