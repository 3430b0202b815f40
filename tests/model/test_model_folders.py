"""Model folders: what is read from them, what is refused, and where hub models are looked for."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from harness.data.tokens import tokenize
from harness.errors import DataError, UserError
from harness.model.encoders.encoder import encode, load_encoder
from harness.model.encoders.pretrained import vet
from harness.model.encoders.transformer import byte_tokenizer
from tests.support.commands import call
from tests.support.small_models import TEXTS, edit_json

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.usefixtures("models_home")


@pytest.fixture
def copy_of(bert_folder, tmp_path):
    """A copy of the small model that a test may spoil."""
    return Path(shutil.copytree(bert_folder, tmp_path / "copy"))


def test_identity_follows_content(bert_folder, copy_of):
    original, same = vet(bert_folder, "a"), vet(copy_of, "b")
    assert original.identity == same.identity
    assert vet(copy_of, "b", pooling="cls").identity != same.identity
    path = copy_of / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert vet(copy_of, "b").identity != same.identity


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode": "max"}, "max"),
        ({"word_embedding_dimension": 16}, "mean"),
    ],
)
def test_pooling_comes_from_the_folder(copy_of, settings, expected):
    (copy_of / "1_Pooling").mkdir()
    (copy_of / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    (copy_of / "sentence_bert_config.json").write_text('{"max_seq_length": 17}')
    assert vet(copy_of, "x").pooling == expected
    assert vet(copy_of, "x", pooling="mean").pooling == "mean"
    assert vet(copy_of, "x").max_len == 17


def test_sharded_weights_and_a_transformer_in_a_subfolder(bert_folder, tmp_path):
    from transformers import AutoModel

    folder = tmp_path / "old-layout" / "0_Transformer"
    AutoModel.from_pretrained(bert_folder).save_pretrained(folder, max_shard_size="10KB")
    shutil.copy(bert_folder / "tokenizer.json", folder / "tokenizer.json")
    modules = [
        {"idx": 0, "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]
    (folder.parent / "modules.json").write_text(json.dumps(modules))
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    tokens = tokenize(TEXTS, byte_tokenizer(), 24)
    whole, sharded = load_encoder(str(bert_folder), seed=0), load_encoder(str(folder.parent), seed=0)
    np.testing.assert_array_equal(encode(whole, tokens), encode(sharded, tokens))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"auto_map": {"AutoModel": "modeling.Evil"}}, "auto_map is refused"),
        ({"_attn_implementation_internal": "someone/kernel"}, "_attn_implementation_internal is refused"),
        ({"_attn_implementation": "someone/kernel"}, "_attn_implementation is refused"),
        ({"sub_config": [{"_attn_implementation_internal": "a/b"}]}, "_attn_implementation_internal is refused"),
        ({"custom_pipelines": {"x": {"impl": "pipeline.Evil"}}}, "custom_pipelines is refused"),
        ({"layers": [{"trust_remote_code": True}]}, "trust_remote_code is refused"),
        ({"custom_code": "modeling.py"}, "custom_code is refused"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is refused"),
        ({"model_type": "llama"}, "model_type 'llama' is not supported"),
        ({"vocab_size": 100}, "260 ids but the model only 100"),
        ({"max_position_embeddings": "many"}, "not those of an encoder"),
    ],
)
def test_config_that_must_not_load(copy_of, changes, message):
    """fault 69: remote code and named kernels are refused before anything is loaded."""
    edit_json(copy_of / "config.json", **changes)
    with pytest.raises(UserError, match=re.escape(message)):
        load_encoder(str(copy_of), seed=0)


CODE_KEYS = ("auto_map", "custom_code", "custom_pipelines", "trust_remote_code")
EVIL = {
    # file of the folder: what is in it, and what is said of it
    "config.json": ({"auto_map": {"AutoModel": "modeling_evil.Evil"}}, "auto_map is refused"),
    "tokenizer_config.json": ({"auto_map": {"AutoTokenizer": ["modeling_evil.Evil", None]}}, "auto_map is refused"),
    "generation_config.json": ({"deep": [{"auto_map": {"x": "modeling_evil.Evil"}}]}, "auto_map is refused"),
    "modules.json": ([{"path": "", "type": "modeling_evil.Transformer"}], "is Python code from elsewhere"),
}


@pytest.mark.parametrize("name", EVIL)
def test_a_folder_with_code_of_its_own_is_refused_wherever_it_is_named(name, copy_of, tmp_path, monkeypatch, account):
    """fault 69: as an encoder, as a teacher, in the place of a hub model, and on the command line; none of it runs"""
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path / "home"))
    marker = tmp_path / "marker"
    (copy_of / "modeling_evil.py").write_text(
        f"open({str(marker)!r}, 'w').close()\nclass Evil: pass\nTransformer = Evil\n"
    )
    changes, message = EVIL[name]
    whole = json.loads((copy_of / name).read_text()) if (copy_of / name).exists() else {}
    (copy_of / name).write_text(json.dumps({**whole, **changes} if isinstance(changes, dict) else changes))
    ways = {
        "encoder": lambda: load_encoder(str(copy_of), seed=0),
        "teacher": lambda: load_encoder("static", seed=0, teacher=str(copy_of)),
        "copy of a hub model": lambda: load_encoder("distilbert", seed=0),
    }
    shutil.copytree(copy_of, tmp_path / "home" / "models" / "distilbert")
    for way in ways.values():
        with pytest.raises(UserError, match=message):
            way()
    assert call("run", "--method", "zeroshot", "--dataset", "synthetic", "--encoder", f"{copy_of}/") == 2
    assert not marker.exists()
    assert not any("modeling_evil" in module for module in sys.modules)
    account.did(f"{name} of a model folder names its own code; as {', '.join(ways)} and --encoder")
    account.saw(f"4 of 4 refused ({message}), and its code was not imported")


@pytest.mark.parametrize(
    "name",
    [
        "sentence_bert_config.json",
        "config_sentence_transformers.json",
        "special_tokens_map.json",
        "1_Pooling/config.json",
        "1_Pooling/deeper/any.json",
        "tokenizer.json",
        "model.safetensors.index.json",
    ],
)
def test_code_is_refused_in_every_json_file(name, copy_of):
    """fault 69: also in those that are not read, and in folders of the folder; a value that asks for nothing is none"""
    path = copy_of / name
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = json.loads(path.read_text()) if path.exists() else {}
    nested = name not in ("tokenizer.json", "model.safetensors.index.json")
    if name != "tokenizer.json":  # its reader refuses every key that it does not know
        harmless = dict(zip(CODE_KEYS, (False, None, {}, []), strict=True))
        path.write_text(json.dumps({**whole, **({"model_args": [harmless]} if nested else {}), **harmless}))
        vet(copy_of, "x")
    for key in CODE_KEYS:
        path.write_text(json.dumps({**whole, **({"model_args": [{key: "a.B"}]} if nested else {key: "a.B"})}))
        with pytest.raises(UserError, match=rf"{re.escape(name)}: {key} is refused"):
            vet(copy_of, "x")


def test_words_and_weights_may_be_called_as_they_like(copy_of):
    """Tables of a million rows are not looked through: their keys are words of a language, or names of weights."""
    tokenizer = json.loads((copy_of / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["auto_map"] = len(vocabulary)
    (copy_of / "tokenizer.json").write_text(json.dumps(tokenizer))
    edit_json(copy_of / "config.json", vocab_size=len(vocabulary) + 1)
    (copy_of / "model.safetensors.index.json").write_text('{"weight_map": {"auto_map": "model.safetensors"}}')
    assert vet(copy_of, "x").tokenizer.vocab_size >= len(vocabulary)


def test_pickled_weights_are_refused_unread(copy_of, tmp_path):
    """fault 67: a payload that would leave a marker when unpickled leaves none."""
    marker = tmp_path / "marker"
    payload = f"cposix\nsystem\n(S'touch {marker}'\ntR.".encode()
    (copy_of / "pytorch_model.bin").write_bytes(payload)
    (copy_of / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"pytorch_model\.bin can run code .* model\.safetensors is needed"):
        load_encoder(str(copy_of), seed=0)
    assert not marker.exists()


def test_missing_parts_are_named(copy_of):
    (copy_of / "tokenizer.json").rename(copy_of / "vocab.txt")
    with pytest.raises(UserError, match=r"tokenizer\.json is missing"):
        load_encoder(str(copy_of), seed=0)
    (copy_of / "config.json").unlink()
    with pytest.raises(UserError, match=r"config\.json is missing"):
        load_encoder(str(copy_of), seed=0)
    with pytest.raises(UserError, match="does not exist"):
        load_encoder(str(copy_of / "nowhere"), seed=0)


def test_incomplete_and_broken_weights_are_refused(copy_of):
    """A layer that the file lacks would otherwise start at random without a word."""
    path = copy_of / "model.safetensors"
    complete = load_file(path)
    cut = {name: value for name, value in complete.items() if "layer.1" not in name}
    save_file(cut, path, metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"weights are missing .*encoder\.layer\.1"):
        load_encoder(str(copy_of), seed=0)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match="could not be loaded"):
        load_encoder(str(copy_of), seed=0)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ({"path": "2_Dense", "type": "sentence_transformers.models.Dense"}, "a Dense layer follows"),
        ({"path": "../../etc", "type": "sentence_transformers.models.Pooling"}, "leaves the folder"),
        ({"path": ""}, "not those of an encoder"),
        ({"path": "2_Own", "type": "my_package.Pooling"}, "is Python code from elsewhere"),
    ],
)
def test_modules_that_cannot_be_honoured(copy_of, module, message):
    (copy_of / "modules.json").write_text(json.dumps([module]))
    with pytest.raises(UserError, match=message):
        load_encoder(str(copy_of), seed=0)


def test_adapters_and_combined_pooling_are_refused(copy_of):
    with pytest.raises(UserError, match=r"pooling lasttoken is not supported"):
        load_encoder(str(copy_of), seed=0, pooling="lasttoken")
    (copy_of / "1_Pooling").mkdir()
    (copy_of / "1_Pooling" / "config.json").write_text('{"pooling_mode": ["cls", "mean"]}')
    with pytest.raises(UserError, match=r"pooling cls\+mean is not supported"):
        load_encoder(str(copy_of), seed=0)
    (copy_of / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match="adapters are not loaded"):
        load_encoder(str(copy_of), seed=0)


def test_names_and_options_are_checked(bert_folder):
    with pytest.raises(UserError, match="did you mean 'minilm'"):
        load_encoder("minilmm", seed=0)
    with pytest.raises(UserError, match="unknown option of encoder tiny 'maxlen'"):
        load_encoder("tiny", seed=0, maxlen=3)
    with pytest.raises(UserError, match="reads at most 80 tokens"):
        vet(bert_folder, "small", max_len=81)
    with pytest.raises(UserError, match="did you mean 'minilm'"):
        load_encoder("static", seed=0, teacher="minilmm")


# ---------------------------------------------------------------- the hub

ASK_THE_HUB = """
import sys
from harness.errors import UserError
from harness.model.encoders.pretrained import find
for name in ("msmarco-distilbert", "distilbert"):
    try:
        print(find(name).folder)
    except UserError as error:
        print(error)
assert "torch" not in sys.modules
"""


def test_offline_the_cache_is_used_or_what_is_missing_is_named_at_once(bert_folder, tmp_path, account):
    """fault 36: HF_HUB_OFFLINE=1, with one model in the cache and one that is not"""
    repository = tmp_path / "hub" / "hub" / "models--distilbert--distilbert-base-uncased"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("1" * 40)
    snapshot = Path(shutil.copytree(bert_folder, repository / "snapshots" / ("1" * 40)))
    home = tmp_path / "home"
    own = {"HF_HOME": str(tmp_path / "hub"), "HARNESS_HOME": str(home), "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", ASK_THE_HUB], env={**os.environ, **own}, capture_output=True, text=True, timeout=60
    )
    assert time.perf_counter() - started < 30  # a few of them on a machine that is not busy
    assert done.returncode == 0, done.stderr
    missing, found = done.stdout.splitlines()
    for part in ("HF_HUB_OFFLINE", "config.json", "model.safetensors", "tokenizer.json"):
        assert part in missing
    assert str(home / "models" / "msmarco-distilbert") in missing
    assert Path(found) == snapshot
    account.did("two models asked for with HF_HUB_OFFLINE=1 in a new process, one of them in the cache")
    account.saw(f"found: snapshots/{snapshot.name[:8]}...; of the other one line names the files to be put where")


def test_no_network_is_one_line(monkeypatch):
    import huggingface_hub

    def unreachable(*_, local_files_only=False, **__):
        if local_files_only:
            raise huggingface_hub.errors.LocalEntryNotFoundError("not cached")
        raise ConnectionError("Name or service not known\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(
        UserError, match=r"could not be downloaded \(Name or service not known\); put config\.json"
    ) as caught:
        load_encoder("msmarco-distilbert", seed=0)
    assert "\n" not in str(caught.value)
