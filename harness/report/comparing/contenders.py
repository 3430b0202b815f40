"""Who is compared: names as typed -> the runs they stand for.

A name is a run's id, the path of its folder, `last` (the newest finished run), or a method, which stands for its
finished runs on the dataset, one per seed. Where a method was run with several settings, `method:key=value` says which.
Every run is a finished one whose numbers are those of test rows.
"""

import difflib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UserError
from harness.files import is_folder
from harness.record import RunRecord, find_records, read_record
from harness.report import is_trial, settings_of, varying_keys

NEWEST = "last"
_LIST = "`python -m harness ls runs` lists what there is"


@dataclass(frozen=True)
class Run:
    """A finished run on this machine."""

    folder: Path
    record: RunRecord


@dataclass(frozen=True)
class Contender:
    """What is compared: one run, or the runs of one method with one setting and several seeds."""

    name: str
    runs: tuple[Run, ...]

    @property
    def seeds(self) -> list[int]:
        """Seeds of its runs, in their order."""
        return [run.record.config["seed"] for run in self.runs]


def _exists(word: str) -> bool:
    """Whether a word is a path to something; one that no file can have is not."""
    try:
        return Path(word).exists()
    except (OSError, ValueError):
        return False


def split_names(words: Iterable[str]) -> list[str]:
    """The names in the words of a command line: `A B`, `A,B` and mixtures; commas inside brackets or a path stay."""
    names: list[str] = []
    for word in words:
        names += [word] if _exists(word) else re.split(r",(?![^\[]*\])", word)
    return [name.strip() for name in names if name.strip()]


def find_contenders(names: list[str], folders: list[Path], dataset: str | None = None) -> list[Contender]:
    """The runs of every name, in the order given.

    Args:
        names: As typed; at least two.
        folders: Folders of run folders.
        dataset: Whose runs a method stands for, where it was run on several.
    """
    if len(names) < 2:
        raise UserError(f"comparing takes two or more runs or methods, not {len(names)}: --compare A B; {_LIST}")
    found = _Found(folders, find_records(folders))
    direct = {name: run for name in names if (run := found.run(name, dataset)) is not None}
    of_methods = {name: found.of_method(name, dataset) for name in names if name not in direct}
    common = _one_dataset([run.record.dataset["name"] for run in direct.values()], of_methods)
    contenders = [
        Contender(direct[name].record.run_id, (direct[name],))
        if name in direct
        else Contender(name, found.one_setting(name, of_methods[name], common))
        for name in names
    ]
    _require_distinct(contenders)
    return contenders


class _Found:
    """The records below the folders of runs, and what a name means among them."""

    def __init__(self, folders: list[Path], records: list[RunRecord]) -> None:
        self.folders = folders
        self.records = records

    def run(self, name: str, dataset: str | None) -> Run | None:
        """The run that a name stands for, if it is not the name of a method."""
        if name == NEWEST:
            usable = [
                record
                for record in self.records
                if _fault(record) is None and dataset in (None, record.dataset["name"])
            ]
            if not usable:
                raise UserError("there is no finished run to compare; make one with `python -m harness run`")
            return self._placed(usable[-1])
        path = Path(name)
        if path.suffix == ".json" and _exists(name) and path.is_file():
            raise UserError(f"{name} is a record alone; per-row scores are in the run's folder, so name that")
        places = [path] if "/" in name else [path, *(folder / name for folder in self.folders)]
        for place in places:
            if is_folder(place) and any((place / file).is_file() for file in ("record.json", "events.jsonl")):
                return _finished(place)
        if "/" in name:
            raise UserError(f"{name} is not the folder of a run; {_LIST}")
        for record in self.records:
            if record.run_id == name:
                return self._placed(record)
        return None

    def of_method(self, name: str, dataset: str | None) -> list[RunRecord]:
        """The usable records of a method, narrowed by `:key=value` and `:scorer`."""
        method, *choices = name.split(":")
        known = [record for record in self.records if record.config["method"] == method]
        if not known:
            raise self._unknown(name, method)
        there = [record for record in known if dataset in (None, record.dataset["name"])]
        usable = [record for record in there if _fault(record) is None]
        if not usable:
            where = "" if dataset is None else f" on {dataset!r}"
            reason = f"; {_fault(there[-1])}" if there else ""
            raise UserError(f"no finished run of {method!r}{where} to compare{reason}")
        for choice in choices:
            key, equals, value = choice.partition("=")
            if not equals:
                _require_first_view(usable, choice)
                continue
            chosen = [record for record in usable if _matches(_facts(record), key, value)]
            if not chosen:
                have = sorted({value for record in usable for value in _values(_facts(record), key)})
                told = (
                    f"; there is {', '.join(f'{key}={value}' for value in have)}" if have else "; there is no such key"
                )
                raise UserError(f"no finished run of {method!r} with {choice}{told}")
            usable = chosen
        return usable

    def one_setting(self, name: str, records: list[RunRecord], dataset: str) -> tuple[Run, ...]:
        """The newest run of every seed; refused if the settings of the runs are not the same."""
        records = [record for record in records if record.dataset["name"] == dataset]
        facts = [_facts(record) for record in records]
        varying = varying_keys(facts)
        groups: dict[str, list[RunRecord]] = {}
        for record, values in zip(records, facts, strict=True):
            groups.setdefault(json.dumps({key: values[key] for key in varying if key in values}), []).append(record)
        if len(groups) > 1:
            parts = [json.loads(text) for text in groups]
            lines = [
                f"  {':'.join([name, *_telling(own, parts)])!r}, newest run {group[-1].run_id}"
                for own, group in zip(parts, groups.values(), strict=True)
            ]
            raise UserError(
                f"{name!r} was run with {len(groups)} different settings on {dataset}; "
                "name one of these, or a run:\n" + "\n".join(lines)
            )
        newest = {record.config["seed"]: record for record in records}
        return tuple(self._placed(newest[seed]) for seed in sorted(newest))

    def _placed(self, record: RunRecord) -> Run:
        for folder in self.folders:
            if (folder / record.run_id).is_dir():
                return _finished(folder / record.run_id)
        raise UserError(
            f"of run {record.run_id} there is a record alone; per-row scores are in the run's folder: "
            "copy that here and name its path, or run it again"
        )

    def _unknown(self, name: str, method: str) -> UserError:
        methods = sorted({record.config["method"] for record in self.records})
        near = difflib.get_close_matches(method, [*methods, *(record.run_id for record in self.records)], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ";"
        return UserError(
            f"unknown run or method {name!r}{hint} methods with runs: {', '.join(methods) or 'none'}; {_LIST}"
        )


def _finished(folder: Path) -> Run:
    """The run of a folder; refused if it has no numbers of test rows."""
    if not (folder / "record.json").is_file():
        raise UserError(
            f"run {folder.name} is unfinished: it is still running, or it was killed; "
            f"if so, take it up with `python -m harness run --resume {folder.name}`"
        )
    record = read_record(folder)
    if fault := _fault(record):
        raise UserError(fault)
    return Run(folder, record)


def _fault(record: RunRecord) -> str | None:
    """Why a run cannot be compared; None if it can."""
    if record.status != "finished":
        return f"run {record.run_id} did not finish: {record.status}{f' ({record.error})' if record.error else ''}"
    if is_trial(record.config):
        return f"run {record.run_id} was measured on held-out train rows (evaluate=validation), not on test rows"
    return None


def _facts(record: RunRecord) -> dict[str, str]:
    """What must be the same in all runs of one contender, flat; the seed may differ."""
    data, encoder = record.dataset, record.config["encoder"]
    facts: dict[str, str] = json.loads(settings_of(record.config))
    facts |= {"encoder": encoder, "data": str(data.get("digest", ""))[:12], "metrics": str(record.metric_version)}
    facts["propensity"] = json.dumps(data.get("propensity"), sort_keys=True)
    if encoder.startswith("./"):  # a folder is recorded by its last name, and other weights may lie in another one
        facts["weights"] = str(record.encoder.get("identity", ""))[:12]
    return facts


def _telling(own: dict[str, str], groups: list[dict[str, str]]) -> list[str]:
    """The `key=value` that tell one group of settings from the others: always the pair that rules out most of them."""
    told: list[str] = []
    others = [group for group in groups if group != own]
    while others:
        key = min(own, key=lambda key: sum(group.get(key) == own[key] for group in others), default=None)
        left = [group for group in others if key is not None and group.get(key) == own[key]]
        if key is None or len(left) == len(others):
            break
        told.append(f"{key.removeprefix('params.')}={own[key]}")
        others = left
    return told


def _values(facts: dict[str, str], key: str) -> list[str]:
    return [facts[name] for name in (key, f"params.{key}") if name in facts]


def _matches(facts: dict[str, str], key: str, value: str) -> bool:
    return value in _values(facts, key)


def _require_first_view(records: list[RunRecord], scorer: str) -> None:
    """Per-row scores are kept of the first way of scoring, the one whose figures are the run's `metrics`."""
    for record in records:
        first = [view for view, scores in record.views.items() if scores == record.metrics]
        if scorer not in first:
            told = f"that is {first[0]!r}" if first else "and this method has no other"
            raise UserError(
                f"run {record.run_id} has no per-row scores of {scorer!r}: they are kept of its first way of scoring "
                f"alone, {told}; `--set scorer=...` of a method that has several makes another one the first"
            )


def _one_dataset(of_runs: list[str], of_methods: dict[str, list[RunRecord]]) -> str:
    """The dataset of the runs that are named, or else the only one that all methods share."""
    sets = {name: {record.dataset["name"] for record in records} for name, records in of_methods.items()}
    shared = of_runs[:1] or sorted(set.intersection(*sets.values()))
    if len(shared) > 1:
        raise UserError(f"all of these were run on {', '.join(shared)}; say which: --dataset {shared[0]}")
    if not shared:
        told = "; ".join(f"{name} on {', '.join(sorted(on))}" for name, on in sets.items())
        raise UserError(f"these were not run on one dataset: {told}; compare methods on one")
    for name, on in sets.items():
        if shared[0] not in on:
            raise UserError(f"no finished run of {name!r} on {shared[0]!r}, where the others were run")
    return shared[0]


def _require_distinct(contenders: list[Contender]) -> None:
    taken: set[str] = set()
    for contender in contenders:
        runs = {run.record.run_id for run in contender.runs}
        if twice := sorted(runs & taken):
            raise UserError(f"run {twice[0]} would be compared with itself; name every run once")
        taken |= runs
