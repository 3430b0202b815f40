"""Which runs figures show, and under which names and looks."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from harness.report.figures.chosen import comparable, default_runs, remarks, titles
from harness.report.figures.style import COLOURS, MARKERS, looks, shown
from tests.figure_runs import DATASET, config_of, evidence, run


def seeds_of(*records):  # type: ignore[no-untyped-def]
    return {(group.method, group.encoder): list(group.records) for group in default_runs(evidence(*records), DATASET)}


def test_of_equal_settings_and_seed_the_newest_run_counts() -> None:
    old, new, other = run(p1=50, moment=1), run(p1=60, moment=9), run(p1=70, moment=5, seed=3)
    (group,) = default_runs(evidence(new, old, other), DATASET)
    assert {seed: record.run_id for seed, record in group.records.items()} == {0: new.run_id, 3: other.run_id}
    assert sorted(group.values("P@1")) == [new.metrics["P@1"], other.metrics["P@1"]]


def test_only_finished_runs_on_test_rows_of_the_dataset_count() -> None:
    """fault 61: a failed run is in no figure"""
    trial = run(moment=3, seed=3, config=config_of("dpr", evaluate="validation") | {"seed": 3})
    elsewhere = run(moment=4, seed=4, dataset={"name": "lf-other", "digest": "cd", "filter": True})
    nameless = run(moment=5, seed=5, config={"seed": 5})
    good = run(moment=1, seed=1)
    failed = run(moment=2, seed=2, status="failed")
    assert seeds_of(good, failed, trial, elsewhere, nameless) == {("dpr", "static"): [1]}


def test_versions_never_share_a_figure_and_the_rest_is_told() -> None:
    """fault 62: data, filter or metrics of another version"""
    data = run().dataset
    usual = [run(moment=1, seed=1), run(moment=2, seed=2), run(moment=3, seed=3)]
    others = [
        run(moment=10, seed=4, dataset={**data, "digest": "cd" * 32}),
        run(moment=11, seed=5, dataset={**data, "filter": False}),
        run(moment=12, seed=6, metric_version=2),
        run(moment=13, seed=7, dataset={**data, "propensity": {"a": 0.5, "b": 0.4}}),
    ]
    found = comparable(evidence(*others, *usual), DATASET)
    assert list(found.records) == usual
    assert found.left_out == 4
    assert "Left out: 4 runs on another version" in found.caption
    assert "Left out" not in comparable(evidence(*usual), DATASET).caption


def test_between_versions_with_as_many_runs_the_newest_is_shown() -> None:
    old, new = run(moment=1), run(moment=2, metric_version=2)
    assert comparable(evidence(old, new), DATASET).records == (new,)
    assert comparable(evidence(new, old), DATASET).records == (new,)


def test_a_method_is_shown_with_its_default_settings() -> None:
    default = run("dpr", moment=1)
    changed = run("dpr", moment=2, seed=1, config=config_of("dpr", params__batch_size=7) | {"seed": 1})
    elsewhere = run("ance", moment=3, config=config_of("ance", params__batch_size=7))
    records = evidence(default, changed, elsewhere)
    groups = default_runs(records, DATASET)
    assert [(group.method, list(group.records.values())) for group in groups] == [("dpr", [default])]
    assert "Not shown, for want of such a run: ance." in remarks(comparable(records, DATASET), groups)


def test_a_setting_that_an_older_record_does_not_have_is_no_difference() -> None:
    config = config_of("dpr")
    del config["params"]["batch_size"], config["search"]
    assert seeds_of(run(moment=1, config=config), run(moment=2, seed=1)) == {("dpr", "static"): [0, 1]}


def test_encoders_are_groups_of_their_own_and_the_rare_one_is_named() -> None:
    records = [run("dpr", moment=1), run("ance", moment=2), run("zeroshot", moment=3)]
    records.append(run("zeroshot", moment=4, config=config_of("zeroshot", encoder="minilm")))
    groups = default_runs(evidence(*records), DATASET)
    assert titles(groups) == ["ance", "dpr", "zeroshot (minilm)", "zeroshot"]
    assert "encoder static unless another is named" in remarks(comparable(evidence(*records), DATASET), groups)


def test_a_method_of_another_package_is_shown_as_it_was_run_most_often() -> None:
    def foreign(seed: int, width: int):  # type: ignore[no-untyped-def]
        config = {"method": "foreign", "encoder": "static", "seed": seed, "params": {"width": width}}
        return run(moment=width + seed, seed=seed, config=config)

    (group,) = default_runs(evidence(foreign(0, 1), foreign(1, 1), foreign(0, 9)), DATASET)
    assert [record.config["params"]["width"] for record in group.records.values()] == [1, 1]


def test_views_are_those_that_all_runs_have() -> None:
    both = run(moment=1, views={"de": {"P@1": 1.0}, "clf": {"P@1": 2.0}})
    one = run(moment=2, seed=1, views={"clf": {"P@1": 4.0}})
    (group,) = default_runs(evidence(both, one), DATASET)
    assert group.views == ("clf",)
    assert list(group.values("P@1", "clf")) == [2.0, 4.0]


@given(st.lists(st.text(max_size=12), max_size=40), st.sampled_from(["unidec", "dexml-hnm", "zeroshot"]))
def test_no_two_methods_look_alike_and_known_ones_always_look_the_same(names: list[str], known: str) -> None:
    found = looks([*names, known])
    assert found[known] == looks([known])[known]
    assert found == looks([*reversed(names), known])
    for one, other in combinations(found.values(), 2):
        assert (one.colour, one.marker) != (other.colour, other.marker)
    assert {look.colour for look in found.values()} <= set(COLOURS)
    assert {look.marker for look in found.values()} <= set(MARKERS)


@given(st.text(max_size=80))
def test_a_shown_name_is_one_printable_line(name: str) -> None:
    text = shown(name)
    assert text
    assert len(text) <= 36
    assert not text.startswith("_")
    assert all(letter.isprintable() or letter == "\u2009" for letter in text)
