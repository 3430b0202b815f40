"""`harness plan` about classifier tables: in half the memory, in that of the host, and with ten million labels."""

import pytest
import torch

from harness.config import Layer
from harness.model.rows import RowTable
from harness.plan import Plan, cuda_target, make_plan
from harness.plan.report import verdict
from harness.plan.sizes import GIB
from harness.plan.steps import moment_parts
from harness.train.blocked import BlockedSgd
from harness.train.rowsparse import RowSparseAdam
from tests.commands import call

TEN_MILLION = "synthetic:train=100000,test=1000,labels=10000000"
LABELS, DIM = 1_305_265, 256
TABLE = LABELS * DIM


def planned(method: str, dataset: str = "lf-amazontitles-1.3m", memory: int = 24, **settings: object) -> Plan:
    return make_plan(method, dataset, [Layer("test", {"encoder": "static", **settings})], cuda_target(memory * GIB))


def held(plan: Plan, phase: str) -> tuple[float, float]:
    """Bytes of table and moments on the device and on the host, at a moment."""
    (found,) = (one for one in plan.phases if one.name == phase)
    parts = [part for part in found.parts if "classifier table" in part.name]
    return sum(part.device for part in parts), sum(part.host for part in parts)


@pytest.mark.parametrize(("precision", "number"), [("float32", 4), ("bfloat16", 2)])
def test_bytes_are_those_of_the_optimisers(precision: str, number: int) -> None:
    """12 or 6 bytes a weight with AdamW, 8 or 4 with momentum."""
    table = RowTable(torch.zeros(700, 32, dtype=getattr(torch, precision)))
    adam = RowSparseAdam(table)
    stage = planned("unidec", "synthetic:labels=700", dim=64, table_precision=precision).run.stages[0]
    real = sum(tensor.nbytes for tensor in (adam.exp_avg, adam.exp_avg_sq, adam.steps))
    assert sum(part.device for part in moment_parts(stage) if "classifier" in part.name) == real
    assert held(planned("unidec", table_precision=precision), "train step") == (3 * number * TABLE + 4 * LABELS, 0)
    sgd = BlockedSgd(table, name="classifier", lr=0.1, weight_decay=0.0, momentum=0.9)
    assert sgd.momentum is not None
    assert sgd.momentum.nbytes + table.weight.nbytes == 2 * number * 700 * 32
    assert held(planned("renee", table_precision=precision), "train step, one-vs-all") == (2 * number * TABLE, 0)


@pytest.mark.parametrize("method", ["unidec", "ngame", "renee"])
def test_a_host_table_is_on_the_host(method: str) -> None:
    device, host = planned(method), planned(method, table_device="host")
    phase = "evaluation"
    assert held(device, phase) == (4 * TABLE, 0)
    assert held(host, phase) == (0, 4 * TABLE)
    assert device.device_bytes - host.device_bytes > 3 * TABLE
    assert host.host_bytes >= device.host_bytes
    assert planned(method, table_device="auto").device_bytes == device.device_bytes
    assert planned(method, table_device="device").device_bytes == device.device_bytes
    assert host.disk == device.disk


def test_on_a_cpu_there_is_no_other_place() -> None:
    from harness.plan import cpu_target

    layers = [Layer("test", {"encoder": "static"})]
    here = make_plan("unidec", "lf-amazontitles-1.3m", layers, cpu_target())
    host = make_plan("unidec", "lf-amazontitles-1.3m", [*layers, Layer("test", {"table_device": "host"})], cpu_target())
    assert here.device_bytes == host.device_bytes


def test_ten_million_labels_fit_one_device() -> None:
    large = planned("unidec", TEN_MILLION)
    assert not large.fits
    assert "table_device=host" in verdict(large)
    assert planned("unidec", TEN_MILLION, table_precision="bfloat16").fits
    apart = planned("unidec", TEN_MILLION, memory=8, table_device="host")
    assert apart.fits
    assert verdict(apart).startswith("fits 8 GB")
    assert apart.host_bytes > 12 * 10_000_000 * DIM


def test_half_the_disk() -> None:
    whole, half = (planned("renee", table_precision=name).disk for name in ("float32", "bfloat16"))
    assert whole["run folder"] - half["run folder"] == 2 * TABLE
    assert whole["checkpoints while it trains"] - half["checkpoints while it trains"] == 3 * 2 * 2 * TABLE


def test_a_bus_takes_time() -> None:
    """Rows of a pool are few, so UniDEC hardly notices; Renee reads and writes everything at every step."""
    for method, factor in (("unidec", 1.5), ("renee", 100.0)):
        here, apart = (planned(method, table_device=place).stage_times[-1].epoch for place in ("device", "host"))
        assert here < apart < factor * here
    steps = planned("renee", table_device="host").stage_times[-1].steps
    carried = planned("renee", table_device="host").stage_times[-1].epoch - planned("renee").stage_times[-1].epoch
    assert carried == pytest.approx(steps * 5 * 4 * TABLE / 12e9)


def test_the_command_says_that_ten_million_fit(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = ("--set", "table_device=host", "--encoder", "static", "--device-memory", "24GB")
    assert call("plan", "--method", "unidec", "--dataset", TEN_MILLION, *wanted) == 0
    assert "fits 24 GB" in capsys.readouterr().out
