"""The static encoder: what it is distilled to, how tokens are weighed, which gradients it gives."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from harness.data.tokens import tokenize
from harness.errors import UserError
from harness.model.encoders.encoder import encode, load_encoder, to_tensors
from harness.model.encoders.static import StaticEncoder, inverse_frequency, principal_components
from tests.support.small_models import TEXTS

pytestmark = pytest.mark.usefixtures("models_home")


@pytest.fixture
def static(bert_folder) -> StaticEncoder:
    return load_encoder("static", seed=0, teacher=str(bert_folder), dim=8)


def test_static_is_the_weighted_bag_of_unit_length(static):
    tokens = tokenize(TEXTS, static.tokenizer, 24)
    table, token_weights = static.table.weight.detach().numpy(), static.weights.numpy()
    for row, vector in enumerate(encode(static, tokens)):
        factor = token_weights[tokens[row]]
        bag = (factor[:, None] * table[tokens[row]]).sum(0)
        np.testing.assert_allclose(vector, bag / np.linalg.norm(bag) if factor.any() else np.zeros(8), atol=1e-6)


def test_static_is_distilled_from_the_teacher(static, bert_folder):
    """The table is a linear image of the teacher's token vectors, with variances lambda^(1/2)."""
    teacher = load_encoder(str(bert_folder), seed=0)
    before, after = teacher.tokenizer.frame
    rows = [[*before, token, *after] for token in range(teacher.tokenizer.vocab_size)]
    with torch.inference_mode():
        vectors = teacher.eval().model(input_ids=torch.tensor(rows)).last_hidden_state.mean(1).double().numpy()
    centred = np.delete(vectors, teacher.tokenizer.special_ids, axis=0)
    mean = centred.mean(0)
    table = static.table.weight.detach().double().numpy()
    mapping, *_ = np.linalg.lstsq(vectors - mean, table, rcond=None)
    np.testing.assert_allclose((vectors - mean) @ mapping, table, atol=1e-5)
    variance = np.linalg.svd(centred - mean, compute_uv=False)[:8] ** 2
    own = np.delete(table, teacher.tokenizer.special_ids, axis=0).var(0)
    np.testing.assert_allclose(own / own[0], np.sqrt(variance / variance[0]), rtol=1e-3)


def test_static_is_distilled_once_and_guarded(bert_folder, tmp_path, monkeypatch):
    """fault 68: the cached table is compared with its hash on every load."""
    from harness.model.encoders import static as module

    monkeypatch.setenv("HARNESS_HOME", str(tmp_path))
    good = load_encoder("static", seed=0, teacher=str(bert_folder), dim=8).table.weight
    real, calls = module.token_vectors, []
    monkeypatch.setattr(module, "token_vectors", lambda source: calls.append(source) or real(source))
    assert torch.equal(load_encoder("static", seed=5, teacher=str(bert_folder), dim=8).table.weight, good)
    assert not calls
    (path,) = (tmp_path / "cache" / "encoders").glob("static-*/table.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert torch.equal(load_encoder("static", seed=0, teacher=str(bert_folder), dim=8).table.weight, good)
    assert len(calls) == 1


def test_principal_components_recover_a_plane():
    """Points on a plane in 5 dimensions: two components keep all variance and all angles."""
    draw = np.random.default_rng(0)
    flat = draw.normal(size=(200, 2)) * [3.0, 1.0]
    basis = np.linalg.qr(draw.normal(size=(5, 2)))[0]
    vectors = (flat @ basis.T + draw.normal(size=5)).astype(np.float32)
    table, kept = principal_components(vectors, 2, np.array([], dtype=np.int64))
    assert kept == pytest.approx(1, abs=1e-4)
    assert float(table.square().sum(1).mean()) == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(np.cov(table.numpy().T)[0, 1], 0, atol=1e-5)
    full, _ = principal_components(vectors, 5, np.array([], dtype=np.int64))
    assert torch.isfinite(full).all()
    again, _ = principal_components(vectors, 2, np.array([], dtype=np.int64))
    assert torch.equal(table, again)


@pytest.mark.parametrize(("weighting", "factors"), [("uniform", ""), ("zipf", "z"), ("sif", "s"), ("zipf+sif", "zs")])
def test_token_weights(bert_folder, weighting, factors):
    encoder = load_encoder("static", seed=0, teacher=str(bert_folder), dim=8, weighting=weighting)
    counts = np.arange(260)[::-1].copy()
    rank = 1 / np.arange(1, 261)
    zipf = 1e-4 / (1e-4 + rank / rank.sum()) if "z" in factors else np.ones(260)
    corpus = 1e-2 / (1e-2 + counts / counts.sum()) if "s" in factors else np.ones(260)
    np.testing.assert_allclose(encoder.weights[4:], zipf[4:], rtol=1e-5)
    encoder.adapt(counts)
    np.testing.assert_allclose(encoder.weights[4:], (zipf * corpus)[4:], rtol=1e-5)
    assert not encoder.weights[:4].any()


def test_weights_are_defined_without_any_text(static):
    before = static.weights.clone()
    static.adapt(np.zeros(260, dtype=np.int64))
    assert torch.equal(static.weights, before)
    assert inverse_frequency(np.zeros(3), 0.1).tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="3 counts"):
        static.adapt(np.ones(3, dtype=np.int64))
    with pytest.raises(UserError, match=r"encoder_options.weighting"):
        load_encoder("static", seed=0, weighting="zip")


def test_row_gradients_equal_dense_ones(static):
    ids, offsets = to_tensors(tokenize(TEXTS, static.tokenizer, 24), "cpu")
    weights = torch.randn(len(TEXTS), 8, generator=torch.Generator().manual_seed(0))
    (static.train()(ids, offsets) * weights).sum().backward()
    rows, gradient = static.table.collect()
    dense = static.table.weight.detach().clone().requires_grad_()
    bags = [(static.weights[ids[a:b], None] * dense[ids[a:b]]).sum(0) for a, b in pairwise(offsets)]
    (torch.nn.functional.normalize(torch.stack(bags), dim=1) * weights).sum().backward()
    torch.testing.assert_close(torch.zeros_like(dense).index_copy(0, rows, gradient), dense.grad)
    assert rows.tolist() == sorted(set(ids.tolist()))
