"""The table of what each paper says: whole, and equal to the settings that a run of the preset gets on each dataset."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harness.cli.checks import validate_all
from harness.data.card import CARD_FOLDER, load_card
from harness.errors import UserError
from harness.io.models import read_model
from harness.model.encoders.encoder import Encoder
from harness.settings import papers
from harness.settings.layers import Layer
from harness.settings.method import METHOD_FOLDER, methods, read_method_card
from harness.settings.papers import (
    BESIDE,
    OF_CARD,
    PAPER_FOLDER,
    Claim,
    PaperSettings,
    claim_on,
    claims,
    presets,
    settings_of,
)
from harness.settings.published import PublishedRow, layer, published_row, published_table, published_tables
from harness.settings.resolve import resolve
from harness.settings.schema import RunConfig
from tests.support.commands import call

LF = [path.stem for path in sorted(CARD_FOLDER.glob("lf-*.yaml")) if load_card(path.stem).source == "repository"]
LIBRARY = {"parabel", "xr-linear"}
"""Methods of a paper whose code and settings are another library's."""
PRINTED = [name for name, table in published_tables().items() if not table.own]
ROWS = {row.name: row for name in PRINTED for row in published_table(name).rows if row.method}
"""Rows of the papers' tables that can be run."""


def test_every_method_of_a_paper_has_its_table() -> None:
    named = {name for name in methods() if read_method_card(METHOD_FOLDER / f"{name}.yaml").reference}
    assert set(presets()) == named - LIBRARY
    assert len(LF) == 7


@pytest.mark.parametrize("preset", presets())
def test_every_setting_has_an_entry_and_no_other(preset: str) -> None:
    """A new parameter fails here until the table says what the papers say of it."""
    assert set(claims(preset)) == set(settings_of(preset))


@pytest.mark.parametrize("path", sorted(PAPER_FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_entries_fit_together(path: Path) -> None:
    """Each dataset with an entry is of a paper; `validate` asks the rest of every file."""
    for name, entries in read_model(path, PaperSettings).settings.items():
        assert {dataset for entry in entries for dataset in entry.on} <= set(LF), name


def test_a_preset_has_only_what_its_own_method_has() -> None:
    """`every` is shared by all and `dexml-inbatch` follows others: nothing in a file is for nobody."""
    for path in PAPER_FOLDER.glob("*.yaml"):
        own = set(read_model(path, PaperSettings).settings)
        known = set(settings_of(path.stem)) if path.stem != "every" else {n for p in presets() for n in settings_of(p)}
        assert own <= known, path.stem


def of_lf_alone(preset: str) -> set[str]:
    """Settings that fit the LF sets and their transformer, and nothing else."""
    more = {*BESIDE, "epochs", "dim"} if "unidec" in preset or "depsl" in preset else {"max_len"}
    return {*OF_CARD, *more}


def values_of(config: RunConfig) -> dict[str, Any]:
    """The settings of a run that have entries; of options, those that differ from their defaults."""
    run, usual = config.model_dump(mode="json"), RunConfig().model_dump(mode="json")
    options = {name for name in BESIDE if isinstance(usual[name], dict)}
    values = {name: run[name] for name in BESIDE if name not in options}
    values |= {name: {k: v for k, v in run[name].items() if (k, v) not in usual[name].items()} for name in options}
    card = load_card(config.dataset)
    return {**values, "text": card.text, "label_text": card.recipe_of_labels, **config.params}


def differing(config: RunConfig, row: str = "") -> dict[str, tuple[Any, Any]]:
    """Settings with another value than their entry: what the run has, and what the entry has."""
    found = values_of(config)
    wanted = {name: claim_on(entries, config.dataset, row).value for name, entries in claims(config.method).items()}
    return {name: (found[name], wanted[name]) for name in wanted if repr_of(found[name]) != repr_of(wanted[name])}


def repr_of(value: Any) -> str:
    """A value as text, so that true and 1 differ and 1 and 1.0 do not."""
    return repr(float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else repr(value)


@pytest.mark.parametrize("dataset", [*LF, "synthetic"])
@pytest.mark.parametrize("preset", presets())
def test_presets_are_the_papers(preset: str, dataset: str) -> None:
    """On data of no paper, too, where the entries hold that name no dataset."""
    found = differing(resolve(preset, dataset, [])[0])
    assert set(found) <= (of_lf_alone(preset) if dataset not in LF else set()), found


def run_of(row: PublishedRow, **settings: Any) -> RunConfig:
    assert row.method
    return resolve(row.method, row.dataset, [layer(row), Layer("test", settings)])[0]


@pytest.mark.parametrize("row", ROWS)
def test_rows_are_the_papers(row: str) -> None:
    """A row of a paper's table runs with the paper's settings; where it has others on purpose, an entry names it."""
    assert differing(run_of(ROWS[row]), row) == {}


def test_rows_set_nothing_that_has_no_entry() -> None:
    for row in ROWS.values():
        assert set(row.settings) <= set(settings_of(str(row.method))), row.name


@pytest.mark.parametrize("path", sorted(PAPER_FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_entries_of_rows_are_needed(path: Path) -> None:
    """Each pattern is of rows of this preset, one entry has a row, and some row would have another value without it."""
    own = [row for row in ROWS.values() if row.method == path.stem]
    for setting, entries in read_model(path, PaperSettings).settings.items():
        for entry in entries:
            for pattern in entry.rows:
                one = entry.model_copy(update={"rows": [pattern]})
                changed = [
                    claim_on(entries, row.dataset).value != entry.value for row in own if one.names_row(row.name)
                ]
                assert any(changed), (setting, pattern)
        for row in own:
            assert sum(entry.names_row(row.name) for entry in entries) <= 1, (setting, row.name)


@pytest.mark.parametrize(
    ("row", "setting", "value"),
    [
        ("thesis-2.2/unidec/lf-amazon-131k", "batch_size", 576),
        ("thesis-2.2/unidec/lf-amazon-131k", "max_len", 32),
        ("thesis-2.5/unidec-no-hard/lf-amazon-131k", "eta", 6),
        ("thesis-2.5/unidec/lf-amazon-131k", "eta", 0),
        ("thesis-2.3/dexml-hard/lf-amazontitles-1.3m", "random_epochs", 5),
        ("thesis-2.3/dexml-hard/lf-amazontitles-1.3m", "encoder_options", {"pooling": "mean"}),
        ("thesis-1.2/gandalf/lf-amazontitles-131k", "augment_options", {"delta": 0.2}),
        ("preprint-1/ngame-clf/lf-wikiseealso-320k", "classifier_lr", 0.002),
    ],
)
def test_a_wrong_value_of_a_row_is_seen(row: str, setting: str, value: Any) -> None:
    assert set(differing(run_of(published_row(row), **{setting: value}), row)) == {setting}


@pytest.mark.parametrize("dataset", LF)
def test_notes_on_batches_are_the_settings(dataset: str) -> None:
    """Notes name the presets whose batch is not published, each with the size that it has; the card sets the others."""
    card = load_card(dataset)
    named = {}
    for size, words in re.findall(r"(1,024|256) of ((?:[a-z0-9-]+(?:, | and ))*[a-z0-9-]+) is", " ".join(card.notes)):
        named |= dict.fromkeys(re.split(", | and ", words), int(size.replace(",", "")))
    papers_own = [name for name in presets() if name.startswith(("depsl", "unidec")) and name in card.recommended]
    open_ones = [name for name in papers_own if "batch_size" not in card.recommended[name]]
    assert named == {name: resolve(name, dataset, [])[0].params["batch_size"] for name in open_ones}


EPS = {name: {"eps": 1e-8} for name in ("renee", "ngame", "depsl-v1")}
SHORT = {"dexml": {"epochs": 8, "warmup_epochs": 1.0}, "dexml-topk": {"epochs": 8, "warmup_epochs": 1.0}}
DEBIAN = {**EPS, **SHORT, "renee": {"eps": 1e-8, "epochs": 6}}
OTHERS = {
    "lf-pydocs": {**EPS, "unidec": {"batch_size": 128}, "depsl": {"batch_size": 128}},
    "lf-pydocstitles": EPS,
    "lf-debian": DEBIAN,
    "lf-debiantitles": DEBIAN,
}
"""Where cards of data of no paper leave the papers: eps for comparison with older runs, the rest for two cores."""


@pytest.mark.parametrize("dataset", OTHERS)
def test_cards_of_bundled_data_leave_the_papers_there_alone(dataset: str) -> None:
    found: dict[str, dict[str, Any]] = {}
    for preset in presets():
        values = differing(resolve(preset, dataset, [])[0])
        found[preset] = {name: value for name, (value, _) in values.items() if name not in of_lf_alone(preset)}
    assert {preset: values for preset, values in found.items() if values} == OTHERS[dataset]
    assert any("renee, ngame and depsl-v1 have Adam's eps at 1e-8" in note for note in load_card(dataset).notes)


@pytest.mark.parametrize(("row", "variant"), [("depsl", "depsl"), ("unidec", "unidec")])
def test_our_variants_differ_from_rows_of_the_thesis_where_they_say_so(row: str, variant: str) -> None:
    """What is open in the thesis is settled once: a row and our variant of its method have the same value."""
    compared = 0
    for one in ROWS.values():
        if one.table in ("thesis-2.2", "thesis-2.3") and one.stem == row:
            values = values_of(run_of(one))
            for name, entries in claims(variant).items():
                entry = claim_on(entries, one.dataset)
                if entry.status != "ours":
                    assert values[name] == entry.value, (one.name, name)
                    compared += 1
    assert compared > 100


def test_an_entry_is_of_datasets_or_of_rows() -> None:
    with pytest.raises(ValidationError, match="takes `on` or `rows`, not both"):
        Claim(value=1, status="ours", why="a test", on=["lf-amazon-131k"], rows=["thesis-2.2/*"])


@pytest.mark.parametrize("dataset", LF)
def test_labels_of_full_text_sets_are_titles(dataset: str) -> None:
    """As in the nearest view of UniDEC's code; with labels as long as rows an epoch takes several times longer."""
    assert load_card(dataset).label_text == "title"


def test_the_rates_behind_null_are_the_papers() -> None:
    """UniDEC: 1e-4 for the encoder, 2e-4 for heads, 1e-3 for Psi (thesis 2.4; preprint, section 4)."""
    rates = Encoder.learning_rates
    assert (rates.encoder, rates.heads, rates.classifier) == (1e-4, 2e-4, 1e-3)


def test_a_user_sees_what_a_paper_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("ls", "papers", "--method", "unidec-thesis", "--json") == 0
    rows = [row for row in json.loads(capsys.readouterr().out) if row["setting"] == "eta"]
    assert [(row["value"], row["status"], row["datasets"], row["rows"]) for row in rows] == [
        (0, "stated", [], ["thesis-2.5/*-no-hard/*"]),
        (6, "stated", [], []),
    ]
    assert call("ls", "papers", "--method", "unidec-thesis") == 0
    shown = capsys.readouterr().out
    assert "entries of unidec-thesis" in shown
    assert "row thesis-2.5/*-no-hard/*" in shown
    assert "thesis 2.4.3: typically 6" in shown
    assert "unsaid: nowhere" in shown
    assert call("ls", "papers", "--json") == 0
    assert {row["name"] for row in json.loads(capsys.readouterr().out)} == set(presets())


def test_parameters_have_a_word_of_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("ls", "parameters", "--method", "unidec-v1", "--json") == 0
    rows = {row["name"]: row["paper"] for row in json.loads(capsys.readouterr().out)}
    assert (rows["lambda_d"], rows["lambda"], rows["micro_batch_tokens"]) == ("stated", "stated, unsaid", "ours")
    assert call("ls", "parameters", "--method", "unidec-v1") == 0
    assert "harness ls papers --method unidec-v1" in capsys.readouterr().out
    assert call("ls", "parameters", "--method", "zeroshot") == 0
    assert "paper" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("unidek", "unknown method 'unidek'; did you mean 'unidec'?"),
        ("every", "unknown method 'every'"),
        ("../papers/dpr", "unknown method '../papers/dpr'"),
        ("", "unknown method ''"),
        ("zeroshot", "nothing is written of what a paper says of zeroshot; `harness ls papers` lists"),
    ],
)
def test_ls_papers_refuses(method: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("ls", "papers", "--method", method) == 2
    assert message in capsys.readouterr().err


GOOD = "settings:\n  neighbours: {value: 50, status: ours, why: a test}\n"
TWO = "settings: {power: [{value: 1, status: ours, why: a}, {value: 2, status: ours, why: a, on: [SETS]}]}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD, ""),
        (GOOD.replace("neighbours", "neighbors"), "unknown setting 'neighbors'; did you mean 'neighbours'?"),
        (GOOD.replace("ours", "guessed"), "status"),
        (GOOD.replace("a test}", "a test, rws: []}"), "neighbours.0.rws: unknown key; did you mean 'rows'?"),
        (GOOD.replace("a test}", "a test, on: [lf-pydocs]}"), "neighbours: takes one entry without `on` and `rows`"),
        (GOOD.replace("{value: 50", "{rows: [a/*], on: [b], value: 50"), "takes `on` or `rows`, not both"),
        (f"follows: tfidf-knn\n{GOOD}", "follows itself by way of tfidf-knn"),
        (f"follows: nobody\n{GOOD}", "nobody.yaml: no such file"),
        (TWO.replace("SETS", "x, x"), "power: two entries for x"),
        (TWO.replace("SETS", "x"), "power: unknown dataset 'x'"),
        ("settings: 3\n", "settings"),
        ("settings: {neighbours: }\n", "neighbours"),
        ("settings: {neighbours: []}\n", "neighbours: takes one entry"),
    ],
)
def test_validate_names_a_fault(text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(papers, "PAPER_FOLDER", tmp_path)
    monkeypatch.setattr("harness.cli.checks.PAPER_FOLDER", tmp_path)
    (tmp_path / "every.yaml").write_text("settings: {}\n")
    (tmp_path / "tfidf-knn.yaml").write_text(text)
    counts, faults = validate_all([])
    assert counts["papers"] == 1
    assert len(faults) == bool(message), faults
    assert message in "\n".join(faults)
    if message:
        assert str(tmp_path) in faults[0]


def test_a_chain_that_closes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(papers, "PAPER_FOLDER", tmp_path)
    for name, other in (("dpr", "ance"), ("ance", "dpr")):
        (tmp_path / f"{name}.yaml").write_text(f"follows: {other}\nsettings: {{}}\n")
    with pytest.raises(UserError, match="follows itself by way of ance, dpr"):
        claims("dpr")
