"""`harness plan`: sizes against real parts, settings against a real run's, verdicts, and what it must not import."""

import inspect
import json
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.batching.cluster import cluster_count
from harness.batching.plan import glued_steps
from harness.config import Layer
from harness.errors import UserError
from harness.index import exact
from harness.method import methods
from harness.model import load_encoder
from harness.model.attention import drop_faster, implementation
from harness.model.encoder import GROUPING
from harness.model.rows import RowTable
from harness.model.scoring import projected
from harness.plan import Plan, cuda_target, make_plan, memory, steps, work
from harness.plan import spec as declared
from harness.plan.encoders import EncoderShape, encoder_shape, folder_shape, transformer
from harness.plan.report import as_markdown, method_names, overview, published_datasets, verdict
from harness.plan.settings import dataset_card, resolve
from harness.plan.sizes import GIB, parse_size
from harness.plan.steps import moment_parts
from harness.run import resolve_config
from harness.train import rowsparse, tables
from harness.train.ova import label_block
from harness.train.rowsparse import RowSparseAdam
from harness.train.settings import OptimSettings
from tests.commands import call
from tests.small_models import write_model

LARGE = "lf-amazontitles-1.3m"


def planned(method: str, dataset: str = LARGE, memory: int = 24, **settings) -> Plan:
    return make_plan(method, dataset, [Layer("test", settings)], cuda_target(memory * GIB))


def test_imports_nothing_heavy() -> None:
    script = """
import sys
from harness.cli import main
try:
    main(["plan", "--method", "renee", "--dataset", "lf-wikipedia-500k", "--device-memory", "24GB", "--json"])
except SystemExit as done:
    assert not done.code, done.code
heavy = [name for name in ("torch", "transformers", "mlflow", "scipy", "pandas", "numpy") if name in sys.modules]
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["method"] == "renee"


@pytest.mark.parametrize("dataset", ["lf-pydocstitles", LARGE])
def test_settings_are_those_of_a_run(dataset: str) -> None:
    """The knobs read from YAML alone equal those that the method itself resolves."""
    card = dataset_card(dataset)
    for name in method_names():
        config, _ = resolve_config(name, dataset, [])
        found = resolve(name, card, [])
        assert found.knobs == config.params, name
        assert found.augment == config.augment
        assert found.config.encoder == config.encoder
        assert found.config.max_len == config.max_len


def test_every_method_has_a_plan_on_every_published_set_without_dense_matrices() -> None:
    """fault 37: no part of a plan is as large as N x L or L x L."""
    datasets = published_datasets()
    assert len(datasets) == 7
    for dataset in datasets:
        for name in method_names():
            plan = planned(name, dataset, memory=80)
            data = plan.run.data
            assert plan.device_bytes > 0
            assert plan.notes == ()
            largest = max(part.device + part.host for phase in plan.phases for part in phase.parts)
            assert largest < data.labels * min(data.labels, data.rows)


@given(rows=st.integers(1, 10**6), size=st.integers(1, 5000))
def test_batches_are_as_many_as_the_training_makes(rows: int, size: int) -> None:
    dataset = f"synthetic:train={rows},labels=1000"
    clustered = planned("depsl", dataset, batch_size=size).run.stages[0]
    assert clustered.steps == cluster_count(rows, size)
    assert clustered.batch == -(-rows // clustered.steps)
    assert planned("dpr", dataset, batch_size=size).run.stages[0].steps == glued_steps(rows, size)


def test_moments_of_the_table_are_those_of_its_optimiser() -> None:
    stage = planned("unidec", "synthetic:labels=700", encoder="static", dim=64).run.stages[0]
    adam = RowSparseAdam(RowTable(torch.zeros(700, 32)))
    real = sum(tensor.nbytes for tensor in (adam.exp_avg, adam.exp_avg_sq, adam.steps))
    assert sum(part.device for part in moment_parts(stage) if "classifier" in part.name) == real


def test_parameters_of_known_encoders() -> None:
    assert encoder_shape("distilbert", {}).dense == 66_362_880
    assert encoder_shape("minilm", {}).dense == 22_713_216 - (384 * 384 + 384)  # without its pooler
    assert encoder_shape("static", {"dim": 100}).parameters == 30_522 * 100


@pytest.mark.parametrize("options", [{}, {"dim": 48, "layers": 3}])
def test_parameters_of_tiny(options: dict[str, int]) -> None:
    assert encoder_shape("tiny", options).parameters == _trained(load_encoder("tiny", seed=0, **options))


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_parameters_of_a_folder(kind: str, tmp_path: Path) -> None:
    sizes = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32} if kind == "distilbert" else {}
    folder = write_model(tmp_path / "model", kind, **sizes)
    assert folder_shape(folder).parameters == _trained(load_encoder(str(folder), seed=0))


def test_a_model_without_token_types_has_no_table_of_them(tmp_path: Path) -> None:
    """DeBERTa writes `type_vocab_size: 0`."""
    sizes = {"hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072, "num_attention_heads": 12}
    config = {**sizes, "model_type": "deberta-v2", "vocab_size": 128_100, "max_position_embeddings": 512}
    dense = {}
    for types in (0, None, 1, 2):
        (tmp_path / "config.json").write_text(json.dumps({**config, "type_vocab_size": types}))
        dense[types] = folder_shape(tmp_path).dense
    assert dense[0] == dense[None] == 183_830_016
    assert (dense[1] - dense[0], dense[2] - dense[0]) == (768, 2 * 768)


def _trained(encoder: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in encoder.parameters())


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
@pytest.mark.parametrize("attention_dropout", [0.0, 0.1])
def test_activations_are_what_autograd_keeps(kind: str, attention_dropout: float) -> None:
    width, inner, layers, heads, rows, length = 64, 256, 2, 4, 8, 48
    shape = transformer(
        "small", vocabulary=100, positions=64, types=2, width=width, layers=layers, inner=inner, heads=heads, max_len=64
    )
    shape = EncoderShape(
        **{**shape.__dict__, "dropouts": 1 if kind == "distilbert" else 2, "attention_dropout": attention_dropout > 0}
    )
    kept = _kept_by_autograd(kind, width, inner, layers, heads, attention_dropout, rows, length)
    workspace = 8 * inner * rows * length  # of the way back, which has not begun
    foreseen = shape.kept_bytes(rows * length, length, half=False, cuda=False) - workspace
    assert foreseen == pytest.approx(kept, rel=0.05)


def _kept_by_autograd(
    kind: str, width: int, inner: int, layers: int, heads: int, dropout: float, rows: int, length: int
) -> int:
    from transformers import AutoConfig, AutoModel

    names = {
        "distilbert": ("dim", "hidden_dim", "n_layers", "n_heads", "attention_dropout"),
        "bert": (
            *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
            "attention_probs_dropout_prob",
        ),
    }
    sizes = dict(zip(names[kind], (width, inner, layers, heads, dropout), strict=True))
    config = AutoConfig.for_model(kind, vocab_size=100, max_position_embeddings=64, **sizes)
    model = AutoModel.from_config(config, attn_implementation=implementation("sdpa")).train()
    drop_faster(model)
    if hasattr(model, "pooler"):
        model.pooler = None
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def remember(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = tensor
        return tensor

    mask = torch.ones(rows, length, dtype=torch.long)
    mask[0, -2:] = 0
    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        hidden = model(input_ids=torch.ones(rows, length, dtype=torch.long), attention_mask=mask).last_hidden_state
        pooled = (hidden * mask[:, :, None]).sum(1)
    assert pooled.requires_grad
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def test_the_micro_batch_is_the_largest_power_of_two_that_fits() -> None:
    plan = planned("unidec", "lf-amazon-131k", memory=12)
    best = plan.best_micro_batch
    assert best is not None
    assert best & (best - 1) == 0
    assert plan.with_micro_batch(best).fits
    assert not plan.with_micro_batch(2 * best).fits
    assert f"--set micro_batch_tokens={best}" in verdict(plan)


def test_a_micro_batch_larger_than_a_batch_is_left_alone() -> None:
    plan = planned("dpr", "lf-wikititles-500k", encoder="msmarco-distilbert")
    assert plan.best_micro_batch is not None
    assert plan.best_micro_batch < (plan.micro_batch_tokens or 0)
    assert plan.with_micro_batch(plan.best_micro_batch).device_bytes == plan.device_bytes
    assert verdict(plan).endswith("a larger one changes nothing")


def test_blocks_are_those_of_the_code() -> None:
    """Plans import no torch, so they repeat the sizes of what computes."""
    assert inspect.signature(projected).parameters["block"].default == memory._HEAD_BLOCK
    assert {kind: 4 * 4 * size for kind, size in rowsparse.BLOCK_ELEMENTS.items()} == steps._ROW_SCRATCH
    assert tables.START_BLOCK == memory._START_BLOCK
    assert declared.QUANTITIES["micro_batch_tokens"] == OptimSettings.model_fields["micro_batch_tokens"].default
    for kind in ("cpu", "cuda"):
        assert exact._BLOCKS[kind][:2] == (memory._SEARCH_QUERIES[kind], memory._SEARCH_LABELS)
        assert label_block(kind) == work._BLOCK_ON[kind]
        assert GROUPING[kind].most == work._GROUP_TOKENS[kind]


def test_a_micro_batch_that_is_too_large_is_replaced_by_one_that_fits() -> None:
    plan = planned("unidec", "lf-amazon-131k", memory=12, micro_batch_tokens=2**20)
    assert not plan.fits
    assert f"fits with --set micro_batch_tokens={plan.best_micro_batch}" in verdict(plan)


def test_what_does_not_fit_says_what_to_change() -> None:
    plan = planned("unidec", memory=4)
    assert plan.best_micro_batch is None
    assert "does not fit 4 GB" in verdict(plan)
    assert "lower dim, or take a method without a classifier" in verdict(plan)


def test_memory_follows_the_settings() -> None:
    base = planned("unidec").device_bytes
    assert planned("unidec", dim=256).device_bytes < base
    assert planned("unidec", gradient_cache=False).device_bytes > base
    assert planned("renee", momentum=0.0).device_bytes < planned("renee").device_bytes
    table = 1_305_265 * 256 * 4
    held = sum(part.device for part in planned("unidec").phases[1].parts if "classifier" in part.name)
    assert held == 3 * table + 4 * 1_305_265


def test_conditions_choose_the_stage() -> None:
    assert [stage.kind for stage in planned("dexml").run.stages] == ["all-labels"]
    assert [stage.kind for stage in planned("dexml-hnm").run.stages] == ["pool"]
    drawn = planned("dexml-hnm", loss="soft-topk").run.stages[0]
    assert drawn.value("beta") == 5
    assert planned("dexml-inbatch").run.stages[0].value("eta") == 0
    assert [stage.kind for stage in planned("renee", warm_epochs=0).run.stages] == ["one-vs-all"]


def test_an_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(UserError, match="test: unknown key 'bta'; did you mean 'beta'"):
        planned("unidec", bta=3)
    with pytest.raises(UserError, match="unknown key 'etaa'; did you mean 'eta'"):
        planned("unidec", params={"etaa": 3})
    with pytest.raises(UserError, match="did you mean 'lf-amazon-131k'"):
        planned("unidec", "lf-amazon-131")
    with pytest.raises(UserError, match="unknown encoder 'distilbrt'"):
        planned("unidec", encoder="distilbrt")
    with pytest.raises(UserError, match="unknown method 'unidek'"):
        planned("unidek")
    with pytest.raises(UserError, match="data import"):
        planned("unidec", "./folder")
    with pytest.raises(UserError, match=r"search\.k"):
        planned("unidec", search={"k": "many"})


def test_a_method_from_outside_is_planned_without_being_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere_method.py").write_text("raise RuntimeError('imported')\n")
    (tmp_path / "elsewhere_method.yaml").write_text("summary: theirs\nparams:\n  flip: true\n")
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("theirs", "elsewhere_method:METHOD", "xmc_harness.methods")
    monkeypatch.setattr("harness.registry.entry_points", lambda group: [point] if group == point.group else [])
    methods.cache_clear()
    try:
        plan = planned("theirs", flip=False)
    finally:
        methods.cache_clear()
    assert plan.notes == (
        "method theirs declares no plan: its encoder, data and search are planned, its training is not",
    )
    assert [phase.name for phase in plan.phases] == ["evaluation"]


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        ("dot_when: {mode: fast}", "dot_when: no knob mode"),
        ("stages: [{name: x, kind: pool, knobs: {eta: nothing}}]", "no knob nothing"),
        ("stages: [{name: x, kind: pool, when: {mode: fast}}]", "no knob mode"),
        ("stages: [{name: x, kind: pool, fixed: {bta: 1}}]", "did you mean 'beta'"),
        ("stages: [{name: x, kind: swimming}]", "stages.0.kind"),
        ("heads: 1", "need the knob dim"),
        ("views: [de, clf]", "say in `table`"),
        ("fitted: trees\n  stages: [{name: x, kind: pool}]", "leave one of the two out"),
        ("tabel: adam", "did you mean 'table'"),
    ],
)
def test_a_faulty_section_is_refused(
    section: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.method.METHOD_FOLDER", tmp_path)
    (tmp_path / "mine.yaml").write_text(f"summary: mine\nparams:\n  eta: 1\nplan:\n  {section}\n")
    with pytest.raises(UserError, match=complaint):
        declared.check_plan("mine", {"eta"})


def test_a_method_of_ours_needs_a_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.method.METHOD_FOLDER", tmp_path)
    (tmp_path / "bare.yaml").write_text("summary: mine\n")
    with pytest.raises(UserError, match=r"bare\.yaml: plan: missing"):
        declared.check_plan("bare", set())


def test_the_command_prints_parts_verdict_and_assumptions(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", "--method", "unidec", "--dataset", LARGE, "--device-memory", "24GB") == 0
    shown = capsys.readouterr().out
    assert "moments of the classifier table" in shown
    assert "verdict     fits 24 GB with micro_batch_tokens=16384" in shown
    assert "an estimate: NVIDIA A10, published peaks" in shown
    assert "1.6 word pieces a word" in shown


def test_the_overview_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "plan.md"
    wanted = ("--encoder", "distilbert", "--method", "renee", "--device-memory", "24GB,80GB", "--out", str(page))
    assert call("plan", "--all", *wanted) == 0
    text = page.read_text()
    assert text.count("| renee |") == 6
    assert "## 80 GB (NVIDIA A100 80GB)" in text
    capsys.readouterr()
    assert call("plan", "--all", "--method", "renee", "--dataset", LARGE, "--json") == 0
    assert [plan["device"]["bytes"] // GIB for plan in json.loads(capsys.readouterr().out)] == [24, 48, 80]


def test_the_committed_page_is_up_to_date() -> None:
    """Regenerate: python -m harness plan --all --encoder msmarco-distilbert --format md --out reports/plan.md."""
    encoder = "msmarco-distilbert"
    targets = [cuda_target(size * GIB) for size in (24, 48, 80)]
    found = overview(method_names(), published_datasets(), [Layer("--encoder", {"encoder": encoder})], targets)
    committed = Path(__file__).parents[1] / "reports" / "plan.md"
    assert committed.read_text() == as_markdown(found, encoder)


@pytest.mark.parametrize(
    "arguments",
    [("--device-memory", "much"), ("--device-memory", "0GB"), ("--out", "x.md"), ("--all", "--format", "tex")],
)
def test_wrong_options_are_one_line(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", *arguments) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_sizes_are_read_as_makers_of_memory_write_them() -> None:
    assert parse_size("24GB") == parse_size("24 GiB") == parse_size("24g") == 24 * GIB
    assert parse_size("1.5T") == 1536 * GIB
    assert parse_size("512M") == 512 * 2**20
    with pytest.raises(UserError, match="write for example 24GB"):
        parse_size("24")  # bytes, or what everybody means?


@pytest.mark.parametrize("setting", ["batch_size=x", "batch_size=0", "epochs=-3", "lambda=hello", "precision=3"])
def test_values_that_cannot_be_are_refused(setting: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", "--dataset", "lf-amazontitles-131k", "--set", setting) == 2
    assert f"--set {setting}: {setting.partition('=')[0]} is" in capsys.readouterr().err


def test_a_classifier_that_is_searched_by_dot_products_needs_no_scaled_copy() -> None:
    """Of a table on the host, which is searched where it lies; one on the device is copied from there anyway."""
    cosine, dot = (planned("unidec", table_device="host", logits=logits) for logits in ("dot", "plain-dot"))
    vectors = [
        part.host
        for plan in (cosine, dot)
        for phase in plan.phases
        if phase.name == "evaluation"
        for part in phase.parts
        if part.name == "vectors of the evaluation"
    ]
    assert vectors[0] - vectors[1] == pytest.approx(cosine.run.data.labels * cosine.run.dim * 4)
