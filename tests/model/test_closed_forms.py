"""Gradients that are written down instead of recorded: unit vectors and weighted bags."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from harness.model.encoders.encoder import NORM_FLOOR, unit
from harness.model.encoders.static import weighted_bags


def test_unit_equals_autograd() -> None:
    torch.manual_seed(1)
    ours = torch.randn(50, 16).mul(torch.logspace(-8, 8, 50)[:, None]).requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    upstream = torch.randn(50, 16)
    scaled = theirs / theirs.norm(dim=1, keepdim=True)
    unit(ours).backward(upstream)
    scaled.backward(upstream)
    assert torch.allclose(unit(ours), scaled)
    assert ours.grad is not None
    assert theirs.grad is not None
    assert torch.allclose(ours.grad, theirs.grad, rtol=1e-4, atol=float(theirs.grad.abs().max()) * 1e-7)


def test_a_row_without_a_direction_is_zero_and_gets_no_gradient() -> None:
    values = torch.zeros(3, 4)
    values[1] = NORM_FLOOR / 10
    values[2, 0] = 5.0
    values.requires_grad_()
    scaled = unit(values)
    scaled.backward(torch.ones(3, 4))
    assert scaled[:2].eq(0).all()
    assert scaled[2, 0] == 1
    assert values.grad is not None
    assert values.grad[:2].eq(0).all()
    assert values.grad[2, 1] == pytest.approx(0.2)


def test_nan_is_not_hidden() -> None:
    assert unit(torch.full((1, 3), torch.nan)).isnan().all()


def test_half_precision_comes_back_as_float32_with_its_gradient() -> None:
    values = torch.randn(3, 4, dtype=torch.bfloat16, requires_grad=True)
    scaled = unit(values)
    scaled.sum().backward()
    assert scaled.dtype == torch.float32
    assert values.grad is not None
    assert values.grad.dtype == torch.bfloat16


def case(bags: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows, places, offsets and weights with empty bags, repeated rows in a bag and rows that occur nowhere."""
    generator = torch.Generator().manual_seed(bags)
    lengths = torch.randint(0, 5, (bags,), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    place = torch.randint(0, 7, (int(offsets[-1]),), generator=generator)
    return torch.randn(9, 3, generator=generator), place, offsets, torch.rand(len(place), generator=generator)


@pytest.mark.parametrize("bags", [1, 2, 40])
def test_bags_equal_torch(bags: int) -> None:
    rows, place, offsets, weights = case(bags)
    ours, theirs = rows.clone().requires_grad_(), rows.clone().requires_grad_()
    upstream = torch.randn(bags, 3)
    out = weighted_bags(ours, place, offsets, weights)
    reference = embedding_bag(place, theirs, offsets, mode="sum", include_last_offset=True, per_sample_weights=weights)
    out.backward(upstream)
    reference.backward(upstream)
    assert torch.equal(out, reference)
    assert ours.grad is not None
    assert theirs.grad is not None
    assert torch.allclose(ours.grad, theirs.grad, atol=1e-6)


def test_transpose_is_the_same_on_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The branch of other devices, run here: a device that only calls itself something else."""
    from harness.model.encoders import static

    rows, place, offsets, weights = case(40)

    class Elsewhere:
        type = "elsewhere"

    class Columns(Tensor):
        @property
        def device(self) -> Elsewhere:  # type: ignore[override]
            return Elsewhere()

    here = static._transposed(place, offsets, weights, width=len(rows))
    there = static._transposed(place.as_subclass(Columns), offsets, weights, width=len(rows))
    for one, other in zip(here, there, strict=True):
        assert torch.equal(one, other.as_subclass(Tensor))
