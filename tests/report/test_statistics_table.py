"""The table of datasets: what runs measured, what cards say, what the paper prints."""

from pathlib import Path

import pytest

from harness.data.card import CARD_FOLDER, DatasetCard, card_paths, load_card
from harness.errors import UserError
from harness.report.cells import Cell
from harness.report.statistics import COLUMNS, PRINTED_FOLDER, read_printed, statistics_table
from harness.report.tables import render
from harness.runs.record import RunRecord

MEASURED = {"train": 4002, "test": 1351, "labels": 4329, "rows_per_label": 2.322, "labels_per_row": 2.512}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path / "home"))


def ran(name: str, run_id: str = "a", **statistics: float) -> RunRecord:
    return RunRecord(
        run_id=run_id,
        status="finished",
        started=f"2026-01-01T00:00:0{len(run_id)}",
        seconds=1.0,
        config={},
        dataset={"name": name, "title": name.upper(), "statistics": statistics},
        metric_version=1,
    )


def rows(*records: RunRecord) -> dict[str, dict[str, Cell]]:
    table = statistics_table(records)
    return {row[0].text: dict(zip(["dataset", "figures", *COLUMNS], row, strict=True)) for row in table.rows}


def test_every_dataset_of_the_papers_and_of_ours_has_a_row() -> None:
    table = statistics_table([])
    titles = [row[0].text for row in table.rows]
    cards = [load_card(path.stem) for path in CARD_FOLDER.glob("*.yaml")]
    assert {card.title for card in cards if card.source != "synthetic"} <= set(titles)
    assert len(titles) == len(set(titles))
    assert table.id == "thesis-2.1"
    # rules between what the papers use, what is built here, and what is only in print
    papers, ours = table.breaks
    assert all(card.title in titles[:papers] for card in cards if card.source == "repository")
    assert all(card.title in titles[papers:ours] for card in cards if card.source in ("pydocs", "debian"))
    assert set(titles[ours:]) == {"MS-MARCO", "Query2Bid-450M"}


def test_the_card_stands_in_where_nothing_was_measured() -> None:
    row = rows()["LF-AmazonTitles-131K"]
    assert row["figures"].text == "card"
    assert row["train"].shown == "294,805 (paper 294,805, +0)"
    assert row["test"].shown == "134,835"  # the paper has no column for test rows
    assert row["rows_per_label"].shown == "5.15 (paper 5.15, +0.00)"
    assert rows()["LF-WikiTitles-500K"]["test"].shown == "X"


def test_measured_figures_come_before_the_card_and_misses_are_marked() -> None:
    records = [ran("lf-amazontitles-131k", **MEASURED), ran("lf-pydocstitles", **MEASURED, words_per_row=20.0)]
    found = rows(*records)
    amazon = found["LF-AmazonTitles-131K"]
    assert amazon["figures"].text == "measured"
    assert amazon["train"].shown == "4,002≠ (paper 294,805, -290,803)"
    assert amazon["words_per_row"].shown == "6.92 (paper 6.92, +0.00)"  # not measured: the card's
    ours = found["LF-PyDocsTitles"]
    assert ours["train"].shown == "4,002"
    assert ours["words_per_row"].shown == "20.00≠"  # 12.78 on the card, 15 % allowed
    notes = statistics_table(records).notes
    assert "LF-PyDocsTitles (words per row): 20.00 measured, 12.78 on the card." in notes
    assert not any(note.startswith("LF-PyDocsTitles (N") for note in notes)


def test_the_slack_is_the_cards() -> None:
    """15 % of 4,002 is 600.3; of several runs the newest counts."""
    for train, missed in ((4002, False), (4600, False), (4604, True), (3402, False), (3400, True)):
        records = ran("lf-pydocstitles", train=1), ran("lf-pydocstitles", "newer", train=train)
        cell = rows(*records)["LF-PyDocsTitles"]["train"]
        assert (cell.main, cell.mark == "≠") == (f"{train:,}", missed)


def test_what_the_paper_has_wrong_is_marked_and_explained() -> None:
    found = rows()
    assert found["LF-Amazon-131K"]["words_per_row"].shown == "X (paper 6.92?)"
    assert found["LF-WikiSeeAlso-320K"]["words_per_row"].shown == "X (paper 3.01?)"
    assert len([note for note in statistics_table([]).notes if "repeats the titles set" in note]) == 2


def test_a_dataset_of_ones_own_has_a_row_and_a_generated_one_only_if_it_was_run() -> None:
    found = rows(ran("mine<b>", train=7), ran("synthetic", train=2000))
    assert found["MINE<B>"]["train"].shown == "7"
    assert found["MINE<B>"]["labels"].shown == "X"
    synthetic = load_card("synthetic").title
    assert synthetic in found
    assert synthetic not in rows()
    assert "<b>" not in render([statistics_table([ran("mine<b>", train=7)])], "md").lower()


def test_cards_of_the_workspace_do_not_change_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fault 63: a committed table must not depend on what a user has imported."""
    before = render([statistics_table([])], "md")
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path))
    (tmp_path / "cards").mkdir()
    (tmp_path / "cards" / "mine.yaml").write_text("title: Mine\nsummary: s\nsource: jsonl\n", encoding="utf-8")
    assert "mine" in card_paths()
    assert render([statistics_table([])], "md") == before
    card = DatasetCard(name="mine", title="Mine", summary="s", source="jsonl")
    assert "| Mine |" in render([statistics_table([], [card])], "md")


def test_printed_averages_agree_with_printed_counts() -> None:
    """Rows per label are train rows times labels per row by labels, in every row that is not marked as wrong."""
    checked = 0
    for path in sorted(PRINTED_FOLDER.glob("*.yaml")):
        for row in read_printed(path).rows:
            values = row.results
            if None in (values["rows_per_label"], values["labels_per_row"]) or {"train", "labels"} & set(row.slips):
                continue
            expected = values["train"] * values["labels_per_row"] / values["labels"]  # type: ignore[operator]
            assert values["rows_per_label"] == pytest.approx(expected, rel=0.005), row.label
            checked += 1
    assert checked == 8


def test_printed_figures_are_those_of_the_cards() -> None:
    for path in sorted(PRINTED_FOLDER.glob("*.yaml")):
        for row in read_printed(path).rows:
            if row.dataset:
                card = load_card(row.dataset)
                assert card.title == row.label
                for name, value in row.results.items():
                    assert name in row.slips or getattr(card.statistics, name) == value


def test_faults_of_a_printed_table_are_told_with_file_and_key(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(
        "table: t\nsource: s\nrows:\n- {label: a, dataset: null, results: {trian: 1}, slip: {}}\n", encoding="utf-8"
    )
    with pytest.raises(UserError) as raised:
        read_printed(path)
    assert "trian" in str(raised.value)
    assert "did you mean 'slips'" in str(raised.value)
    path.write_text("table: u\nsource: s\nrows:\n- {label: a, dataset: null, results: {train: 1}}\n", encoding="utf-8")
    with pytest.raises(UserError, match="make them equal"):
        read_printed(path)
