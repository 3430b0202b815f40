"""Published rows: the figures are those of the papers, the settings are accepted, and a row is a layer of a run."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.cli.checks import check_published, validate_all
from harness.errors import UserError
from harness.run import resolve_config
from harness.settings import published
from harness.settings.layers import Layer
from harness.settings.published import (
    PRETRAINED,
    implausible,
    layer,
    published_row,
    published_table,
    published_tables,
    read_table,
    results,
    settings_elsewhere,
    varied_keys,
)
from tests.support.commands import call

ROOT = Path(__file__).parents[2]

COUNTS = {
    "dexml-readme": (1, 1, 0),
    "lever": (4, 0, 0),
    "preprint-1": (46, 28, 7),
    "preprint-2": (11, 11, 2),
    "preprint-5": (24, 24, 0),
    "preprint-6": (10, 10, 0),
    "preprint-7": (6, 6, 0),
    "renee-12": (4, 4, 0),
    "renee-17": (10, 10, 0),
    "renee-2": (6, 6, 1),
    "thesis-1.2": (12, 12, 2),
    "thesis-1.3": (52, 24, 4),
    "thesis-1.4": (4, 4, 0),
    "thesis-1.6": (10, 8, 2),
    "thesis-1.7": (14, 6, 1),
    "thesis-2.2": (36, 28, 6),
    "thesis-2.3": (15, 15, 0),
    "thesis-2.4": (30, 30, 0),
    "thesis-2.5": (24, 24, 0),
    "thesis-2.6": (16, 16, 0),
}
"""Per table: rows, rows that can be run, rows marked as slips."""

CELLS = [
    ("thesis-1.2/surrogate/lf-wikiseealsotitles-320k", "PSP@1", 22.03),
    ("thesis-1.3/astec-gandalf/lf-amazontitles-131k", "PSP@5", 48.31),
    ("thesis-1.3/eclare-gandalf/lf-wikititles-500k", "P@1", 45.12),
    ("thesis-1.3/siamesexml/lf-wikiseealsotitles-320k", "P@3", 21.43),
    ("thesis-1.4/gandalf/lf-wikiseealsotitles-320k", "C@5", 32.21),
    ("thesis-1.6/synonyms/lf-wikiseealsotitles-320k", "P@5", 9.92),
    ("thesis-1.7/inceptionxml-lf-gandalf-0.1/lf-amazontitles-131k", "P@1", 42.09),
    ("thesis-2.2/unidec/lf-amazon-131k", "P@1", 47.80),
    ("thesis-2.2/cascadexml/lf-wikiseealsotitles-320k", "P@3", 15.71),
    ("thesis-2.2/depsl/lf-amazontitles-1.3m", "d", 384),
    ("thesis-2.3/renee/lf-wikipedia-500k", "PSP@5", 56.70),
    ("thesis-2.3/unidec/lf-wikiseealso-320k", "|L_B|", 3500),
    ("thesis-2.3/depsl/lf-amazontitles-1.3m", "hours", 53),
    ("thesis-2.3/dexml-full/lf-amazontitles-1.3m", "memory GB", 640),
    ("thesis-2.4/ds-ds/unidec-clf/lf-wikititles-500k", "P@1", 30.27),
    ("thesis-2.5/unidec-clf-no-hard/lf-wikiseealso-320k", "P@5", 18.80),
    ("thesis-2.6/depsl-sc-dual/lf-amazontitles-1.3m", "PSP@5", 36.33),
    ("preprint-1/unidec/lf-amazon-131k", "P@1", 48.00),
    ("preprint-1/dexa-de/lf-amazontitles-1.3m", "P@1", 51.92),
    ("preprint-2/dexml-hard-5/lf-amazontitles-1.3m", "P@5", 40.74),
    ("preprint-2/renee/lf-amazon-131k", "GPU", "4 x V100"),
    ("preprint-5/unidec-de-no-hard/lf-wikiseealso-320k", "PSP@3", 36.20),
    ("preprint-6/6-supconxml-pos-clf/lf-amazontitles-1.3m", "P@3", 46.30),
    ("preprint-7/2-supconxml/lf-amazon-131k", "PSP@5", 53.01),
    ("renee-17/ngame-fused/lf-wikipedia-500k", "PSnDCG@5", 56.11),
]
"""Read a second time in the papers."""

FIRST = "demo-1/zeroshot/synthetic"
DEMO = """
table: demo-1
source: a demonstration
caption: the frozen encoder on made data
metrics: [P@1, P@3, hours]
unsaid: [everything]
rows:
  - row: zeroshot/synthetic
    label: Frozen
    dataset: synthetic
    method: zeroshot
    settings: {encoder: tiny, similarity: dot, seed: 7}
    results: {P@1: 12.50, P@3: 10.25, hours: null}
  - row: other/synthetic
    label: Other
    dataset: synthetic
    method: null
    results: {P@1: 90, P@3: 80, hours: 4}
    absent: Other is not part of this harness
"""


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A workspace whose only published table is `DEMO`."""
    monkeypatch.setattr(published, "PUBLISHED_FOLDER", tmp_path)
    monkeypatch.setattr(published, "TUNED_FOLDER", tmp_path / "tuned")
    published_table.cache_clear()
    (tmp_path / "demo-1.yaml").write_text(DEMO)
    yield tmp_path / "demo-1.yaml"
    published_table.cache_clear()


def test_every_table_has_all_its_rows() -> None:
    found = {
        name: (len(table.rows), sum(bool(row.method) for row in table.rows), sum(bool(row.slip) for row in table.rows))
        for name, table in published_tables().items()
        if not table.own
    }
    assert found == COUNTS


def test_figures_are_those_of_the_papers() -> None:
    assert [(name, column, published_row(name).results[column]) for name, column, _ in CELLS] == CELLS


def test_the_same_run_has_the_same_figures_in_every_table() -> None:
    tables = published_tables()
    baselines = ("ngame-de", "ngame-clf", "siamesexml", "dpr", "ance", "graphsage", "cascadexml")
    repeated = [("preprint-1", name, "thesis-2.2", name) for name in baselines]
    repeated += [("thesis-2.2", name, "thesis-2.3", name) for name in ("unidec", "depsl")]
    repeated += [("thesis-2.2", "unidec", "thesis-2.5", "unidec")]
    repeated += [
        ("thesis-2.4", f"ds-ds-bce/{head}", "thesis-2.5", head) for head in ("unidec", "unidec-de", "unidec-clf")
    ]
    compared = 0
    for first, one, second, other in repeated:
        for dataset in set(tables[first].datasets) & set(tables[second].datasets):
            left, right = results(first, dataset).get(one, {}), results(second, dataset).get(other, {})
            for column in set(left) & set(right):
                assert left[column] == right[column], (first, one, second, dataset, column)
                compared += 1
    assert compared > 200


def test_dashes_and_unreadable_digits_are_told_apart() -> None:
    dash = published_row("thesis-2.2/siamesexml/lf-amazon-131k")
    assert (dash.results["P@3"], dash.unreadable) == (None, [])
    blurred = published_row("thesis-1.3/decaf-gandalf/lf-wikiseealsotitles-320k")
    assert (blurred.results["PSP@5"], blurred.unreadable) == (None, ["PSP@5"])


def test_ablations_differ_only_where_the_paper_says() -> None:
    def params(row: str) -> dict[str, object]:
        chosen = published_row(row)
        config, _ = resolve_config(str(chosen.method), chosen.dataset, [layer(chosen)])
        return config.params

    def differing(first: str, second: str) -> dict[str, tuple[object, object]]:
        left, right = params(first), params(second)
        return {key: (left[key], right[key]) for key in left if left[key] != right[key]}

    wiki, amazon = "lf-wikititles-500k", "lf-amazon-131k"
    assert differing(f"thesis-2.4/ds-ds-bce/unidec/{wiki}", f"thesis-2.2/unidec/{wiki}") == {}
    assert differing(f"thesis-2.4/ds-ds/unidec/{wiki}", f"thesis-2.2/unidec/{wiki}") == {"bce_weight": (0.0, 1.0)}
    assert differing(f"thesis-2.5/unidec/{amazon}", f"thesis-2.5/unidec-no-hard/{amazon}") == {"eta": (6, 0)}
    assert differing(f"thesis-2.6/depsl-ds/{amazon}", f"thesis-2.6/depsl-ds-dual/{amazon}") == {"lambda_d": (1.0, 0.5)}
    assert differing(f"preprint-7/1-supconxml/{amazon}", f"preprint-7/3-supconxml/{amazon}") == {"lambda": (0.5, 0.3)}
    assert differing(f"preprint-7/3-supconxml/{amazon}", f"preprint-1/unidec/{amazon}") == {}
    assert differing(f"preprint-7/5-supconxml/{amazon}", f"preprint-7/3-supconxml/{amazon}") == {"dim": (512, 768)}


def test_what_a_table_varies_makes_a_row_on_other_data() -> None:
    heads = published_table("thesis-2.5")
    assert varied_keys(heads) == ["eta", "scorer"]
    assert settings_elsewhere(heads, "unidec-clf-no-hard") == {"eta": 0, "scorer": "clf"}
    losses = published_table("thesis-2.4")
    assert varied_keys(losses) == ["bce_weight", "loss", "loss_classifier", "scorer"]
    assert settings_elsewhere(losses, "ds-bce/unidec") == {
        "bce_weight": 0,
        "loss": "decoupled-softmax",
        "loss_classifier": "bce",
    }
    assert varied_keys(published_table("dexml-readme")) == []  # one row differs from no other
    methods = published_table("thesis-2.2")  # dim, batch sizes and encoders differ between methods: their recipes
    assert varied_keys(methods) == ["scorer"]
    assert settings_elsewhere(methods, "unidec") == {}
    assert settings_elsewhere(methods, "depsl") == {"loss": "decoupled-softmax"}  # the row says so
    bases = published_table("thesis-1.3")  # an encoder that a method brings along stays; a pretrained one does not
    assert settings_elsewhere(bases, "astec")["encoder"] == "astec"
    assert settings_elsewhere(bases, "ngame-renee") == {"augment": "one-hot"}


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_every_row_can_be_taken_to_other_data(name: str) -> None:
    table = published_table(name)
    for stem, method in {row.stem: row.method for row in table.rows if row.method}.items():
        settings = settings_elsewhere(table, stem)
        config, _ = resolve_config(method, "synthetic", [Layer(f"published {stem}", settings)])
        told = any(row.elsewhere is not None for row in table.rows if row.stem == stem)
        assert told or set(settings) <= set(varied_keys(table))
        assert settings.get("encoder") not in PRETRAINED
        assert all(config.params.get(key, value) == value for key, value in settings.items() if key == "eta")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("thesis-2.9/unidec/lf-amazon-131k", "unknown published table 'thesis-2.9'; did you mean 'thesis-2."),
        ("thesis-2.2/unidek/lf-amazon-131k", "did you mean thesis-2.2/unidec/lf-amazon-131k?"),
        ("thesis-2.2", "name a row of it, for example thesis-2.2/ngame-de/lf-amazon-131k"),
    ],
)
def test_a_wrong_name_suggests_the_nearest(name: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        published_row(name)
    assert message in str(caught.value)


def test_a_row_lies_over_the_card_and_under_the_command_line() -> None:
    row = published_row("preprint-1/supconde/lf-wikititles-500k")
    config, origins = resolve_config(str(row.method), row.dataset, [layer(row), Layer("--set", {"epochs": 2})])
    assert (config.method, config.dataset, config.encoder) == ("depsl-v1", "lf-wikititles-500k", "msmarco-distilbert")
    assert (config.params["dim"], origins["params.dim"]) == (512, f"published {row.name}")
    assert (config.params["epochs"], origins["params.epochs"]) == (2, "--set")
    assert origins["max_len"] == "card lf-wikititles-500k, defaults"


def test_run_takes_a_row(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(demo.parent / "runs")
    command = ["run", "--published", FIRST, "--out", out, "--track", "none"]
    assert call(*command, "--dataset", "synthetic:train=60,test=20,labels=30", "--set", "seed=3") == 0
    assert "published   Frozen on synthetic: P@1 12.50, P@3 10.25" in capsys.readouterr().out
    saved = json.loads(next(Path(out).glob("*/config.json")).read_text())
    assert (saved["config"]["seed"], saved["config"]["params"]) == (3, {"similarity": "dot"})
    assert saved["origins"]["params.similarity"] == f"published {FIRST}"
    assert saved["origins"]["seed"] == "--set seed=3"


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--published", "demo-1/other/synthetic"], "demo-1/other/synthetic cannot be run: Other is not part"),
        (["--published", "demo-1/zero/synthetic"], "did you mean demo-1/zeroshot/synthetic?"),
        (["--published", FIRST, "--resume", "x"], "leave --published out"),
    ],
)
def test_run_refuses(demo: Path, extra: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("run", "--track", "none", *extra) == 2
    assert message in capsys.readouterr().err


def test_validate_counts_rows_and_reports_their_faults(demo: Path) -> None:
    """fault 65"""
    typo = DEMO.replace("demo-1", "demo-2").replace("similarity: dot", "similarty: dot")
    (demo.parent / "demo-2.yaml").write_text(typo)
    counts, faults = validate_all([])
    assert counts["published rows"] == 4
    assert "published demo-2/zeroshot/synthetic: unknown key 'similarty'" in "\n".join(faults)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{P@1: 90, P@3: 80,", "{P@3: 80, P@1: 90,", "must have the columns P@1, P@3, hours, in order"),
        ("P@1: 90, P@3: 80,", "P@1: 80, P@3: 90,", "demo-1/other/synthetic: P@3 90 after P@1 80"),
        ("P@1: 90,", "P@1: 190,", "P@1 is 190; expected a percentage"),
        ("P@1: 90,", "P@1: ninety,", "P@1 is 'ninety'; expected a percentage"),
        ("row: other/synthetic", "row: zeroshot/synthetic", "rows named twice: zeroshot/synthetic"),
        ("row: other/synthetic", "row: other", "must end in /synthetic"),
        ("    absent: Other is not part of this harness\n", "", "say under `absent` why there is none"),
        ("method: zeroshot", "method: zeroshott", "unknown method 'zeroshott'; did you mean 'zeroshot'?"),
        ("table: demo-1", "table: demo-9", "make them equal"),
        ("label: Other", "labell: Other", "unknown key"),
        ("    absent: O", "    unreadable: [P@3]\n    absent: O", "a figure that cannot be read is null"),
        ("    absent: O", "    scorer: de\n    absent: O", "it has no settings, scorer or nearest either"),
        ("zeroshot/synthetic\n", "zeroshot/synthetik\n", "must end in"),
        ("encoder: tiny", "encoder: tinny", "unknown encoder 'tinny'; did you mean 'tiny'?"),
        (
            "other/synthetic\n    label: Other\n    dataset: synthetic",
            "other/nowhere\n    label: Other\n    dataset: nowhere",
            "unknown dataset 'nowhere'",
        ),
    ],
)
def test_a_faulty_table_is_named(demo: Path, old: str, new: str, message: str) -> None:
    """fault 65"""
    assert DEMO.count(old) >= 1
    demo.write_text(DEMO.replace(old, new, 1))
    _, faults = check_published(demo)
    assert message in "\n".join(faults)


def test_an_unknown_column_is_named(demo: Path) -> None:
    demo.write_text(DEMO.replace("P@3", "Q@3"))
    assert any("unknown column 'Q@3'" in fault for fault in check_published(demo)[1])


def test_a_scorer_must_be_what_the_settings_report(demo: Path) -> None:
    text = DEMO.replace("method: zeroshot\n", "method: unidec\n    scorer: de\n").replace("similarity: dot, ", "")
    demo.write_text(text)
    assert check_published(demo)[1] == [f"{FIRST}: scorer is de, but the settings report the scorer concat"]
    demo.write_text(text.replace("seed: 7", "scorer: de"))
    assert check_published(demo)[1] == []


def test_a_slip_is_let_through_and_coverage_may_not_fall(demo: Path) -> None:
    slip = "    slip: P@1 and P@3 are swapped\n    absent"
    demo.write_text(DEMO.replace("P@1: 90", "P@1: 70").replace("    absent", slip))
    row = read_table(demo).rows[1]
    assert row.slip
    assert implausible(row) == []
    unmarked = implausible(row.model_copy(update={"slip": ""}))
    assert unmarked == ["demo-1/other/synthetic: P@3 80 after P@1 70; mistyped?"]
    falling = row.model_copy(update={"slip": "", "results": {"C@1": 31.04, "C@3": 51.63, "C@5": 5.803}})
    assert len(implausible(falling)) == 1


def test_files_of_methods_are_shipped() -> None:
    """Package data is a list of patterns: a folder that is missing there is missing in a wheel."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["methods"]
    shipped = {path for pattern in settings for path in (ROOT / "methods").glob(pattern)}
    assert set((ROOT / "methods").rglob("*.yaml")) <= shipped
    assert set(published.table_paths().values()) <= shipped
