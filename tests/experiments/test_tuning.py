"""Settings for a table of our own: from a file of ranges to studies, and from studies to rows that can be run."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.cli import tune as tuning_command
from harness.cli.checks import check_tuning
from harness.errors import UserError
from harness.experiments import tune as tuning
from harness.experiments.sweep.space import parse_over, starts, to_json
from harness.experiments.tune import Tuning, kept_studies, read_tuning, table_text, tunings
from harness.report.results import Study, Trial, shown_space
from harness.run import resolve_config
from harness.settings import published
from harness.settings.layers import Layer
from harness.settings.published import published_table, read_table
from methods.unidec import METHOD
from tests.experiments.test_sweep import workers  # noqa: F401  a fixture
from tests.support.commands import call
from tests.support.sweeps import Act

DATASET = "synthetic"

ROOT = Path(__file__).parents[2]
OVER = "lambda,tau,lr_encoder=1e-4:1e-2:log"
FILE = f"""
table: demo
caption: two methods on made data
metrics: [P@1, PSP@5]
objectives: [P@1, P@5]
trials: 3
validation: 0.1
seeds: {{{DATASET}: [4, 5]}}
rows:
  - {{row: frozen, label: Frozen, method: zeroshot, settings: {{encoder: tiny}}}}
  - row: unidec
    label: UniDEC
    method: unidec
    settings: {{encoder: tiny, epochs: 2, batch_size: 60, warmup_epochs: 1.0}}
    over: "{OVER}"
"""

LACKING = '  - {row: one, label: One, method: unidec, over: "lambda", datasets: [lf-pydocs]}'


BEFORE = {"encoder": "tiny", "params.epochs": 2, "params.batch_size": 60, "params.beta": 3}
NOW = {**BEFORE, "params.optimiser_table": "exact"}


def study(name: str, *values: tuple[float, float] | None, **changes: Any) -> Study:
    """A study of trials with these objectives; None for one that failed."""
    trials = [
        Trial(
            number=number,
            state="FAIL" if pair is None else "COMPLETE",
            values={} if pair is None else dict(zip(("P@1", "P@5"), pair, strict=True)),
            params={"lambda": 0.123456, "tau": 0.04 + number / 100, "lr_encoder": 1.23456e-3},
            seconds=1.0,
        )
        for number, pair in enumerate(values)
    ]
    metadata: dict[str, Any] = {
        "name": name,
        "method": "unidec",
        "dataset": DATASET,
        "digest": "d",
        "objectives": ["P@1", "P@5"],
        "space": shown_space(to_json(parse_over(OVER, "unidec", METHOD.params))),
        "settings": {"validation": 0.1},
        "trials": trials,
        "best": [0],
        "base": NOW,
    }
    return Study(**{**metadata, **changes})


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tuning]:
    """A file of two rows; its table, and the studies it is made from, go to a folder of the test."""
    for name in ("tuning", "tuned", "reports"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tuning, "TUNING_FOLDER", tmp_path / "tuning")
    for module in (tuning, published):
        monkeypatch.setattr(module, "TUNED_FOLDER", tmp_path / "tuned")
    monkeypatch.setattr(tuning_command, "REPORTS", tmp_path / "reports")
    (tmp_path / "tuning" / "demo.yaml").write_text(FILE)
    published_table.cache_clear()
    yield read_tuning("demo")
    published_table.cache_clear()


def test_the_largest_sum_is_chosen_and_of_equals_the_first() -> None:
    for values, number in (
        (((50.0, 10.0), None, (40.0, 20.0), (45.0, 16.0), (61.0, 0.0)), 3),
        ((None, (40.0, 20.0), (50.0, 10.0)), 1),
        ((None,), None),
    ):
        best = study("s", *values).chosen
        assert (best and best.number) == number


def test_a_row_has_what_its_trial_drew_and_can_be_run(demo: Tuning, tmp_path: Path) -> None:
    name = f"demo-unidec-{DATASET}"
    text = table_text(demo, {name: study(name, (1.0, 2.0), (9.0, 5.0), None)})
    assert text is not None
    (tmp_path / "tuned" / "demo.yaml").write_text(text)
    table = read_table(tmp_path / "tuned" / "demo.yaml")
    assert table.own
    assert table.seeds == {DATASET: [4, 5]}
    frozen, row = table.rows
    assert frozen.chosen == "nothing to search"
    assert row.chosen == "trial 2 of 3; on validation rows P@1 9.00, P@5 5.00"
    drawn = {"lambda": 0.123, "temperature": 0.05, "temperature_classifier": 0.05, "lr_encoder": 0.00123}
    assert row.settings == {"encoder": "tiny", "epochs": 2, "batch_size": 60, "warmup_epochs": 1.0, **drawn}
    assert set(row.results.values()) == {None}
    config, _ = resolve_config("unidec", DATASET, [Layer("row", row.settings)])
    assert config.params["lambda"] == 0.123


@pytest.mark.parametrize(
    "change",
    [
        {"objectives": ["P@1", "P@3"]},
        {"space": {"lambda": {"low": 0.1, "high": 0.9}}},
        {"settings": {"validation": 0.3}},
        {"settings": {}},
        {"method": "depsl"},
        {"dataset": "lf-pydocs"},
        {"base": NOW | {"params.batch_size": 61}},  # as a card may set it, without any range naming it
        {"base": NOW | {"params.gone": 1}},
        {"base": NOW | {"encoder": "static"}},
        {"base": BEFORE},  # searched with another optimiser of Psi
        {"base": None},
    ],
)
def test_a_search_of_an_earlier_version_of_file_method_or_card_is_none_of_it(
    demo: Tuning, change: dict[str, Any]
) -> None:
    name, values = f"demo-unidec-{DATASET}", ((9.0, 9.0), (1.0, 2.0), (1.0, 2.0))
    assert "unidec" in str(table_text(demo, {name: study(name, *values)}))
    assert "unidec" not in str(table_text(demo, {name: study(name, *values, **change)}))
    assert "unidec" not in str(table_text(demo, {name: study(name, *values, (1.0, 2.0))}))  # another budget
    for studies in ({}, {name: study(name, (1.0, 2.0))}, {name: study(name, None, None, None)}):  # it has not ended
        assert "unidec" not in str(table_text(demo, studies))


@pytest.mark.usefixtures("workspace")
def test_from_the_file_to_the_table(
    demo: Tuning,
    tmp_path: Path,
    workers: Callable[[Act], None],  # noqa: F811
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers(lambda study, trial, slot: study.tell(trial, [100 * trial.params["lambda"], slot]))
    assert call("tune", "demo", "--dry-run") == 0
    assert not list((tmp_path / "reports").rglob("*.json"))
    assert call("tune", "demo") == 0
    (kept,) = kept_studies(tmp_path / "reports").values()
    assert len(kept.trials) == 3
    capsys.readouterr()
    assert call("tune", "demo", "--dry-run", "--json") == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["row"], told["dataset"], told["ended"], told["trials"]) == ("unidec", DATASET, 3, 3)
    best = kept.chosen
    assert best is not None
    assert told["best"] == {"trial": best.number, "values": best.values, "params": best.params}
    first = kept.trials[0].params  # the settings as they stand; of a null rate, the encoder's
    assert first == {"lambda": 0.5, "tau": pytest.approx(1 / 27), "lr_encoder": 1e-4}
    assert [row.row for row in published_table("demo").rows] == [f"frozen/{DATASET}", f"unidec/{DATASET}"]
    assert (tmp_path / "tuned" / "demo.yaml").read_text() == table_text(demo, {kept.name: kept})
    assert published_table("demo").rows[1].elsewhere == demo.rows[1].settings
    capsys.readouterr()
    assert call("bench", "--table", "demo", "--dry-run", "--json") == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert sorted((cell["method"], cell["seed"]) for cell in cells) == [
        *(("unidec", 4), ("unidec", 5)),
        *(("zeroshot", 4), ("zeroshot", 5)),
    ]
    assert call("bench", "--table", "demo", "--dry-run", "--json", "--seeds", "7") == 0
    assert {cell["seed"] for cell in json.loads(capsys.readouterr().out)["cells"]} == {7}
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path / "another machine"))
    assert call("tune", "demo") == 0
    assert "1 of 1 searches have ended; --anew repeats them" in capsys.readouterr().err
    assert not (tmp_path / "another machine" / "studies").exists()
    assert call("tune", "demo", "--anew") == 0
    assert list((tmp_path / "another machine").rglob("study.json"))
    assert [one.params for one in kept_studies(tmp_path / "reports")[kept.name].trials] == [
        one.params for one in kept.trials
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "unknown table to tune 'nothing'"),
        (["demo", "--rows", "unidek"], "did you mean 'unidec'?"),
        (["demo", "--datasets", "lf-amazon-131k"], "unknown dataset of demo"),
        (["demo", "--rows", "frozen"], "no row is left that searches anything"),
    ],
)
@pytest.mark.usefixtures("demo")
def test_what_is_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("tune", *words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("trials: 3", "trials: 0"), "trials: synthetic takes a number from 1"),
        (("trials: 3", "trials: {lf-pydocs: 3, synthetic: 3}"), "lf-pydocs has no seeds"),
        (("table: demo", "table: other"), "make them equal"),
        (("row: frozen", "row: unidec"), "rows named twice: unidec"),
        (("method: zeroshot,", "method: zeroshot, datasets: [elsewhere],"), "elsewhere has no seeds"),
        (("validation: 0.1", "validation: 0.1\nsecret: 1"), "secret"),
        (("metrics: [P@1", "metrics: [P@7"), "unknown metric 'P@7'"),
        (("[4, 5]", "[4, 4]"), "different whole numbers"),
        (("trials: 3", "begins: {synthetic: lf-pydocs}\ntrials: 3"), "begins: .* lf-pydocs before synthetic"),
        (("epochs: 2", "validation: {size: 0.5}"), "the validation split is the same"),
        (("rows:", "rows:\n  - {row: a, label: A, method: unidec, shares: nobody}"), "'a': shares a row above"),
        (("    over:", "  - {row: a, label: A, method: dpr, shares: unidec}\n#"), "'a': shares a row above"),
        (
            ("[4, 5]}\nrows:", "[4, 5], lf-pydocs: [0]}\nbegins: {lf-pydocs: synthetic}\nrows:\n" + LACKING),
            "a search on synthetic that it lacks",
        ),
    ],
)
@pytest.mark.usefixtures("demo")
def test_a_file_with_a_fault_is_told(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    (tmp_path / "tuning" / "demo.yaml").write_text(FILE.replace(*change))
    with pytest.raises(UserError, match=message):
        read_tuning("demo")


@pytest.mark.parametrize("name", sorted(tunings()))
def test_what_is_committed_can_be_searched_and_is_what_its_studies_give(name: str) -> None:
    committed = read_tuning(name)
    for row in committed.rows:
        if row.over:
            config, _ = resolve_config(row.method, "lf-pydocstitles", [Layer("row", row.settings)])
            space = parse_over(row.over, row.method, tuning.load_method(row.method).params)
            assert starts(space, config)[0].keys() == space.keys(), "the first trial would not be its own settings"
    file = published.TUNED_FOLDER / f"{name}.yaml"
    assert file.read_text() == table_text(committed, kept_studies(ROOT / "reports"))


def test_a_search_begins_with_what_was_found_on_the_dataset_before(demo: Tuning, tmp_path: Path) -> None:
    text = FILE.replace("[4, 5]}", "[4, 5], lf-pydocs: [0]}").replace(
        "validation", f"begins: {{lf-pydocs: {DATASET}}}\nvalidation"
    )
    (tmp_path / "tuning" / "demo.yaml").write_text(text)
    both, name = read_tuning("demo"), f"demo-unidec-{DATASET}"
    studies = {name: study(name, (1.0, 2.0), (9.0, 5.0), None)}
    requests = [both.request(row, dataset, "none", studies) for dataset, row in both.searches()]
    assert [one.points for one in requests] == [(), ({"lambda": 0.123, "tau": 0.05, "lr_encoder": 0.00123},)]
    there = {"lambda": 0.123, "tau": 0.05, "lr_encoder": 0.00123}
    other = "demo-unidec-lf-pydocs"
    for params, rows in ((there, 2), ({**there, "tau": 0.051}, 1)):  # one that did not try it is no such search
        trials = [one.model_copy(update={"params": params}) for one in study(other, *[(1.0, 2.0)] * 3).trials]
        found = study(other, dataset="lf-pydocs").model_copy(update={"trials": trials})
        assert str(table_text(both, {**studies, other: found})).count("row: unidec/") == rows
    first = {name: study(name, (9.0, 5.0), (1.0, 2.0), None)}
    assert both.request(demo.rows[1], "lf-pydocs", "none", first).points == (), "its own settings come first anyway"
    with pytest.raises(UserError, match=f"not searched yet; first run: .* --datasets {DATASET} --rows unidec"):
        both.request(demo.rows[1], "lf-pydocs", "none", {name: study(name, (1.0, 2.0))})


@pytest.mark.parametrize(
    ("change", "message"), [(("lambda,tau", "lambada"), "lambda"), (("epochs: 2", "epoks: 2"), "epoks")]
)
@pytest.mark.usefixtures("demo")
def test_validate_looks_at_it(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    check_tuning("demo")
    (tmp_path / "tuning" / "demo.yaml").write_text(FILE.replace(*change))
    with pytest.raises(UserError, match=message):
        check_tuning("demo")


def test_rows_that_share_a_search_have_one_study(demo: Tuning, tmp_path: Path) -> None:
    settings = "settings: {encoder: tiny, epochs: 2, batch_size: 60, warmup_epochs: 1.0}"
    text = f"{FILE}  - {{row: both, label: Both, method: unidec, scorer: de, {settings}, shares: unidec}}\n"
    (tmp_path / "tuning" / "demo.yaml").write_text(text)
    both = read_tuning("demo")
    name = f"demo-unidec-{DATASET}"
    file = tmp_path / "tuned" / "demo.yaml"
    file.write_text(str(table_text(both, {name: study(name, (1.0, 2.0), (9.0, 5.0), None)})))
    _, first, second = read_table(file).rows
    assert (first.settings | {"scorer": "de"}, first.chosen) == (second.settings, second.chosen)
    assert (first.scorer, second.scorer) == (None, "de")


@pytest.mark.usefixtures("workspace")
def test_each_of_two_tables_keeps_its_seeds(demo: Tuning, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tuned" / "demo.yaml").write_text(str(table_text(demo, {})))
    for tables in ("demo,thesis-2.6", "thesis-2.6,demo"):
        assert call("bench", "--table", tables, "--datasets", DATASET, "--dry-run", "--json") == 0
        cells = json.loads(capsys.readouterr().out)["cells"]
        assert {cell["seed"] for cell in cells if cell["method"] == "zeroshot"} == {4, 5}
        assert {cell["seed"] for cell in cells if cell["method"] == "depsl-v1"} == {0}


def test_a_table_without_ranges_is_written_as_it_stands(
    demo: Tuning, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    over = f'    over: "{OVER}"\n'
    (tmp_path / "tuning" / "demo.yaml").write_text(FILE.replace(over, ""))
    assert call("tune", "demo", "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []
    assert not list((tmp_path / "tuned").iterdir())
    assert call("tune", "demo") == 0
    assert "searches nothing; run it: python -m harness bench --table demo" in capsys.readouterr().out
    assert published_table("demo").rows[1].settings == demo.rows[1].settings
