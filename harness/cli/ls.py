"""`harness ls`."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.options import Json
from harness.cli.show import format_value, print_json, print_table, say, short_path
from harness.errors import UserError, unknown_name

if TYPE_CHECKING:
    from harness.settings.method import SearchRange

Listing = tuple[list[str], list[dict[str, Any]]]


def _summaries(rows: Iterable[tuple[str, str]]) -> Listing:
    return ["name", "summary"], [{"name": name, "summary": summary} for name, summary in rows]


def _methods() -> Listing:
    from harness.settings.method import methods

    return _summaries((name, methods().summary(name)) for name in methods())


def _parameters(method: str | None) -> Listing:
    """The parameters of a method or preset, or the settings that every run has, by dotted key."""
    from harness.settings.schema import RunConfig

    if method is not None:
        rows = _method_parameters(method)
        paper = ["paper"] if any(row["paper"] for row in rows) else []
        return [*_COLUMNS[:-1], *paper, _COLUMNS[-1]], rows
    schema, defaults = RunConfig.model_json_schema(), RunConfig().model_dump(mode="json")
    rows = []
    for key, about in schema["properties"].items():
        group = schema["$defs"].get(about.get("$ref", "").rpartition("/")[2], {}).get("properties")
        if group is None:
            rows.append(_setting(key, defaults[key], about))
        else:
            rows += [_setting(f"{key}.{name}", defaults[key][name], part) for name, part in group.items()]
    return list(_COLUMNS), rows


def _method_parameters(method: str) -> list[dict[str, Any]]:
    from harness.settings.layers import resolve_layers
    from harness.settings.method import load_method, method_layer, search_ranges
    from harness.settings.papers import claims

    params = load_method(method).params
    defaults = resolve_layers([method_layer(method)], params)[0].params
    searched: dict[str, list[str]] = {}
    for label, one in search_ranges(method).items():
        for key in one.parameters or (label,):
            searched.setdefault(key, []).append(_format_range(one) + (f"; {label} in sweeps" if label != key else ""))
    stated = claims(method)
    schema, rows = params.model_json_schema()["properties"], []
    for name, field in params.model_fields.items():
        key = field.alias or name
        about = {**schema[key], "description": field.description or ""}  # the schema lacks what a group documents
        row = _setting(key, defaults[key], about, "; ".join(searched.get(key, ())))
        rows.append({**row, "paper": ", ".join(dict.fromkeys(entry.status for entry in stated.get(key, ())))})
    return rows


def _papers(method: str | None) -> Listing:
    """What the paper of a method says of each setting, one row an entry; without a method, how much each paper says."""
    from harness.settings.papers import STATUSES, claims, presets

    if method is None:
        rows = []
        for name in presets():
            counts = Counter[str](entry.status for entries in claims(name).values() for entry in entries)
            rows.append({"name": name, **{status: counts[status] for status in STATUSES}})
        return ["name", *STATUSES], rows
    found = claims(method)
    if not found:
        raise UserError(f"nothing is written of what a paper says of {method}; `harness ls papers` lists who has that")
    rows = [
        {"setting": name, "value": entry.value, "status": entry.status, "why": entry.why}
        | {"datasets": entry.on, "rows": entry.rows}
        | {
            "for": ", ".join([*entry.on, *("every row" if row == "*" else f"row {row}" for row in entry.rows)])
            or ("" if len(entries) == 1 else "all other")
        }
        for name, entries in found.items()
        for entry in entries
    ]
    return ["setting", "value", "for", "status", "why"], rows


_COLUMNS = ("name", "default", "takes", "search", "documentation")
_LEGEND = """stated: in the paper or its official code; inferred: from what the reason names; unsaid: nowhere, and the
reason says what stands here; ours: another value than the paper's, or one that no paper can have. "row": rows of the
papers' tables with that name (`ls published`), and no other run."""


def _setting(name: str, default: Any, about: dict[str, Any], search: str = "") -> dict[str, Any]:
    """A setting with its default, what it takes, where a sweep looks, and its line of documentation."""
    words = " ".join(about.get("description", "").split())
    return dict(zip(_COLUMNS, (name, default, _format_schema(about), search, words), strict=True))


def _format_schema(about: dict[str, Any]) -> str:
    """What a setting takes, in words, from its JSON schema."""
    if "anyOf" in about:
        return " or ".join(map(_format_schema, about["anyOf"]))
    if "enum" in about:
        return " | ".join(map(str, about["enum"]))
    if "const" in about:
        return str(about["const"])
    if about.get("type") == "array":
        return f"list of {_format_schema(about['items'])}"
    kind = {"boolean": "true | false", "string": "text", "object": "group"}.get(about["type"], about["type"])
    bounds = (("minimum", ">="), ("exclusiveMinimum", ">"), ("maximum", "<="), ("exclusiveMaximum", "<"))
    return " ".join([kind, *(f"{sign} {about[bound]:g}" for bound, sign in bounds if bound in about)])


def _format_range(one: "SearchRange") -> str:
    if one.choices is not None:
        return " | ".join(map(str, one.choices))
    return f"{one.low:g} to {one.high:g}{', logarithmic' if one.log else ''}"


def _datasets() -> Listing:
    """Every card, and whether its data is on this machine."""
    from harness.data.card import card_paths, read_card
    from harness.io.files import home

    prepared = {path.parent.name.rpartition("-")[0] for path in (home() / "cache" / "datasets").glob("*/manifest.json")}
    rows = []
    for name, path in card_paths().items():
        card = read_card(path)
        if name in prepared:
            state = "ready"
        elif card.built_here:
            state = "built on first use"
        else:
            state = "on disk" if (home() / "data" / name).is_dir() else "to be fetched"
        figures = card.statistics
        rows.append(
            {"name": name, "train": figures.train, "test": figures.test, "labels": figures.labels}
            | {"text": card.text, "label_text": card.recipe_of_labels}
            | {"state": state, "summary": card.summary, "licence": card.licence, "homepage": card.homepage}
        )
    return ["name", "train", "test", "labels", "state", "summary"], rows


def _encoders() -> Listing:
    from harness.settings.catalogue import ENCODERS

    names = ((name, ENCODERS.summary(name)) for name in ENCODERS)
    return _summaries([*names, ("./folder", "any local model folder with safetensors")])


def _losses() -> Listing:
    from harness.settings.catalogue import LOSSES

    return _summaries((name, LOSSES.summary(name)) for name in LOSSES)


def _augmentations() -> Listing:
    from harness.settings.catalogue import AUGMENTATIONS, NONE

    names = ((name, AUGMENTATIONS.summary(name)) for name in AUGMENTATIONS)
    return _summaries([(NONE, "the train rows as they are"), *names])


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

    return _summaries(BACKENDS.items())


def _published() -> Listing:
    from harness.settings.published import published_tables

    shown = ["P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5", "C@5"]
    rows = []
    for row in (row for table in published_tables().values() for row in table.rows):
        marks = [mark for mark in ("slip", "nearest", "absent") if getattr(row, mark)]
        figures = {name: row.results.get(name) for name in shown}
        note = row.chosen or ", ".join(marks)
        rows.append({"row": row.name, "method": row.method, "scorer": row.scorer, **figures, "note": note})
    return ["row", "method", "scorer", *shown, "note"], rows


def _tables() -> Listing:
    from harness.report.documents import table_titles

    rows = [{"name": name, "compares": title} for name, title in table_titles().items()]
    return ["name", "compares"], rows


def _runs() -> Listing:
    from harness.runs.record import find_records, resumable_at, runs_folder, unfinished

    def saved(run_id: str) -> int | None:
        return resumable_at(runs_folder() / run_id)

    shown = ["P@1", "P@5", "PSP@1", "PSP@5"]
    rows = []
    for record in reversed(find_records([runs_folder()])):
        validation_rows = " (validation rows)" if record.config.get("evaluate") == "validation" else ""
        row = {"run": record.run_id, "status": record.status + validation_rows, "encoder": record.config["encoder"]}
        row |= {name: round(record.metrics[name], 2) if name in record.metrics else None for name in shown}
        rows.append(row | {"seconds": round(record.seconds, 1), "resume at step": saved(record.run_id)})
    rows += [{"run": name, "status": "unfinished", "resume at step": saved(name)} for name in unfinished(runs_folder())]
    return ["run", "status", "encoder", *shown, "seconds", "resume at step"], rows


_OF_METHOD: dict[str, Callable[[str | None], Listing]] = {"parameters": _parameters, "papers": _papers}
"""Lists that `--method` narrows to one method."""
_KINDS: dict[str, Callable[[], Listing]] = {
    "methods": _methods,
    "parameters": lambda: _parameters(None),
    "papers": lambda: _papers(None),
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
    method: Annotated[
        str | None, typer.Option(help="Of `parameters` and `papers`: this method's; without it, of all runs or papers.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List what there is of a kind: methods, parameters, datasets, published rows, tables, runs and so on."""
    if kind not in _KINDS:
        raise unknown_name("listing", kind, _KINDS)
    if method is not None and kind not in _OF_METHOD:
        raise UserError(f"--method is for {' and '.join(f'`ls {one}`' for one in _OF_METHOD)}")
    columns, rows = _KINDS[kind]() if method is None else _OF_METHOD[kind](method)
    if as_json:
        print_json(rows)
        return
    numeric = [name for name in columns if any(isinstance(row.get(name), int | float) for row in rows)]
    settings = kind == "parameters" or method is not None
    numeric = [] if settings else numeric
    missing = "null" if settings else ""
    cells = [[missing if row.get(name) is None else format_value(row[name]) for name in columns] for row in rows]
    where = f" of {method}" if method is not None else ""
    if kind == "runs":
        from harness.runs.record import runs_folder

        where = f" in {short_path(runs_folder())}"
    many = "entries" if kind == "papers" and method is not None else kind
    print_table(f"{len(rows)} {many}{where}", columns, cells, numeric)
    if "paper" in columns:
        say(f"paper: whether it says the default; values, datasets and reasons: harness ls papers --method {method}")
    if kind == "papers" and method is not None:
        say(_LEGEND)
