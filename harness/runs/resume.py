"""Resuming an interrupted run where it stopped.

The run folder holds all that is needed: the first event has the metadata that the run began with, config.json its
settings, and checkpoints/ its state. Other settings, other data or another encoder are refused, field by field; other
library versions are allowed, with a warning, and recorded.
"""

import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from harness.errors import DataError, UserError
from harness.io.files import is_file_name, place_inside
from harness.io.models import describe_faults
from harness.runs.events import read_events
from harness.runs.record import RunRecord, read_record, refuse_places, run_folder, utc_now
from harness.settings.identity import differences, fixed


class _Data(BaseModel):
    """The fields of the dataset in a `start` event that decide whether a run is the same."""

    name: str
    digest: str
    filter: bool
    propensity: dict[str, float] | None


class _Settings(BaseModel):
    """The settings that a `start` event must have; all settings are checked again later."""

    model_config = ConfigDict(strict=True)

    method: str
    dataset: str
    encoder: str


def _file_name(run_id: str) -> str:
    if not is_file_name(run_id):
        raise ValueError("no name of a folder")
    return run_id


def _moment(text: str) -> str:
    datetime.fromisoformat(text)
    return text


class _Start(BaseModel):
    """The fields of a `start` event that resuming needs."""

    model_config = ConfigDict(strict=True)

    run_id: Annotated[str, AfterValidator(_file_name)]
    started: Annotated[str, AfterValidator(_moment)]
    config: _Settings
    dataset: _Data
    encoder: dict[str, Any]
    environment: dict[str, Any]
    parent: dict[str, Any] | None = None


@dataclass(frozen=True)
class Earlier:
    """An interrupted run, as read from its folder."""

    folder: Path
    metadata: dict[str, Any]
    """The fields of the record that were known when the run began."""
    seconds: float
    """Seconds spent so far."""
    events: list[dict[str, Any]]
    """All events of the run log so far."""

    @property
    def config(self) -> dict[str, Any]:
        """The resolved settings of the run."""
        config: dict[str, Any] = self.metadata["config"]
        return config

    def require_settings(self, config: dict[str, Any]) -> None:
        """Raise if the settings differ from `config`, a config as recorded; called before anything is loaded."""
        _refuse(self.folder.name, differences({"config": fixed(self.config)}, {"config": fixed(config)}))

    def continued(self, metadata: dict[str, Any]) -> dict[str, Any]:
        """Return the metadata to go on with, given those of a new run; raise if they describe another run."""
        _refuse(self.metadata["run_id"], differences(_decisive(self.metadata), _decisive(metadata)))
        moved = differences(self.metadata["environment"], metadata["environment"])
        entry = {"time": utc_now(), "environment": moved}
        kept = {key: self.metadata[key] for key in ("run_id", "started")}
        kept["parent"] = metadata.get("parent") or self.metadata.get("parent")
        return {**metadata, **kept, "resumed": [*self.metadata.get("resumed", []), entry]}


def _refuse(run_id: str, differing: list[str]) -> None:
    if differing:
        raise UserError(
            f"run {run_id} cannot go on with other settings; start a new run, or undo:\n  " + "\n  ".join(differing)
        )


def find_earlier(run: str, out: Path | None = None) -> Earlier:
    """Return an interrupted run by its id (in the folder of runs) or by the path of its folder."""
    folder = run_folder(run, out)
    require_unfinished(folder)
    log = place_inside(folder, "events.jsonl")
    if not log.is_file():
        raise UserError(f"{folder} is not the folder of a run; `python -m harness ls runs` lists what there is")
    events = read_events(log)
    if not events or events[0]["event"] != "start":
        raise DataError("the log of this run does not begin with a start; it cannot be resumed", log, 1)
    metadata = {key: value for key, value in events[0].items() if key in RunRecord.model_fields}
    if metadata.get("fusion"):
        raise UserError(f"run {folder.name} is a fusion, which is not resumed; give the command of `fuse` again")
    try:
        _Start.model_validate(metadata)
    except ValidationError as error:
        fault = describe_faults(error, "its start")[0]
        raise DataError(f"the log of this run cannot be resumed: {fault}", log, 1) from error
    refuse_places(log, metadata["config"])
    resumed = [event["resumed"][-1] for event in events if event["event"] == "resume" and event.get("resumed")]
    return Earlier(folder.absolute(), {**metadata, "resumed": resumed}, _time_spent(events), events)


def require_unfinished(folder: Path) -> None:
    """Raise `UserError` if the run is finished."""
    record = folder / "record.json"
    if record.exists() and read_record(folder).status == "finished":
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # left by a process killed before removing them
        raise UserError(f"run {folder.name} is finished; there is nothing to resume. Its numbers: {record}")


def _decisive(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata that must not change: settings, dataset and encoder."""
    dataset = {key: metadata["dataset"][key] for key in ("name", "digest", "filter", "propensity")}
    return {"config": fixed(metadata["config"]), "dataset": dataset, "encoder": metadata["encoder"]}


def _time_spent(events: list[dict[str, Any]]) -> float:
    """Return the seconds from each start or resume to the last event before the next one, summed."""
    spent, began, last = 0.0, None, None
    for event in events:
        moment = datetime.fromisoformat(event["time"])
        if event["event"] in ("start", "resume"):
            spent += (last - began).total_seconds() if began and last else 0.0
            began = moment
        last = moment
    return spent + ((last - began).total_seconds() if began and last else 0.0)
