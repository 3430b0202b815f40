"""What a plan counts, against the same parts in real memory: weights, moments, activations, FLOPs, a whole run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.batching.plan import glued_steps
from harness.data.card import load_card
from harness.model import load_encoder
from harness.model.encoders.encoder import Encoder
from harness.model.encoders.static import StaticEncoder
from harness.plan import Plan, cpu_target, cuda_target, make_plan
from harness.plan.build import planned_encoder
from harness.plan.data import data_sizes, stand_in
from harness.plan.report import method_names
from harness.plan.trace import Calls
from harness.settings.layers import Layer
from harness.settings.method import load_method
from harness.settings.resolve import resolve
from tests.support.small_models import write_model

SMALL = "synthetic:train=300,test=50,labels=200"
GIB = 2**30


def planned(method: str, dataset: str = SMALL, memory: int | None = None, **settings: Any) -> Plan:
    target = cpu_target() if memory is None else cuda_target(memory * GIB)
    return make_plan(method, dataset, [Layer("test", settings)], target)


@pytest.mark.parametrize(
    ("method", "encoder"),
    [
        *((name, "tiny") for name in method_names()),
        *((name, "static") for name in ("unidec", "renee", "ngame", "dexml")),
    ],
)
def test_weights_and_moments_are_those_of_a_real_build(method: str, encoder: str) -> None:
    """Every method: the same tensors, by name, type and size, and so the same bytes."""
    plan = planned(method, encoder=encoder, max_len=32)
    if plan.run.parts.model is None:
        assert not plan.stages
        return
    inputs = stand_in(plan.data, real_encoder(encoder, plan), plan.run.config, plan.data.labels, lambda _: None)
    chosen = load_method(method)
    parts = chosen.build(inputs, chosen.params.model_validate(plan.run.config.params))
    assert parts.model is not None
    assert forms(plan.run.parts.model.state_dict()) == forms(parts.model.state_dict())
    real_bytes = sum(one.nbytes for one in (*parts.model.parameters(), *parts.model.buffers()))
    assert sum(plan.run.weights.values()) == real_bytes
    real = [stage for stage in parts.stages() if stage.epochs]
    assert [stage.name for stage in real] == [stage.name for stage in plan.stages]
    for mine, theirs, held in zip(plan.stages, real, plan.run.held, strict=True):
        state = theirs.optimiser.state()
        assert forms(mine.optimiser.state()) == forms(state)
        counted = sum(sum(sizes) for name, sizes in held.moments.items() if name != "scratch of row updates")
        assert counted == sum(one.nbytes for one in state.values())
        assert mine.source.steps == theirs.source.steps


def real_encoder(name: str, plan: Plan) -> Encoder:
    if name != "static":
        return load_encoder(name, seed=0)
    width = plan.run.inputs.encoder.dim
    words = plan.run.inputs.encoder.tokenizer
    return StaticEncoder(
        torch.zeros(words.vocab_size, width), "uniform", name=name, tokenizer=words, max_len=32, identity=""
    )


def forms(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[Any, ...]]:
    return {name: (one.dtype, *one.shape) for name, one in tensors.items()}


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_activations_are_what_autograd_keeps(kind: str, tmp_path: Path) -> None:
    """Within 5 % of the storages that a real model of the same config saves for its way back."""
    folder = write_model(tmp_path / "model", kind)
    encoder = load_encoder(str(folder), seed=0).train()
    rows, width = 16, 24
    own = {one.untyped_storage().data_ptr() for one in (*encoder.parameters(), *encoder.buffers())}
    kept: dict[int, torch.Tensor] = {}

    def remember(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    lengths = torch.tensor([width, width - 1] + [width] * (rows - 2))
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        vectors = encoder(torch.ones(int(offsets[-1]), dtype=torch.int64), offsets)
    assert vectors.requires_grad
    real = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    call = Calls(planned_encoder(str(folder))[0], False, "cpu").of(rows, width, train=True)
    assert call.kept == pytest.approx(real, rel=0.05)


def test_flops_of_a_transformer_are_those_of_its_formula() -> None:
    """2 (4 H^2 + 2 H F) a token and layer, 4 H W of attention; the way back takes twice as many."""
    hidden, inner, layers, rows, width = 32, 64, 2, 200, 20
    tokens = rows * width
    wanted = layers * tokens * (2 * (4 * hidden**2 + 2 * hidden * inner) + 4 * hidden * width)
    tiny = planned_encoder("tiny")[0]
    calls = Calls(tiny, False, "cpu")
    assert calls.of(rows, width, train=False).forward.full == pytest.approx(wanted)
    call = calls.of(rows, width, train=True)
    assert call.forward.full == pytest.approx(wanted)
    assert call.backward.full == pytest.approx(2 * wanted)
    half = Calls(tiny, True, "cuda").of(rows, width, train=True)
    assert half.forward.half == pytest.approx(wanted)
    assert half.kept < call.kept


def test_flops_of_a_one_vs_all_step_are_three_products() -> None:
    """2 B L D each: scores, gradient of the queries, gradient of the table; more labels continue a line."""
    for labels in (3000, 40_000):
        plan = planned("renee", f"synthetic:train=300,labels={labels}", encoder="static", warm_epochs=0)
        batch = plan.run.batch(plan.stages[0])
        wanted = 3 * 2 * batch * labels * plan.run.inputs.encoder.dim
        assert plan.run.step_cost(0).full == pytest.approx(wanted, rel=0.01)


def test_a_label_is_as_long_as_the_card_says() -> None:
    """Titles beside full texts: taken for full texts, a plan of LF-Amazon-131K would encode ten times as much."""
    card, encoder = load_card("lf-amazon-131k"), load_encoder("tiny", seed=0)
    config = resolve("depsl", card.name, [])[0]
    whole = card.model_copy(update={"label_text": "title+content"})
    titles, texts = (data_sizes(one, config, encoder) for one in (card, whole))
    assert titles.row_tokens == texts.row_tokens == texts.label_tokens == 128
    assert titles.label_tokens < 16


def test_known_encoders_have_their_parameters() -> None:
    def count(name: str, options: str = "{}") -> int:
        return sum(one.numel() for one in planned_encoder(name, options)[0].parameters())

    assert count("distilbert") == count("msmarco-distilbert") == 66_362_880
    assert count("minilm") == 22_713_216 - (384 * 384 + 384)  # without its pooler
    assert count("static", '{"dim": 100}') == 30_522 * 100
    assert planned_encoder("inceptionxml")[0].dim == 480


@pytest.mark.parametrize(("precision", "number"), [("float32", 4), ("bfloat16", 2)])
def test_bytes_of_a_table(precision: str, number: int) -> None:
    """12 or 6 bytes a weight with AdamW, 8 or 4 with momentum; on the host where it is kept there."""
    labels, dim = 50_000, 256
    for method, arrays, more in (("unidec", 3, 4 * labels), ("renee", 2, 0)):
        for place in ("device", "host"):
            settings = {"encoder": "static", "table_precision": precision, "table_device": place}
            plan = planned(method, f"synthetic:train=2000,labels={labels}", memory=24, **settings)
            (step,) = (one for one in plan.phases if one.name in ("train step", "train step, renee"))
            held = [part for part in step.parts if "classifier table" in part.name]
            device, host = sum(part.device for part in held), sum(part.host for part in held)
            assert (host, device)[place == "device"] == arrays * number * labels * dim + more
            assert not (device, host)[place == "device"]


def test_steps_are_those_of_the_training() -> None:
    assert planned("dpr", encoder="tiny", batch_size=70).stages[0].source.steps == glued_steps(300, 70)
    assert [stage.name for stage in planned("renee", encoder="tiny", warm_epochs=0).stages] == ["renee"]
    assert planned("zeroshot", encoder="tiny").stages == ()


RUN = """
import json, sys
from pathlib import Path
import torch
from harness import run as pipeline
from harness.settings.layers import Layer
from harness.model.encoders.transformer import byte_tokenizer
from harness.model.encoders.static import StaticEncoder
from harness.machine.memory import peak_memory_gib

def random_static(name, *, seed, **options):
    facts = {"name": name, "tokenizer": byte_tokenizer(), "max_len": 32, "identity": "random"}
    encoder = StaticEncoder(torch.randn(30_522, 256), "uniform", **facts)
    encoder.adapt = lambda counts: None  # those of bytes
    return encoder

pipeline.load_encoder = random_static
method, dataset, settings = json.loads(sys.argv[1])
config, _ = pipeline.resolve_config(method, dataset, [Layer("test", settings)])
pipeline.run(config, out=Path(sys.argv[2]), track="none")
print(peak_memory_gib() * 2**30)
"""


@pytest.mark.parametrize("method", ["unidec", "renee"])
def test_a_real_run_needs_what_was_foreseen(method: str, tmp_path: Path) -> None:
    """Within 25 %: a third of it is the labels; how much of the libraries is resident differs between processes."""
    dataset = "synthetic:train=200,test=50,labels=30000"
    few: dict[str, Any] = {"random_epochs": 0}
    if method == "renee":
        few = {"warm_epochs": 0, "augment_options": {"rows": 256}}
    settings = {"max_len": 32, "epochs": 1, "batch_size": 128, "warmup_epochs": 0.0, "encoder": "static", **few}
    command = [sys.executable, "-c", RUN, json.dumps([method, dataset, settings]), str(tmp_path)]
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    plan = make_plan(method, dataset, [Layer("test", settings)], cpu_target())
    assert plan.host_bytes == pytest.approx(float(done.stdout.split()[-1]), rel=0.25)
