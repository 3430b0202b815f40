"""The table of what each paper says: whole, and equal to the settings that a run of the preset gets on each dataset."""

from collections import Counter
from pathlib import Path

import pytest

from harness.data.card import CARD_FOLDER, load_card
from harness.io.models import read_model
from harness.model.encoders.encoder import Encoder
from harness.settings.method import METHOD_FOLDER, methods, read_method_card
from harness.settings.papers import BESIDE, PAPER_FOLDER, PaperSettings, claim_on, claims, presets, settings_of
from harness.settings.resolve import resolve

LF = [path.stem for path in sorted(CARD_FOLDER.glob("lf-*.yaml")) if load_card(path.stem).source == "repository"]
LIBRARY = {"parabel"}
"""Methods of a paper whose code and settings are another library's."""


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
    """One entry is for all other datasets, no dataset is named twice, and each of them has a card."""
    for name, entries in read_model(path, PaperSettings).settings.items():
        named = Counter(dataset for entry in entries for dataset in entry.on)
        assert sum(not entry.on for entry in entries) == 1, name
        assert set(named) <= set(LF), name
        assert max(named.values(), default=1) == 1, name


def test_a_preset_has_only_what_its_own_method_has() -> None:
    """`every` is shared by all and `dexml-inbatch` follows others: nothing in a file is for nobody."""
    for path in PAPER_FOLDER.glob("*.yaml"):
        own = set(read_model(path, PaperSettings).settings)
        known = set(settings_of(path.stem)) if path.stem != "every" else {n for p in presets() for n in settings_of(p)}
        assert own <= known, path.stem


def of_lf_alone(preset: str) -> set[str]:
    """Settings that fit the LF sets and their transformer, and nothing else."""
    return set(BESIDE) | {"epochs", "dim"} if "unidec" in preset or "depsl" in preset else {"max_len"}


@pytest.mark.parametrize("dataset", [*LF, "synthetic"])
@pytest.mark.parametrize("preset", presets())
def test_presets_are_the_papers(preset: str, dataset: str) -> None:
    """On data of no paper, too, where the entries hold that name no dataset."""
    config = resolve(preset, dataset, [])[0].model_dump(mode="json")
    found = {**{name: config[name] for name in BESIDE}, **config["params"]}
    wanted = {name: claim_on(entries, dataset).value for name, entries in claims(preset).items()}
    compared = set(wanted) - (of_lf_alone(preset) if dataset not in LF else set())
    assert {name: found[name] for name in compared} == {name: wanted[name] for name in compared}


@pytest.mark.parametrize("dataset", LF)
def test_labels_of_full_text_sets_are_titles(dataset: str) -> None:
    """As in the nearest view of UniDEC's code; with labels as long as rows an epoch takes several times longer."""
    assert load_card(dataset).label_text == "title"


def test_the_rates_behind_null_are_the_papers() -> None:
    """UniDEC: 1e-4 for the encoder, 2e-4 for heads, 1e-3 for Psi (thesis 2.4; preprint, section 4)."""
    rates = Encoder.learning_rates
    assert (rates.encoder, rates.heads, rates.classifier) == (1e-4, 2e-4, 1e-3)
