"""The tensor file: our writer, read by the library and by us."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from harness.train.checkpoint import load_model, save_model
from harness.train.checkpoint.tensorfile import read_tensors, write_tensors

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16]
DTYPES += [torch.int8, torch.uint8, torch.bool]


def test_loaded_tensors_are_writable_and_independent_of_the_file(tmp_path: Path) -> None:
    save_model(tmp_path / "model", {"weight": torch.ones(1000), "same": torch.ones(1000)}, {})
    tensors, _ = load_model(tmp_path / "model")
    with (tmp_path / "model" / "model.safetensors").open("r+b") as stream:
        stream.write(bytes(8000))
    tensors["weight"].mul_(3)
    assert tensors["weight"].sum() == 3000
    assert tensors["same"].sum() == 1000
    assert tensors["weight"].is_contiguous()
    assert not tensors["weight"].requires_grad


def test_awkward_tensors_are_stored_by_value(tmp_path: Path) -> None:
    """Tied, transposed, sliced, expanded, empty, scalar, with gradient: all of them come back equal."""
    table = torch.randn(6, 4)
    awkward = {
        "table": table,
        "tied": table,
        "transposed": table.T,
        "slice": table[1:3, ::2],
        "expanded": torch.ones(1, 3).expand(5, 3),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 7),
        "nothing": torch.zeros(0, dtype=torch.bool),
        "learned": torch.nn.Parameter(torch.ones(3)),
        'odd "name" é': torch.tensor([True, False]),
    }
    write_tensors(tmp_path / "file", awkward)
    for found in (read_tensors(tmp_path / "file"), load_file(tmp_path / "file")):
        assert set(found) == set(awkward)
        for name, tensor in awkward.items():
            assert torch.equal(found[name], tensor.detach())
            assert found[name].dtype == tensor.dtype


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3)), max_size=8))
def test_the_library_reads_any_file_of_ours(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[tuple[torch.dtype, list[int]]]
) -> None:
    """The oracle is the reader of the safetensors library, on every type and mixture of sizes."""
    generator = torch.Generator().manual_seed(0)
    tensors = {
        f"t{number}": torch.randint(0, 100, shape, generator=generator).to(dtype)
        for number, (dtype, shape) in enumerate(wanted)
    }
    file = tmp_path_factory.mktemp("tensors") / "file.safetensors"
    write_tensors(file, tensors)
    whole = file.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    for name, entry in json.loads(whole[8 : 8 + length]).items():  # no reader has to fetch across word boundaries
        assert (8 + length + entry["data_offsets"][0]) % tensors[name].element_size() == 0
    found = load_file(file)
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


@pytest.mark.gpu
def test_tensors_of_a_gpu_are_saved(tmp_path: Path) -> None:
    save_model(tmp_path, {"weight": torch.arange(12.0, device="cuda").view(3, 4).T}, {})
    found = load_model(tmp_path)[0]["weight"]
    assert found.device.type == "cpu"
    assert torch.equal(found, torch.arange(12.0).view(3, 4).T)
