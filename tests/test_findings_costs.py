"""Claims about the time of trainings: which seconds count, and on which machine."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.report.evidence import machine_of
from harness.report.findings import Findings, claims
from tests.test_declared import record
from tests.test_findings import claim, evidence


@pytest.mark.parametrize(("share", "verdict"), [(1.0, "holds"), (0.5, "does not hold")])
def test_a_share_of_the_training_time(share: float, verdict: str, tmp_path: Path) -> None:
    """Both were trained for two hours."""
    (finding,) = Findings(evidence(tmp_path, 0.5, 0.5), [claim({"cheaper": share, "metrics": []})]).all
    assert finding.verdict == verdict
    assert finding.outcomes[0].values == (7200.0, 7200.0)


@pytest.mark.parametrize(
    ("device", "measure", "verdict"),
    [
        ("cpu", "training, CPU s", "holds"),
        ("cuda", "training s", "does not hold"),
        (None, "training s", "does not hold"),
    ],
)
def test_on_a_processor_its_own_seconds_count(device: str | None, measure: str, verdict: str, tmp_path: Path) -> None:
    """A clock also runs while other work has the machine; beside a GPU the processor only waits."""
    found = evidence(tmp_path, 0.5, 0.5)
    runs = tuple(
        one.model_copy(
            update={
                "environment": one.environment | {"device": device},
                "training": {
                    "seconds": 7200.0,
                    "processor_seconds": 100.0 if one.run_id.startswith("with-") else 900.0,
                },
            }
        )
        for one in found.records
    )
    half = [claim({"cheaper": 0.5, "metrics": []})]
    (finding,) = Findings(replace(found, records=runs), half).all
    assert (finding.verdict, finding.outcomes[0].measure) == (verdict, measure)
    old = runs[0].model_copy(update={"training": {"seconds": 7200.0}})
    (finding,) = Findings(replace(found, records=(old, *runs[1:])), half).all
    assert finding.outcomes[0].measure == "training s", "a record of before has no processor seconds"


def test_seconds_of_two_machines_are_not_compared(tmp_path: Path) -> None:
    """A processor twice as fast would make any method look cheap; runs on one that both have seen are."""
    found = evidence(tmp_path, 0.5, 0.5, seeds=3)

    def measured(*machines: str) -> Findings:
        """The runs with and without in turn, seed by seed; those on a fast machine take a tenth of the time."""
        runs = tuple(
            one.model_copy(
                update={
                    "environment": one.environment | {"cpu": cpu, "device": "cpu"},
                    "training": dict.fromkeys(claims.TIMES, 10.0 if cpu == "fast" else 100.0),
                }
            )
            for one, cpu in zip(found.records, machines, strict=True)
        )
        return Findings(replace(found, records=runs), [claim({"cheaper": 0.5, "metrics": []})])

    assert measured("fast", "slow", "fast", "slow", "fast", "slow").all[0].outcomes == ()
    (outcome,) = measured("fast", "slow", "fast", "slow", "slow", "slow").all[0].outcomes
    assert outcome.values == (100.0, 100.0)
    assert (len(outcome.ahead.records), len(outcome.behind.records)) == (1, 3)
    (outcome,) = measured("fast", "fast", "fast", "fast", "slow", "slow").all[0].outcomes
    assert outcome.values == (10.0, 10.0)
    (outcome,) = measured("slow", "slow", "slow", "slow", "fast", "fast").all[0].outcomes
    assert outcome.values == (100.0, 100.0)


def test_runs_on_a_processor_that_nobody_knows_are_not_compared(tmp_path: Path) -> None:
    found = evidence(tmp_path, 0.5, 0.5)
    runs = tuple(one.model_copy(update={"environment": {"harness": "0.1.0", "cores": 2}}) for one in found.records)
    half = [claim({"cheaper": 0.5, "metrics": []})]
    assert Findings(found, half).all[0].outcomes
    assert Findings(replace(found, records=runs), half).all[0].outcomes == ()


@pytest.mark.parametrize("key", ["cpu", "cores", "device"])
def test_what_makes_a_machine(key: str) -> None:
    one = record("a", environment={"cpu": "a", "cores": 2, "device": "cuda"})
    other = record("a", environment={"cpu": "a", "cores": 2, "device": "cuda"} | {key: "other"})
    assert machine_of(one) != machine_of(other)
    assert machine_of(record("a", environment={"cpu": "a", "cores": 2, "device": None})) == "a, 2 cores"


@pytest.mark.parametrize("odd", ["abc", [], {}, float("nan"), 10**400, -5, True, None])
def test_costs_that_are_no_numbers_are_not_compared(odd: Any, tmp_path: Path) -> None:
    found = evidence(tmp_path, 0.5, 0.5)
    runs = tuple(one.model_copy(update={"training": dict.fromkeys(claims.TIMES, odd)}) for one in found.records)
    half = [claim({"cheaper": 0.5, "metrics": []})]
    assert Findings(replace(found, records=runs), half).all[0].outcomes == ()
