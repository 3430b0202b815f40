"""Readers of model folders, of settings in files, and of words that people type on a command line."""

import json
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from unittest import mock

from harness.cli.checks import check_config, check_method, check_search
from harness.data.prepare import resolve
from harness.data.sources.synthetic import PREFIX, parse_name
from harness.data.tokens import Tokenizer, _library, _splits_at_spaces, tokenize
from harness.experiments.sweep.space import describe, parse_over, to_json
from harness.index import check_backend
from harness.infer.export import _read_tokenizer
from harness.io.files import checked_name
from harness.machine.device import choose_device
from harness.model import check_encoder
from harness.model.encoders.pretrained import checked_config, files_of, vet
from harness.model.encoders.transformer import from_folder
from harness.model.tfidf import TextSettings, Tfidf, kinds_of_tokens
from harness.report.compare import find_contenders, split_names
from harness.run import resolve_config
from harness.runs.record import run_folder
from harness.settings.layers import Layer, parse_override
from harness.settings.method import METHOD_FOLDER, load_method, method_card_path, read_method_card
from harness.settings.published import published_row
from harness.tracking.metadata import metric_name, original_name
from tests.faults.judge import Target, may_refuse, put
from tests.faults.world import world

Read = Callable[[bytes, Path], object]

# ---------------------------------------------------------------- model folders

_MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]
_POOLING = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
_EXTRAS = {
    "modules.json": json.dumps(_MODULES).encode(),
    "1_Pooling/config.json": json.dumps(_POOLING).encode(),
    "sentence_bert_config.json": b'{"max_seq_length": 8, "do_lower_case": false}',
}
_INDEX = {"metadata": {"total_size": 9}, "weight_map": {"embeddings.weight": "model-00001-of-00001.safetensors"}}


def _model_folder(hostile: str, *, load: bool = False) -> Read:
    """Return a reader of a model folder with one hostile file: it is checked, planned for, and loaded with `load`."""

    def read(data: bytes, folder: Path) -> None:
        _library.cache_clear()
        _splits_at_spaces.cache_clear()
        model = folder / "model"
        shutil.copytree(world().model, model)
        for name, content in (_EXTRAS if hostile in _EXTRAS else {}).items():
            put(model, name, content)
        if hostile.endswith("index.json"):
            (model / "model.safetensors").rename(model / "model-00001-of-00001.safetensors")
        (model / hostile).write_bytes(data)
        may_refuse(checked_config, model)
        source = vet(model, "hostile")
        files_of(model)
        if load:
            from_folder(source)

    return read


def _tokenizer(data: bytes, folder: Path) -> None:
    """Use a tokenizer.json in every way in which the harness does."""
    _library.cache_clear()
    _splits_at_spaces.cache_clear()
    tokenizer = Tokenizer.from_file(put(folder, "tokenizer.json", data))
    assert tokenizer.vocab_size > tokenizer.special_ids.max(initial=0)
    assert tokenizer.pad_id >= 0
    tokenize(["a text", "", "na\u00efve \U0001f600 " * 40], tokenizer, 16 + sum(map(len, tokenizer.frame)))
    kinds_of_tokens(tokenizer)
    _read_tokenizer(tokenizer)


def _terms(data: bytes, folder: Path) -> None:
    """Load hostile terms of TF-IDF, as a fitted model stores them."""
    _fitted_terms().save(folder)
    (folder / "terms.npy").write_bytes(data)
    Tfidf(_byte_tokenizer(), TextSettings()).load(folder)


@cache
def _byte_tokenizer() -> Tokenizer:
    return Tokenizer.from_file(world().model / "tokenizer.json")


@cache
def _fitted_terms() -> Tfidf:
    tfidf = Tfidf(_byte_tokenizer(), TextSettings())
    tfidf.fit(tokenize(["one two", "two three"], _byte_tokenizer(), 16))
    return tfidf


def _term_seeds() -> list[bytes]:
    folder = world().home / "terms"
    folder.mkdir(exist_ok=True)
    _fitted_terms().save(folder)
    return [(folder / "terms.npy").read_bytes()]


def _tokenizer_seeds() -> list[bytes]:
    """Return a tokenizer of bytes, small enough to be changed everywhere, and one of word pieces."""
    from tokenizers import Tokenizer as Library
    from tokenizers import models, normalizers, pre_tokenizers, processors

    whole = json.loads((world().model / "tokenizer.json").read_bytes())
    vocabulary = dict(list(whole["model"]["vocab"].items())[:40])
    pieces = {name: place for place, name in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "text", "##s", "."))}
    library = Library(models.WordPiece(pieces, unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    library.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    library.enable_padding(length=8)
    library.enable_truncation(8)
    short = json.dumps(whole | {"model": whole["model"] | {"vocab": vocabulary}})
    return [short.encode(), library.to_str().encode()]


# ---------------------------------------------------------------- settings in files


def _config_seeds() -> list[bytes]:
    own = b"method: depsl\nencoder: tiny\nlr_encoder: 1e-5\nks: [1, 3]\nsearch: {k: 10}\nvalidation:\n  size: 0.1\n"
    return [own, (world().run / "config.json").read_bytes()]


def _method(data: bytes, folder: Path) -> None:
    """Load `dpr` with hostile YAML in place of its own."""
    load_method("dpr")
    methods = put(folder, "methods/dpr.yaml", data).parent
    with mock.patch("harness.settings.method.METHOD_FOLDER", methods):
        read_method_card.cache_clear()
        method_card_path("dpr")
        for check in (check_method, check_search):
            may_refuse(check, "dpr")
    read_method_card.cache_clear()


# ---------------------------------------------------------------- words


def _word(read: Callable[[str], object]) -> Read:
    """Return a reader of a command-line word: bytes that are no UTF-8 arrive as lone surrogates; there is no NUL."""

    def typed(data: bytes, folder: Path) -> None:
        with mock.patch("os.getcwd", return_value=str(folder)):
            read(os.fsdecode(data.replace(b"\0", b"")))

    return typed


def _setting(text: str) -> None:
    config, _ = resolve_config("unidec", "synthetic", [Layer(f"--set {text}", parse_override(text))])
    check_encoder(config.encoder, dict(config.encoder_options))
    check_backend(config.search.backend, dict(config.search.options))
    choose_device(config.device)


def _over(text: str) -> None:
    space = parse_over(text, "unidec", load_method("unidec").params)
    json.dumps([describe(space), to_json(space)])


def _each(*uses: Callable[[str], object]) -> Callable[[str], None]:
    def use_all(text: str) -> None:
        for use in uses:
            may_refuse(use, text)

    return use_all


def _metric(text: str) -> None:
    name = metric_name(text)
    if len(name) < 250:
        assert original_name(name) == text, f"{text!r} became {name!r} became {original_name(name)!r}"
    original_name(text)


_name = _each(
    *(lambda text: checked_name("run", text), run_folder, resolve, published_row, method_card_path),
    lambda text: check_encoder(text, {}),
    lambda text: find_contenders([*split_names([text]), "other"], []),
)


def _model_target(name: str, hostile: str, seed: bytes | None = None, **options: bool) -> Target:
    """Return the target for one file of a model folder; by default the seed is the folder's own file."""
    form = "tensors" if hostile.endswith(".safetensors") else "json"
    seeds = lambda: [seed or (world().model / hostile).read_bytes()]  # noqa: E731
    return Target(name, _model_folder(hostile, **options), seeds, form)


TARGETS = (
    _model_target("model-config", "config.json"),
    _model_target("model-modules", "modules.json", _EXTRAS["modules.json"]),
    _model_target("model-pooling", "1_Pooling/config.json", _EXTRAS["1_Pooling/config.json"]),
    _model_target("model-length", "sentence_bert_config.json", _EXTRAS["sentence_bert_config.json"]),
    _model_target("model-index", "model.safetensors.index.json", json.dumps(_INDEX).encode()),
    _model_target("model-weights", "model.safetensors", load=True),
    Target("tfidf-terms", _terms, _term_seeds, "arrays"),
    Target("tokenizer", _tokenizer, _tokenizer_seeds, "json"),
    Target("run-config", lambda data, folder: check_config(put(folder, "config.json", data)), _config_seeds, "yaml"),
    Target("method-card", _method, lambda: [(METHOD_FOLDER / "dpr.yaml").read_bytes()], "yaml"),
    Target(
        "set-word",
        _word(_setting),
        lambda: [b"search.k=50", b"lr_encoder=1e-5", b"ks=[1, 3]", b"encoder_options={dim: 8}", b"device=cuda:1"],
        "text",
        (b"=", b".", b"params", b"augment=", b"encoder=", b"validation.size="),
    ),
    Target(
        "over-word",
        _word(_over),
        lambda: [b"tau", b"lr_encoder=1e-5:1e-3:log,beta", b"batch_size=64:512:step=64", b"schedule=[cosine,linear]"],
        "text",
        (b":log", b":step=", b"=", b"[", b"]", b"epochs=", b"augment_options.delta=", b"search.k="),
    ),
    Target(
        "synthetic-word",
        _word(lambda text: parse_name(text if text.startswith(PREFIX) else PREFIX + text)),
        lambda: [b"synthetic:train=240,test=60,labels=90", b"noise=0.5,zipf=1", b"seed=7"],
        "text",
        (b"vocabulary=", b"signature=", b"labels_per_row=", b"words="),
    ),
    Target(
        "name",
        _word(_name),
        lambda: [
            b"lf-pydocstitles",
            b"20261116-214054-unidec-x-s0-f29f",
            b"thesis-2.4/unidec/lf-amazon-131k",
            b"unidec",
        ],
        "text",
    ),
    Target(
        "metric-name", _word(_metric), lambda: [b"validation/PSP@5", b"_at__u5f_", b"a" * 260], "text", (b"_u", b"@")
    ),
)
