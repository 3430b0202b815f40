"""`harness ls`."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from harness.cli.show import print_json, print_table, short_path
from harness.errors import unknown_name

Listing = tuple[list[str], list[dict[str, Any]]]


def _methods() -> Listing:
    from harness.method import methods

    registry = methods()
    return ["name", "summary"], [{"name": name, "summary": registry.summary(name)} for name in registry]


def _datasets() -> Listing:
    from harness.cli.data import dataset_rows

    return dataset_rows()


def _encoders() -> Listing:
    from harness.model import ENCODERS

    rows = [{"name": name, "summary": ENCODERS.summary(name)} for name in ENCODERS]
    return ["name", "summary"], [*rows, {"name": "./folder", "summary": "any local model folder with safetensors"}]


def _losses() -> Listing:
    from harness.loss import LOSSES

    return ["name", "summary"], [{"name": name, "summary": LOSSES.summary(name)} for name in LOSSES]


def _augmentations() -> Listing:
    from harness.augment import AUGMENTATIONS, NONE

    rows = [{"name": name, "summary": AUGMENTATIONS.summary(name)} for name in AUGMENTATIONS]
    return ["name", "summary"], [{"name": NONE, "summary": "the train rows as they are"}, *rows]


def _metrics() -> Listing:
    from harness.metrics import METRICS

    rows = [
        {"name": f"{name}@k", "unit": metric.unit, "better": "higher" if metric.higher_is_better else "lower"}
        | {"definition": metric.definition}
        for name, metric in METRICS.items()
    ]
    return ["name", "unit", "better", "definition"], rows


def _backends() -> Listing:
    from harness.index import BACKENDS

    return ["name", "summary"], [{"name": name, "summary": text} for name, text in BACKENDS.items()]


def _published() -> Listing:
    from harness.published import published_tables

    shown = ["P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5", "C@5"]
    rows = []
    for row in (row for table in published_tables().values() for row in table.rows):
        marks = [mark for mark in ("slip", "nearest", "absent") if getattr(row, mark)]
        figures = {name: row.results.get(name) for name in shown}
        note = row.chosen or ", ".join(marks)
        rows.append({"row": row.name, "method": row.method, "view": row.view, **figures, "note": note})
    return ["row", "method", "view", *shown, "note"], rows


def _tables() -> Listing:
    from harness.report.documents import table_titles

    rows = [{"name": name, "compares": title} for name, title in table_titles().items()]
    return ["name", "compares"], rows


def _runs() -> Listing:
    from harness.record import find_records, resumable_at, runs_folder, unfinished

    def saved(run_id: str) -> int | None:
        return resumable_at(runs_folder() / run_id)

    shown = ["P@1", "P@5", "PSP@1", "PSP@5"]
    rows = []
    for record in reversed(find_records([runs_folder()])):
        held_out = " (held-out rows)" if record.config.get("evaluate") == "validation" else ""
        row = {"run": record.run_id, "status": record.status + held_out, "encoder": record.config["encoder"]}
        row |= {name: round(record.metrics[name], 2) if name in record.metrics else None for name in shown}
        rows.append(row | {"seconds": round(record.seconds, 1), "resume at step": saved(record.run_id)})
    rows += [{"run": name, "status": "unfinished", "resume at step": saved(name)} for name in unfinished(runs_folder())]
    return ["run", "status", "encoder", *shown, "seconds", "resume at step"], rows


_KINDS: dict[str, Callable[[], Listing]] = {
    "methods": _methods,
    "datasets": _datasets,
    "encoders": _encoders,
    "losses": _losses,
    "augmentations": _augmentations,
    "metrics": _metrics,
    "backends": _backends,
    "published": _published,
    "tables": _tables,
    "runs": _runs,
}


def ls(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=" | ".join(_KINDS))],
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List what there is of a kind: methods, datasets, published rows, tables, runs and so on."""
    if kind not in _KINDS:
        raise unknown_name("listing", kind, _KINDS)
    columns, rows = _KINDS[kind]()
    if as_json:
        print_json(rows)
        return
    numeric = [name for name in columns if any(isinstance(row.get(name), int | float) for row in rows)]
    cells = [["" if row.get(name) is None else _text(row[name]) for name in columns] for row in rows]
    where = ""
    if kind == "runs":
        from harness.record import runs_folder

        where = f" in {short_path(runs_folder())}"
    print_table(f"{len(rows)} {kind}{where}", columns, cells, numeric)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
