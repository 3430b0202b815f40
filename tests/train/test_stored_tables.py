"""Classifier tables that stay in CPU memory or are stored in bfloat16: rows, optimisers, first values."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from harness.data.ragged import Ragged
from harness.errors import DataError
from harness.model.heads import Classifier, PlainHead, TwoHeads
from harness.model.scoring import TwoHeadScoring, normalised
from harness.model.tables import RowTable, lazy_zeros, put_rows
from harness.settings.method import Inputs
from harness.settings.parameters import TableSettings
from harness.train import tables
from harness.train.optim import Group, Optimiser, Schedule
from harness.train.optim.blocked import BlockedSgd
from harness.train.optim.row_sparse import TouchedAdamW
from harness.train.tables import start_table, table_options
from tests.model.test_tables import loop_over_rows, random, touch
from tests.train.test_ova import Everything, small_inputs

pytestmark = pytest.mark.usefixtures("one_thread")
GPU = pytest.mark.gpu


def heads(on_host: bool, dtype: torch.dtype = torch.float32) -> TwoHeads:
    encoder = Everything().encoder
    classifier = Classifier(8, 8, 30, "cosine", 0.0, 0.0, table_type=dtype, table_on_host=on_host)
    classifier.table.weight.data.copy_(random(30, 8))
    return TwoHeads(encoder, PlainHead(normalise=True), classifier)


# ---------------------------------------------------------------- a table that is not where its model is


def test_a_model_moves_and_its_table_stays() -> None:
    """Onto the device that holds nothing: what moves there has lost its numbers, the table has kept them."""
    model = heads(on_host=True)
    names = list(model.state_dict())
    model.to("meta")
    assert isinstance(model.classifier, Classifier)
    assert model.classifier.projection.weight.is_meta
    assert torch.equal(model.classifier.table.weight, random(30, 8))
    assert list(model.state_dict()) == names
    model.double()
    assert model.classifier.table.weight.dtype == torch.float32
    beside = heads(on_host=False).to("meta")
    assert isinstance(beside.classifier, Classifier)
    assert beside.classifier.table.weight.is_meta


def test_rows_are_gathered_to_the_device_that_asks() -> None:
    table = RowTable(random(6, 3), on_host=True)
    assert table.gather(torch.tensor([1, 4]), "meta").is_meta
    there = table.gather(torch.tensor([1, 4], device="cpu"))
    assert torch.equal(there, table.weight[[1, 4]])
    assert all(rows.device.type == "cpu" for rows, _ in table._touched)


def test_a_host_table_begins_on_the_host() -> None:
    with pytest.raises(ValueError, match="begins there, not on meta"):
        RowTable(torch.empty(2, 2, device="meta"), on_host=True)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_does_not_see_where_the_table_is(device: str, dtype: torch.dtype) -> None:
    """The same gradients, weights and moments for a table at home and one on the host."""
    results = []
    for on_host in (True, False):
        table = RowTable(random(40, 8).to(dtype), on_host=on_host)
        module = nn.ModuleList([table]).to(device if on_host else "cpu")
        optimiser = Optimiser([Group("classifier", 0.05, 0.1, [], [table])], Schedule("constant"), 9, clip=1.0, seed=3)
        for step in range(9):
            rows = torch.randperm(40, generator=torch.Generator().manual_seed(step))[:7]
            for part in (rows, rows[:3]):  # twice, so that gradients of two gathers are added
                leaf = table.gather(part, device if on_host else "cpu")
                assert (leaf.dtype, leaf.device.type) == (torch.float32, device if on_host else "cpu")
                (leaf.sin() * random(len(part), 8, seed=step).to(leaf.device)).sum().backward()
            optimiser.step(step)
        assert next(module.parameters()).device.type == "cpu"
        results.append({"weight": table.weight, **optimiser.state()})
    for name, tensor in results[0].items():
        torch.testing.assert_close(tensor, results[1][name], rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_vs_all_streams_a_host_table(dtype: torch.dtype) -> None:
    here, there = (RowTable(random(20, 8).to(dtype), on_host=True) for _ in range(2))
    for table, device in ((here, "cpu"), (there, "cuda")):
        sgd = BlockedSgd(table, name="classifier", lr=0.1, weight_decay=0.01, momentum=0.9)
        for step in range(3):
            for start in (0, 12):
                stop = min(20, start + 12)
                left, right = random(stop - start, 5, seed=step).to(device), random(5, 8, seed=9).to(device)
                assert sgd.rows(start, stop, left).device == left.device
                sgd.update(start, stop, left, right, 0.1, step)
        assert table.weight.device.type == "cpu"
    torch.testing.assert_close(here.weight, there.weight, rtol=2e-2, atol=2e-2)


def test_sums_of_a_whole_label_space_are_float32() -> None:
    """More rows gathered than there are: gradients are summed in a tensor of their own, not in the table's type."""
    table = RowTable(random(4, 2).bfloat16())
    for _ in range(3):
        touch(table, [0, 1, 3], torch.full((3, 2), 1 + 2.0**-12))
    collected = table.collect()
    assert collected is not None
    assert torch.equal(collected[1], torch.full((3, 2), 3 * (1 + 2.0**-12)))


# ---------------------------------------------------------------- bfloat16


def test_gathered_rows_are_float32_and_learn() -> None:
    table = RowTable(random(5, 4).bfloat16())
    leaf = table.gather(torch.tensor([0, 3]))
    assert leaf.dtype == torch.float32
    assert torch.equal(leaf, table.weight[[0, 3]].float())
    leaf.sum().backward()
    collected = table.collect()
    assert collected is not None
    assert collected[1].dtype == torch.float32


def test_the_mean_of_many_trainings_is_that_of_float64() -> None:
    """2,000 copies of one row, each rounded at random: their mean follows the formula where one copy cannot."""
    copies, dim, rates = 2000, 4, (1e-3, 0.01, 0.9, 0.999, 1e-8)
    start = random(1, dim).bfloat16()
    table = RowTable(start.repeat(copies, 1))
    adam = TouchedAdamW(table)
    everything, history = list(range(copies)), []
    for step in range(30):
        gradient = random(1, dim, seed=step) * 0.1 + 0.05
        history.append(([0], gradient.double().numpy()))
        touch(table, everything, gradient.repeat(copies, 1))
        adam.step(*rates[:2], seed=step)
    weight, mean, square, _ = loop_over_rows(start.double().numpy(), history, *rates)
    for stored, exact in ((table.weight, weight), (adam.exp_avg, mean), (adam.exp_avg_sq, square)):
        assert stored.dtype == torch.bfloat16
        np.testing.assert_allclose(stored.double().mean(0).numpy(), exact[0], rtol=5e-3)
    one = table.weight.double()[0].numpy()
    assert np.abs(one / weight[0] - 1).max() < 0.05


def test_blocks_and_steps_draw_numbers_of_their_own() -> None:
    def trained(seed: int) -> Tensor:
        table = RowTable(torch.ones(2000, 128).bfloat16())
        adam = TouchedAdamW(table)
        assert adam._block < 2000
        for step in range(2):
            touch(table, list(range(2000)), torch.ones(2000, 128))
            adam.step(1e-3, 0, seed=seed + step)
        return table.weight.detach()

    assert torch.equal(trained(0), trained(0))
    assert not torch.equal(trained(0), trained(7))
    block = 2**17 // 128
    assert not torch.equal(trained(0)[: 2000 - block], trained(0)[block:])


def test_a_state_of_the_other_precision_is_refused() -> None:
    optimisers = [
        Optimiser([Group("rows", 0.01, 0.1, [], [RowTable(random(3, 4).to(dtype))])], Schedule(), 5)
        for dtype in (torch.float32, torch.bfloat16)
    ]
    with pytest.raises(DataError, match=r"float32 .* but should be torch\.bfloat16"):
        optimisers[1].load_state(optimisers[0].state())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_vs_all_in_bfloat16_follows_float32(momentum: float) -> None:
    exact = Everything("soft", momentum=momentum)
    for table in (rough := Everything("soft", momentum=momentum)).model.modules():
        if isinstance(table, Classifier):
            table.table.weight.data = table.table.weight.data.bfloat16()
    rough.sgd = BlockedSgd(rough.head.table, name="classifier", lr=0.05, weight_decay=0.01, momentum=momentum, seed=2)
    groups = [Group("encoder", 1e-2, 0.0, [], [rough.encoder.table])]
    rough.optimiser = Optimiser(groups, Schedule("linear", 3), 12, blocked=[rough.sgd])
    rough.objective.classifier, rough.objective.optimiser = rough.sgd, rough.optimiser
    start = exact.head.table.weight.clone()
    for step in range(8):
        assert rough.step(step) == pytest.approx(exact.step(step), rel=2e-2)
    stored = [rough.head.table.weight] + ([rough.sgd.momentum] if momentum else [])
    assert {tensor.dtype for tensor in stored} == {torch.bfloat16}
    moved, followed = exact.head.table.weight - start, rough.head.table.weight.float() - start
    assert float((moved - followed).norm()) < 0.05 * float(moved.norm()) + 2**-8 * float(start.norm())


def test_momentum_is_rounded_by_step_and_block() -> None:
    def trained(seed: int, steps: tuple[int, int]) -> Tensor:
        table = RowTable(random(8, 16).bfloat16())
        sgd = BlockedSgd(table, name="classifier", lr=0.1, weight_decay=0.0, momentum=0.9, seed=seed)
        for step in steps:
            for start in (0, 4):
                sgd.update(start, start + 4, random(4, 3), random(3, 16, seed=1), 0.01, step)
        return table.weight.detach().clone()

    assert torch.equal(trained(1, (0, 1)), trained(1, (0, 1)))
    assert not torch.equal(trained(1, (0, 1)), trained(2, (0, 1)))
    assert not torch.equal(trained(1, (0, 1)), trained(1, (5, 6)))


# ---------------------------------------------------------------- reading, writing, first values


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("dim", [1, 3, 8])
def test_rows_are_put_where_they_belong(dtype: torch.dtype, dim: int) -> None:
    table, rows, values = random(9, dim).to(dtype), torch.tensor([7, 0, 4]), random(3, dim, seed=1).to(dtype)
    expected = table.clone().index_copy_(0, rows, values)
    part = torch.zeros(5, dim, dtype=dtype)[1:4]  # rows of a larger piece of memory
    put_rows(table, rows, part.copy_(values))
    assert torch.equal(table, expected)
    columns = random(dim, 9).to(dtype).T  # not row after row in memory
    expected = columns.clone().index_copy_(0, rows, values)
    put_rows(columns, rows, values)
    assert torch.equal(columns, expected)
    with pytest.raises(IndexError):
        put_rows(table, torch.tensor([9]), values[:1])


def test_zeros_of_every_type_are_there_and_can_be_written() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        zeros = lazy_zeros((3, 5), dtype)
        assert (zeros.dtype, zeros.shape, bool(zeros.any())) == (dtype, (3, 5), False)
        zeros[1] = 1
        assert float(zeros.sum()) == 5
    assert lazy_zeros((0, 4), torch.float32).shape == (0, 4)


def test_all_rows_are_read_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.model.tables._READ_BLOCK", 4)
    table = RowTable(random(11, 3).bfloat16())
    assert np.array_equal(table.vectors(), table.weight.float().numpy())
    plain = RowTable(random(11, 3))
    assert np.shares_memory(plain.vectors(), plain.weight.numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_labels_are_scored_with_what_is_stored(dtype: torch.dtype) -> None:
    model = heads(on_host=True, dtype=dtype)
    scorer = TwoHeadScoring(model, ("clf",), "cpu", 1000)
    found = scorer.label_vectors(Ragged(np.zeros(0, np.uint16), np.zeros(31, np.int64)), ("clf",))["clf"]
    rows = random(30, 8).to(dtype).double().numpy()
    np.testing.assert_allclose(found, rows / np.linalg.norm(rows, axis=1, keepdims=True), rtol=1e-6)
    assert found.dtype == np.float32


def test_blocks_do_not_change_a_scaled_vector() -> None:
    vectors = random(100, 24).numpy()
    vectors[17] = 0
    whole = normalised(vectors)
    assert np.array_equal(normalised(vectors, block=7), whole)
    assert not whole[17].any()
    np.testing.assert_allclose(np.linalg.norm(whole, axis=1), np.arange(100) != 17, atol=1e-6)


def small_start(start: Any, dtype: torch.dtype = torch.float32, without: int | None = None) -> Tensor:
    inputs: Inputs = small_inputs([])
    tokens = inputs.label_tokens
    if without is not None:
        lengths = np.where(np.arange(len(tokens)) == without, 0, tokens.lengths)
        inside = np.repeat(lengths > 0, tokens.lengths)
        tokens = Ragged(tokens.values[inside], np.concatenate([[0], np.cumsum(lengths)]))
        inputs = Inputs(**{**inputs.__dict__, "label_tokens": tokens})
    classifier = Classifier(8, 8, len(tokens), "dot", 0.0, 0.0, projected=False, table_type=dtype)
    start_table(inputs, classifier, start)
    return classifier.table.weight.detach()


@pytest.mark.parametrize("start", ["labels", "xavier", "normal"])
def test_first_values_do_not_depend_on_blocks(start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, without = small_start(start), small_start(start, without=33)
    monkeypatch.setattr(tables, "START_BLOCK", 16)
    assert torch.equal(small_start(start), whole)
    assert torch.equal(small_start(start, without=33), without)
    assert torch.equal(small_start(start, torch.bfloat16), whole.bfloat16())
    if start == "labels":
        assert float(without[33].norm()) == pytest.approx(1, abs=1e-6)
        assert not torch.equal(without[33], whole[33])


def test_noise_is_that_of_torch() -> None:
    seed = small_inputs([]).seed
    generator = torch.Generator().manual_seed(tables.stream_seed(seed, "init", 2))
    drawn = small_start("xavier")
    assert torch.equal(drawn, nn.init.xavier_uniform_(torch.empty(drawn.shape), generator=generator))
    generator = torch.Generator().manual_seed(tables.stream_seed(seed, "init", 2))
    assert torch.equal(small_start("normal"), torch.empty(drawn.shape).normal_(0, 0.02, generator=generator))


# ---------------------------------------------------------------- parameters


def test_parameters_become_arguments() -> None:
    assert table_options(TableSettings()) == {"table_type": torch.float32, "table_on_host": False}
    wanted = TableSettings(table_device="host", table_precision="bfloat16")
    assert table_options(wanted) == {"table_type": torch.bfloat16, "table_on_host": True}
    assert table_options(TableSettings(table_device="device"))["table_on_host"] is False
