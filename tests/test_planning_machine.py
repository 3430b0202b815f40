"""What `harness plan` knows of the machine it runs on, and one real run against its plan."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.config import Layer
from harness.plan import cpu_target, make_plan
from harness.plan.report import verdict
from harness.plan.sizes import GIB, host_memory
from tests.trust.accounts import Account


def machine(
    root: Path, *, installed: int = 64, available: int = 60, group: str = "0::/jobs/mine", **files: str
) -> Path:
    """A fake file system of a machine; `files` are contents by path with double underscores for slashes."""
    (root / "proc/self").mkdir(parents=True)
    lines = (f"MemTotal: {installed * 2**20} kB", f"MemAvailable: {available * 2**20} kB")
    (root / "proc/meminfo").write_text("\n".join(lines))
    (root / "proc/self/cgroup").write_text(f"{group}\n")
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_a_limit_the_machine_is_the_limit(tmp_path: Path) -> None:
    """fault 32."""
    found = host_memory(machine(tmp_path, jobs__mine__memory_dot_max="max\n"))
    assert found is not None
    assert (found.total, found.available) == (64 * GIB, 60 * GIB)


def test_the_limit_of_the_group_counts(tmp_path: Path) -> None:
    """fault 32."""
    used = {"jobs__mine__memory_dot_current": str(3 * GIB), "jobs__mine__memory_dot_stat": f"inactive_file {GIB}\n"}
    found = host_memory(machine(tmp_path, jobs__mine__memory_dot_max=str(8 * GIB), **used))
    assert found is not None
    assert (found.total, found.available) == (8 * GIB, 6 * GIB)
    assert found.limited_by == "/sys/fs/cgroup/jobs/mine/memory.max"


def test_a_group_above_may_be_narrower(tmp_path: Path) -> None:
    """fault 32."""
    limits = {"jobs__mine__memory_dot_max": str(8 * GIB), "jobs__memory_dot_max": str(4 * GIB)}
    found = host_memory(machine(tmp_path, **limits))
    assert found is not None
    assert found.total == 4 * GIB


def test_in_a_container_the_root_of_the_groups_counts(tmp_path: Path) -> None:
    """fault 32: the group's own folder is not visible there."""
    found = host_memory(machine(tmp_path, memory_dot_max=str(2 * GIB), memory_dot_current=str(GIB)))
    assert found is not None
    assert (found.total, found.available) == (2 * GIB, GIB)


@pytest.mark.parametrize(("limit", "total"), [(6 * GIB, 6), (2**63 - 4096, 64)])
def test_the_older_groups_count_as_well(limit: int, total: int, tmp_path: Path) -> None:
    """fault 32."""
    files = {"memory__jobs__memory_dot_limit_in_bytes": str(limit)}
    found = host_memory(machine(tmp_path, group="9:cpu,memory:/jobs", **files))
    assert found is not None
    assert found.total == total * GIB


def test_a_machine_that_does_not_say(tmp_path: Path) -> None:
    assert host_memory(tmp_path) is None
    plan = make_plan("zeroshot", "lf-pydocstitles", [], cpu_target(tmp_path))
    assert plan.fits is None
    assert "not known" in verdict(plan)


def test_a_run_on_the_cpu_has_to_fit_the_group(tmp_path: Path, account: Account) -> None:
    """fault 32: what is free in the group decides, and nothing is allocated to find out."""
    root = machine(tmp_path, jobs__mine__memory_dot_max=str(GIB), jobs__mine__memory_dot_current=str(GIB // 2))
    target = cpu_target(root)
    small = make_plan("tfidf-knn", "lf-pydocstitles", [], target)
    large = make_plan("unidec", "lf-amazontitles-1.3m", [], target)
    assert small.fits
    assert not large.fits
    assert "does not fit this machine (0.50 GiB of 1.00 GiB free" in verdict(large)
    account.did("a machine of 64 GiB in a control group of 1 GiB, half of it in use, as its files say")
    account.saw(f"a small run fits; a large one: '{verdict(large)[:90]}'")


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
    """Weights and both moments of 131,073 labels: three times the table, and no less; not before the first step."""
    target = replace(cpu_target(), usable=free * GIB)
    layer = Layer("test", {"checkpoint": saving, "params": {"epochs": epochs}})
    plan = make_plan("unidec", "lf-amazontitles-131k", [layer], target)
    sizes = {phase.name: {part.name: part.host for part in phase.parts} for phase in plan.phases}
    copies = {name: parts.get("copy for checkpoints", 0.0) for name, parts in sizes.items()}
    assert not copies["start of the classifier"]
    assert not copies["evaluation"]
    table = plan.run.table_elements * 4
    assert (copies["train step"] >= 3 * table) == copied
    assert copies["mining"] == copies["train step"]
    assert copied or not copies["train step"]


RUN = """
import json, sys
from pathlib import Path
import torch
from harness import run as pipeline
from harness.config import Layer
from harness.model.transformer import byte_tokenizer
from harness.model.static import StaticEncoder
from harness.repro import peak_memory_gib

def random_static(name, *, seed, **options):
    facts = {"name": name, "tokenizer": byte_tokenizer(), "max_len": 32, "identity": "random"}
    return StaticEncoder(torch.randn(facts["tokenizer"].vocab_size, 256), "uniform", **facts)

pipeline.load_encoder = random_static
dataset, settings = json.loads(sys.argv[1])
config, _ = pipeline.resolve_config("unidec", dataset, [Layer("test", settings)])
pipeline.run(config, out=Path(sys.argv[2]), track="none")
print(peak_memory_gib() * 2**30)
"""


def test_a_real_run_needs_what_was_foreseen(tmp_path: Path) -> None:
    """The figures to hold it to are those of `harness perf memory`; here a small run must not be far off.

    Half of it is the labels: how much of the libraries is resident differs from one process to the next.
    """
    dataset = "synthetic:train=200,test=50,labels=60000"
    settings = {"max_len": 32, "epochs": 1, "random_epochs": 0, "batch_size": 128, "warmup_epochs": 0.0}
    command = [sys.executable, "-c", RUN, json.dumps([dataset, settings]), str(tmp_path)]
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    plan = make_plan("unidec", dataset, [Layer("test", settings)], cpu_target())
    plan = replace(plan, run=replace(plan.run, encoder=replace(plan.run.encoder, vocabulary=260)))
    assert plan.host_bytes == pytest.approx(float(done.stdout.split()[-1]), rel=0.25)
