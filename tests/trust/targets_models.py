"""Readers of model folders, of settings in files, and of words that people type on a command line."""

import json
import os
import shutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from unittest import mock

from harness.bench.plan import Faults, parsed_seeds
from harness.cli.data import _constants
from harness.config import Layer, parse_override
from harness.data.prepare import resolve
from harness.data.sources.synthetic import PREFIX, parse_name
from harness.data.tokens import Tokenizer, _library, _splits_at_spaces, tokenize
from harness.files import checked_name
from harness.index import check_backend
from harness.method import METHOD_FOLDER, load_method, method_card_path, read_method_card
from harness.model import check_encoder
from harness.model.export import _read_tokenizer
from harness.model.tfidf import TextSettings, Tfidf, kinds_of_tokens
from harness.model.transformer import from_folder
from harness.model.vetting import files_of, vet
from harness.plan.devices import cuda_target
from harness.plan.encoders import folder_shape
from harness.plan.sizes import parse_size, show_size
from harness.published import PUBLISHED_FOLDER, published_row
from harness.record import run_folder
from harness.report.comparing.contenders import find_contenders, split_names
from harness.run import choose_device, resolve_config
from harness.sweep.space import describe, from_json, parse_over, to_json
from harness.tracking.names import metric_name, original_name
from harness.tracking.reaping import parse_age
from harness.validate import check_config, check_method, check_published, check_search
from tests.trust.fuzzing import Target, may_refuse
from tests.trust.world import world

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
    """A model folder one file of which is hostile: vetted, planned for, and loaded if that is what the file is for."""

    def read(data: bytes, folder: Path) -> None:
        _library.cache_clear()
        _splits_at_spaces.cache_clear()
        model = folder / "model"
        shutil.copytree(world().model, model)
        for name, content in (_EXTRAS if hostile in _EXTRAS else {}).items():
            (model / name).parent.mkdir(exist_ok=True)
            (model / name).write_bytes(content)
        if hostile.endswith("index.json"):
            (model / "model.safetensors").rename(model / "model-00001-of-00001.safetensors")
        (model / hostile).write_bytes(data)
        may_refuse(partial(folder_shape, model))
        source = vet(model, "hostile")
        files_of(model)
        if load:
            from_folder(source)

    return read


def _tokenizer(data: bytes, folder: Path) -> None:
    """Everything that is ever asked of a tokenizer.json."""
    _library.cache_clear()
    _splits_at_spaces.cache_clear()
    (folder / "tokenizer.json").write_bytes(data)
    tokenizer = Tokenizer.from_file(folder / "tokenizer.json")
    assert tokenizer.vocab_size > tokenizer.special_ids.max(initial=0)
    assert tokenizer.pad_id >= 0
    tokenize(["a text", "", "na\u00efve \U0001f600 " * 40], tokenizer, 16 + sum(map(len, tokenizer.frame)))
    kinds_of_tokens(tokenizer)
    _read_tokenizer(tokenizer)


def _terms(hostile: str) -> Read:
    """Words and weights of TF-IDF, as a fitted model keeps them."""

    def read(data: bytes, folder: Path) -> None:
        tfidf = _fitted_terms()
        tfidf.save(folder)
        (folder / hostile).write_bytes(data)
        Tfidf(_byte_tokenizer(), TextSettings()).load(folder)

    return read


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
    """That of bytes, small enough to be changed everywhere, and one of word pieces."""
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


def _config(data: bytes, folder: Path) -> None:
    (folder / "config.json").write_bytes(data)
    check_config(folder / "config.json")


def _config_seeds() -> list[bytes]:
    own = b"method: depsl\nencoder: tiny\nlr_encoder: 1e-5\nks: [1, 3]\nsearch: {k: 10}\nvalidation:\n  size: 0.1\n"
    return [own, (world().run / "config.json").read_bytes()]


def _method(data: bytes, folder: Path) -> None:
    """The YAML beside a method, in the place of that of dpr."""
    load_method("dpr")
    methods = folder / "methods"
    methods.mkdir()
    (methods / "dpr.yaml").write_bytes(data)
    with mock.patch("harness.method.METHOD_FOLDER", methods):
        read_method_card.cache_clear()
        method_card_path("dpr")
        for check in (check_method, check_search):
            may_refuse(partial(check, "dpr"))
    read_method_card.cache_clear()


def _published(data: bytes, folder: Path) -> None:
    (folder / "thesis-2.4.yaml").write_bytes(data)
    check_published(folder / "thesis-2.4.yaml")


@cache
def _published_seeds() -> list[bytes]:
    """A table of two rows, cut out of a whole one, which would take its reader most of the time."""
    from harness.yaml import format_yaml, read_yaml

    table = read_yaml(PUBLISHED_FOLDER / "thesis-2.4.yaml")
    return [format_yaml({**table, "rows": table["rows"][:2]}).encode()]


# ---------------------------------------------------------------- words


def _word(read: Callable[[str], object]) -> Read:
    """As the system hands them over: bytes that are no UTF-8 arrive as lone surrogates, and none holds a NUL."""

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
    describe(from_json(json.loads(json.dumps(to_json(space)))))


def _size(text: str) -> None:
    target = cuda_target(parse_size(text))
    show_size(target.capacity or 0)


def _each(*uses: Callable[[str], object]) -> Callable[[str], None]:
    def use_all(text: str) -> None:
        for use in uses:
            may_refuse(partial(use, text))

    return use_all


def _seeds_of_bench(text: str) -> None:
    faults = Faults()
    parsed_seeds(text, faults)


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

TARGETS = (
    Target(
        "model-config", _model_folder("config.json"), lambda: [(world().model / "config.json").read_bytes()], "json"
    ),
    Target("model-modules", _model_folder("modules.json"), lambda: [_EXTRAS["modules.json"]], "json"),
    Target("model-pooling", _model_folder("1_Pooling/config.json"), lambda: [_EXTRAS["1_Pooling/config.json"]], "json"),
    Target(
        "model-length",
        _model_folder("sentence_bert_config.json"),
        lambda: [_EXTRAS["sentence_bert_config.json"]],
        "json",
    ),
    Target("model-index", _model_folder("model.safetensors.index.json"), lambda: [json.dumps(_INDEX).encode()], "json"),
    Target(
        "model-weights",
        _model_folder("model.safetensors", load=True),
        lambda: [(world().model / "model.safetensors").read_bytes()],
        "tensors",
    ),
    Target("tfidf-terms", _terms("terms.npy"), _term_seeds, "arrays"),
    Target("tokenizer", _tokenizer, _tokenizer_seeds, "json"),
    Target("run-config", _config, _config_seeds, "yaml"),
    Target("method-card", _method, lambda: [(METHOD_FOLDER / "dpr.yaml").read_bytes()], "yaml"),
    Target("published-table", _published, _published_seeds, "yaml"),
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
    Target("size-word", _word(_size), lambda: [b"24GB", b"512M", b"1.5 TiB"], "text"),
    Target("age-word", _word(parse_age), lambda: [b"90s", b"5m", b"2h", b"1d"], "text"),
    Target("seeds-word", _word(_seeds_of_bench), lambda: [b"0,1,2", b" 7 "], "text"),
    Target("propensity-word", _word(_constants), lambda: [b"0.55,1.5"], "text"),
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
