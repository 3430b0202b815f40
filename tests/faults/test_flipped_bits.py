"""One flipped bit in everything that is stored: refused with a sentence, or made again as it was."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness.data import load
from harness.data.prepare import prepared_folders
from harness.errors import UserError
from harness.infer.load import load_run
from harness.infer.predict import label_vectors
from harness.infer.serve import load_package
from harness.io.files import sha256_file, sha256_json
from harness.model.encoders.encoder import load_encoder
from harness.report.compare import Run
from harness.report.explorer.predictions import open_prepared, read_predictions
from harness.report.results import run_rows
from harness.run import resolve_config, run
from harness.runs.package import assemble
from harness.runs.record import RunRecord, read_record
from harness.settings.layers import Layer
from harness.train.checkpoint import Checkpoints
from harness.train.inputs import tokenise
from tests.faults.accounts import Account
from tests.support.damage import flip_bit
from tests.support.finished_runs import DATA

Read = Callable[[], Any]


def stored(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def damage(files: list[Path], read: Read, kind: str) -> tuple[int, int, int]:
    """Flip bits at random places, one at a time, in every file; how many, how often refused, how often rebuilt."""
    assert files
    whole, refusals, rebuilt = read(), [], 0
    turns = random.Random(kind).sample(files, len(files))
    flips = max(8, len(files))
    for seed in range(flips):
        file = turns[seed % len(turns)]
        before = sha256_file(file)
        backup = shutil.copyfile(file, file.parents[1] / ".backup")
        flip_bit(file, seed)
        try:
            assert read() == whole, f"{file.name}, seed {seed}: a wrong byte was believed"
            rebuilt += sha256_file(file) == before
        except UserError as error:
            refusals.append((file, str(error)))
        shutil.move(backup, file)
    assert read() == whole
    for file, message in refusals:
        assert "\n" not in message
        assert any(place.name in message for place in (file, file.parent, file.parents[1])), message
    return flips, len(refusals), rebuilt


def digest(*values: Any) -> str:
    """One word for tensors, arrays and anything that JSON can hold."""
    parts = [np.asarray(value).tobytes().hex() if hasattr(value, "__array__") else value for value in values]
    return sha256_json(parts)


def state(trained: Any) -> str:
    return digest(*trained.parts.model.state_dict().values())


# ---------------------------------------------------------------- what cannot be made again is refused


def test_checkpoints_and_models_are_refused(
    own_home: Path, records: dict[str, RunRecord], tmp_path: Path, account: Account
) -> None:
    """fault 68"""
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(7, {"step": 7}, {"weight": torch.arange(500) / 3})

    def latest() -> Any:
        found = checkpoints.latest()
        assert found is not None
        return found[0], digest(found[1]["weight"])

    folder = own_home / "runs" / records["unidec"].run_id
    package = tmp_path / "packed" / "package"
    assemble(folder, package)
    kinds: dict[str, tuple[Path, Read]] = {
        "checkpoint": (tmp_path / "checkpoints" / "step-00000007", latest),
        "model": (folder / "model", lambda: state(load_run(str(folder)))),
        "packed model": (package, lambda: state(load_package(package))),
    }
    found = {kind: damage(stored(place), read, kind) for kind, (place, read) in kinds.items()}
    flips, refusals, _ = map(sum, zip(*found.values(), strict=True))
    assert refusals == flips
    account.did(f"flipped {flips} random bits, one at a time, over every file of a {', a '.join(found)}")
    account.saw(f"{refusals} of {flips} refused, with the file or its folder named")


def test_a_forest_is_refused(own_home: Path, account: Account) -> None:
    """fault 68"""
    pytest.importorskip("omikuji")
    settings = {"encoder": "tiny", "params": {"threads": 1, "max_leaf": 20}}
    record = run(resolve_config("parabel", DATA, [Layer("test", settings)])[0], track="none")
    folder = own_home / "runs" / record.run_id

    def loaded() -> str:
        return load_run(str(folder)).identity

    files = stored(folder / "model")
    flips, refusals, _ = damage(files, loaded, "forest")
    assert refusals == flips
    account.did(f"flipped {flips} random bits in the {len(files)} files of a fitted forest")
    account.saw(f"{refusals} of {flips} refused, with the file or its folder named")


def test_predictions_are_refused(own_home: Path, records: dict[str, RunRecord], account: Account) -> None:
    """fault 68: also where the means of all figures stay what the record says"""
    record = records["unidec"]
    folder = own_home / "runs" / record.run_id
    data = open_prepared(prepared_folders()[record.dataset["digest"]])

    def read() -> str:
        shown = read_predictions(Run(folder, record), data, 80)
        rows = Run(folder, record).scores(None, "P@1")
        scorers = [run_rows(folder, record, scorer) or {} for scorer in record.scorers]
        return digest(shown.ids, shown.scores, shown.hits, rows, *(scorer["P@5"] for scorer in scorers))

    files = [path for path in stored(folder) if path.suffix == ".npy" and path.parent == folder]
    assert {"ids.npy", "scores.npy", "per_row.npy", "per_row.de.npy"} <= {path.name for path in files}
    flips, refusals, _ = damage(files, read, "predictions")
    assert refusals == flips
    account.did(f"flipped {flips} random bits in predictions and per-row scores of a run")
    account.saw(f"{refusals} of {flips} refused, with the file or its folder named")


# ---------------------------------------------------------------- what can be made again is made again


def test_caches_are_made_again(own_home: Path, records: dict[str, RunRecord], teacher: Path, account: Account) -> None:
    """fault 68"""
    trained = load_run(records["depsl"].run_id)
    caches = own_home / "cache"

    def prepared() -> str:
        data = load(DATA)
        columns = (data.train_text, data.test_text, data.label_text, data.label_id)
        arrays = [part for column in columns for part in (column.values, column.offsets)]
        arrays += [
            part for matrix in (data.train, data.test, data.test_filter) for part in (matrix.indices, matrix.indptr)
        ]
        return digest(*arrays, data.digest, {key: data.metadata[key] for key in ("files", "statistics", "fingerprint")})

    def tokens() -> str:
        found = tokenise(load(DATA), trained.encoder, trained.max_len)
        return digest(*(part for one in (found.train, found.labels, found.test) for part in (one.values, one.offsets)))

    def distilled() -> str:
        return digest(*load_encoder("static", seed=0, teacher=str(teacher), dim=12).state_dict().values())

    kinds: dict[str, tuple[str, Read]] = {
        "prepared data": ("datasets", prepared),
        "token cache": ("tokens", tokens),
        "distilled encoder": ("encoders", distilled),
        "label vectors": ("label-vectors", lambda: digest(label_vectors(trained, "de"))),
    }
    found = {}
    for kind, (place, read) in kinds.items():
        shutil.rmtree(caches / place, ignore_errors=True)
        read()  # makes what it needs, and nothing else
        found[kind] = damage([path for path in stored(caches / place) if path.suffix != ".lock"], read, kind)
    assert all(refused == 0 for _, refused, _ in found.values())
    assert all(rebuilt >= flips - 1 for flips, _, rebuilt in found.values()), found  # the name of the seal may be hit
    flips, _, made = map(sum, zip(*found.values(), strict=True))
    account.did(f"{flips} random bits in {', '.join(found)}; manifests too")
    account.saw(f"{flips} reads gave the content from before; {made} files were made anew")


def test_the_record_says_which_encoder_it_was(own_home: Path, records: dict[str, RunRecord], teacher: Path) -> None:
    """fault 68: the weights of a model folder have no manifest of ours, but the run knows their hash"""
    model = Path(shutil.copytree(teacher, own_home / "small-bert"))
    folder = own_home / "runs" / records["zeroshot"].run_id
    assert load_run(str(folder), encoder=str(model)).record == read_record(folder)
    flip_bit(model / "model.safetensors", 3)
    with pytest.raises(UserError, match=r"is not the one run .* was made with|could not be loaded"):
        load_run(str(folder), encoder=str(model))
