"""How much memory a process can have: limits of control groups."""

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from harness.machine.memory import GIB, host_memory


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 64 GiB, 60 of them free."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=64 * GIB, available=60 * GIB))


V2, V1 = "0::/jobs/mine", "9:cpu,memory:/jobs"
INACTIVE = f"inactive_file {GIB}\n"


@pytest.mark.parametrize(
    ("group", "files", "total", "available"),
    [
        (V2, {"jobs/mine/memory.max": "max"}, 64, 60),
        (
            V2,
            {"jobs/mine/memory.max": 8 * GIB, "jobs/mine/memory.current": 3 * GIB, "jobs/mine/memory.stat": INACTIVE},
            *(8, 6),
        ),
        (V2, {"jobs/mine/memory.max": 8 * GIB, "jobs/memory.max": 4 * GIB}, 4, 4),
        (V2, {"memory.max": 2 * GIB, "memory.current": GIB}, 2, 1),
        (V1, {"memory/jobs/memory.limit_in_bytes": 6 * GIB}, 6, 6),
        (V1, {"memory/jobs/memory.limit_in_bytes": 2**63 - 4096}, 64, 60),
    ],
    ids=["no limit", "limit", "narrower above", "container", "version 1", "version 1, no limit"],
)
def test_the_narrowest_limit_of_the_control_groups_counts(
    group: str, files: dict[str, object], total: int, available: int, tmp_path: Path
) -> None:
    """fault 32: in a container the group's own folder is not visible, and the root of the groups counts"""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{group}\n")
    for name, content in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    found = host_memory(tmp_path)
    assert (found.total, found.available) == (total * GIB, available * GIB)
    limited = f"/sys/fs/cgroup/{min(files, key=len)}"
    assert found.limited_by == ("the installed memory" if total == 64 else limited)
