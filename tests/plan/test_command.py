"""`harness plan`: verdicts, what settings change, the command, and what it refuses."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.errors import UserError
from harness.machine.memory import GIB
from harness.plan import Plan, cpu_target, cuda_target, make_plan
from harness.plan.devices import chosen_target, parse_size
from harness.plan.report import method_names, published_datasets, verdict
from harness.settings.layers import Layer
from tests.faults.accounts import Account
from tests.support.commands import call

SMALL, LARGE = "lf-amazontitles-131k", "lf-amazontitles-1.3m"
TEN_MILLION = "synthetic:train=100000,test=1000,labels=10000000"


def planned(method: str, dataset: str = LARGE, memory: int = 24, **settings: Any) -> Plan:
    return make_plan(method, dataset, [Layer("test", {"encoder": "static", **settings})], cuda_target(memory * GIB))


def test_every_method_has_a_plan_without_dense_matrices() -> None:
    """fault 37: no part of a plan is as large as N x L or L x L."""
    assert len(published_datasets()) == 7
    for name in method_names():
        plan = planned(name, SMALL, memory=80)
        assert plan.device_bytes > 0
        assert plan.notes == ()
        largest = max(part.device + part.host for phase in plan.phases for part in phase.parts)
        assert largest < plan.data.labels * min(plan.data.labels, plan.data.rows)


def test_the_micro_batch_is_the_largest_power_of_two_that_fits() -> None:
    """A transformer on a small device; a larger micro-batch than fits is replaced."""
    settings = {"encoder": "tiny", "encoder_options": {"dim": 256, "layers": 2}, "max_len": 128, "batch_size": 2048}
    plan = planned("dpr", "lf-amazon-131k", 3, micro_batch_tokens=2**20, **settings)
    best = plan.best_micro_batch
    assert best is not None
    assert best & (best - 1) == 0
    assert plan.with_micro_batch(best).fits
    assert plan.micro_batch_tokens == 2**20
    assert not plan.fits
    assert not plan.with_micro_batch(2 * best).fits
    assert f"fits with --set micro_batch_tokens={best}" in verdict(plan)
    assert planned("dpr").best_micro_batch is None  # a bag of tokens takes a batch as a whole


@pytest.mark.parametrize(
    ("dataset", "validation"),
    [("synthetic:train=2,labels=90", 0), ("synthetic:train=240,test=60,labels=90", 0.99)],
)
def test_a_few_train_rows_have_a_plan(dataset: str, validation: float) -> None:
    """Labels have texts of lengths that no row has."""
    layers = [Layer("test", {"encoder": "tiny", "validation": {"size": validation}})]
    assert make_plan("unidec", dataset, layers, cpu_target()).device_bytes > 0


def test_rows_that_a_run_does_not_have_are_refused() -> None:
    layers = [Layer("test", {"encoder": "tiny", "validation": {"size": 500}})]
    with pytest.raises(UserError, match="size is 500, but there are 240"):
        make_plan("unidec", "synthetic:train=240,test=60,labels=90", layers, cpu_target())


def test_what_does_not_fit_says_what_to_change() -> None:
    plan = planned("unidec", memory=4)
    assert "does not fit 4 GB" in verdict(plan)
    assert "table_device=host" in verdict(plan)


def test_memory_follows_the_settings() -> None:
    base = planned("unidec")
    assert planned("unidec", dim=256).device_bytes < base.device_bytes
    assert sum(planned("unidec", batch_size=4096).run.step(0).parts.values()) > 2 * sum(base.run.step(0).parts.values())
    assert planned("renee", momentum=0.0).device_bytes < planned("renee").device_bytes
    whole, half = (planned("renee", table_precision=name).disk for name in ("float32", "bfloat16"))
    assert whole["run folder"] - half["run folder"] == 2 * 1_305_265 * 256


def test_ten_million_labels_fit_one_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert not planned("unidec", TEN_MILLION).fits
    assert planned("unidec", TEN_MILLION, table_precision="bfloat16").fits
    apart = planned("unidec", TEN_MILLION, memory=8, table_device="host")
    assert apart.fits
    assert apart.host_bytes > 12 * 10_000_000 * 256
    wanted = ("--set", "table_device=host", "--encoder", "static", "--device-memory", "24GB")
    assert call("plan", "--method", "unidec", "--dataset", TEN_MILLION, *wanted) == 0
    assert "fits 24 GB" in capsys.readouterr().out


def test_a_bus_takes_time() -> None:
    """Rows of a pool are few, so UniDEC hardly notices; Renee reads and writes everything at every step."""
    for method, least, most in (("unidec", 1.0, 1.5), ("renee", 1.5, 100.0)):
        places = (planned(method, SMALL, table_device=place) for place in ("device", "host"))
        here, apart = (plan.stage_times[-1].epoch for plan in places)
        assert least < apart / here < most


@pytest.mark.parametrize(
    ("saving", "epochs", "free", "copied"),
    [
        ({"background": "always"}, 2, 1, True),
        ({"background": "never"}, 2, 999, False),
        ({}, 2, 999, True),
        ({}, 2, 1, False),
        ({}, 1, 999, False),
        ({"every_steps": 5}, 1, 999, True),
    ],
)
def test_a_copy_for_checkpoints_is_foreseen_where_it_is_made(
    saving: dict[str, object], epochs: int, free: int, copied: bool
) -> None:
    """Weights and both moments: three times the table, and no less; not before the first step."""
    target = replace(cpu_target(), usable=free * GIB)
    layer = Layer("test", {"checkpoint": saving, "encoder": "static", "params": {"epochs": epochs}})
    plan = make_plan("unidec", SMALL, [layer], target)
    copies = {
        phase.name: sum(part.host for part in phase.parts if part.name == "copy for checkpoints")
        for phase in plan.phases
    }
    assert not copies["start of the classifier"]
    assert not copies["evaluation"]
    assert (copies["train step"] >= 3 * plan.run.weights["classifier table"]) == copied
    assert copied or not copies["train step"]


def test_a_run_on_the_cpu_has_to_fit_the_group(tmp_path: Path, account: Account) -> None:
    """fault 32: what is free in the group decides, and nothing is allocated to find out."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/jobs\n")
    group = tmp_path / "sys/fs/cgroup/jobs"
    group.mkdir(parents=True)
    (group / "memory.max").write_text(str(GIB))
    (group / "memory.current").write_text(str(GIB // 2))
    layers = [Layer("test", {"encoder": "static"})]
    small = make_plan("tfidf-knn", "lf-pydocstitles", layers, cpu_target(tmp_path))
    large = make_plan("unidec", LARGE, layers, cpu_target(tmp_path))
    assert small.fits
    assert not large.fits
    assert "does not fit this machine (0.50 GiB of 1.00 GiB free" in verdict(large)
    account.did("a machine of 64 GiB in a control group of 1 GiB, half of it in use, as its files say")
    account.saw(f"a small run fits; a large one: '{verdict(large)[:90]}'")


def test_an_unknown_setting_names_the_nearest() -> None:
    for settings, nearest in (({"bta": 3}, "beta"), ({"params": {"etaa": 3}}, "eta"), ({"encoder": "statc"}, "static")):
        with pytest.raises(UserError, match=nearest):
            planned("unidec", **settings)
    with pytest.raises(UserError, match="lf-amazon-131k"):
        planned("unidec", "lf-amazon-131")
    with pytest.raises(UserError, match="data import"):
        planned("unidec", "./folder")


def test_the_command_prints_parts_verdict_and_assumptions(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", "--method", "unidec", "--encoder", "static", "--dataset", LARGE, "--device-memory", "24GB") == 0
    shown = capsys.readouterr().out
    for words in ("moments of the classifier table", "fits 24 GB", "NVIDIA A10", "1.6 word pieces a word"):
        assert words in shown


def test_the_overview_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, wanted = tmp_path / "plan.md", ("--all", "--encoder", "static", "--method", "ance", "--dataset", SMALL)
    assert call("plan", *wanted, "--device-memory", "24GB,80GB", "--out", str(page)) == 0
    text = page.read_text()
    assert text.count("| ance |") == 6
    assert "## 80 GB (NVIDIA A100 80GB)" in text
    capsys.readouterr()
    assert call("plan", *wanted, "--json") == 0
    assert [plan["device"]["bytes"] // GIB for plan in json.loads(capsys.readouterr().out)] == [24, 48, 80]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--device-memory", "much"),
        ("--device-memory", "0GB"),
        ("--out", "x.md"),
        ("--all", "--format", "tex"),
        ("--set", "batch_size=0"),
        ("--set", "lambda=hello"),
    ],
)
def test_wrong_options_are_one_line(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", *arguments) == 2
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize(
    ("device", "devices", "kind", "size"),
    [
        ("auto", (), "cpu", None),
        ("cpu", (80,), "cpu", None),
        ("auto", (80, 48), "cuda", 80),
        ("cuda:1", (80, 48), "cuda", 48),
        ("cuda", (), "cuda", 24),
    ],
)
def test_the_device_of_a_run_is_the_one_that_is_planned_for(
    device: str, devices: tuple[int, ...], kind: str, size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: len(devices))
    properties = [SimpleNamespace(total_memory=one * GIB) for one in devices]
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda number: properties[number])
    target = chosen_target(device)
    assert (target.kind, target.capacity) == (kind, size * GIB if size else cpu_target().capacity)


def test_sizes_are_read_as_makers_of_memory_write_them() -> None:
    assert parse_size("24GB") == parse_size("24 GiB") == parse_size("24g") == 24 * GIB
    assert parse_size("512M") == 512 * 2**20
    with pytest.raises(UserError, match="24GB"):
        parse_size("24")  # bytes, or what everybody means?
