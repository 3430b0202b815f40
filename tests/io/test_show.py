"""Tables on narrow terminals, in pipes, and with a width that is none."""

import pytest

from harness.cli.show import print_table

NAMES = ["a rather long name of a run that does not fit on one line", "another"]
NUMBERS = [f"column{place}" for place in range(12)]


def lines_of(capsys: pytest.CaptureFixture[str], columns: list[str]) -> list[str]:
    rows = [[name, *(f"{place}.25" for place in range(len(columns)))] for name in NAMES]
    print_table("title", ["name", *columns], rows, numeric=columns)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]


@pytest.mark.parametrize("width", ["20", "80", "300", "0", "-5", "abc", ""])
def test_no_column_and_no_digit_is_ever_lost(
    width: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    lines = lines_of(capsys, NUMBERS)
    assert all(name in lines[1] for name in NUMBERS)
    for place in range(len(NUMBERS)):
        assert sum(f" {place}.25" in line for line in lines) == 2


def test_words_are_folded_to_make_a_table_fit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = lines_of(capsys, NUMBERS[:2])
    assert max(map(len, lines)) <= 60
    assert len(lines) == 6  # title, head, rule, a name on two lines, another


def test_numbers_with_spaces_cost_no_column(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Means with their spread are one piece each, however narrow the terminal is."""
    monkeypatch.setenv("COLUMNS", "100")
    rows = [["unidec", "beta=4, eta=6", *(f"7{place}.25 ± 0.11 *" for place in range(8))]]
    print_table("title", ["row", "settings", *NUMBERS[:8]], rows, numeric=NUMBERS[:8])
    printed = capsys.readouterr().out
    assert "unidec" in printed
    assert all(f"7{place}.25 ± 0.11 *" in printed for place in range(8))
