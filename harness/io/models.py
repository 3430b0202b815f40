"""Values from outside as checked models: one strict base class, and faults as lines that a person can act on."""

import difflib
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from harness.errors import UserError
from harness.io.yaml import read_yaml


class Strict(BaseModel):
    """Base of models read from files: unknown keys refused, values frozen, no NaN, no silent conversion.

    The string below a field is its documentation. A field that a subclass declares again, to give it another default,
    keeps the documentation unless it gets its own.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        validate_default=True,
        use_attribute_docstrings=True,
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Copy the documentation of the base class to fields that a subclass declares again without any."""
        super().__pydantic_init_subclass__(**kwargs)
        for name, field in cls.model_fields.items():
            bases = (getattr(base, "model_fields", {}).get(name) for base in cls.__mro__[1:])
            field.description = field.description or next((old.description for old in bases if old), None)


Model = TypeVar("Model", bound=BaseModel)


def read_model(path: Path, model: type[Model]) -> Model:
    """Read a YAML file into a model; `UserError` lists all of its faults."""
    try:
        return model.model_validate(read_yaml(path))
    except ValidationError as error:
        raise UserError("\n".join(describe_faults(error, str(path), model))) from error


def describe_faults(error: ValidationError, where: str, model: type[BaseModel] | None = None) -> list[str]:
    """Return one line per fault of a pydantic error: file, key, fault; with `model`, unknown keys get a hint."""
    lines = []
    for fault in error.errors(include_url=False):
        key = ".".join(str(part) for part in fault["loc"]) or "(top level)"
        if fault["type"] == "extra_forbidden" and model is not None:
            name, known = str(fault["loc"][-1]), _keys_at(model, fault["loc"][:-1])
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            lines.append(f"{where}: {key}: unknown key; {hint}")
            continue
        shown = "" if fault["type"] == "missing" else f" (got {str(fault['input'])[:60]!r})"
        lines.append(f"{where}: {key}: {fault['msg']}{shown}")
    return lines


def _keys_at(model: type[BaseModel], place: tuple[int | str, ...]) -> list[str]:
    """Return the keys that a model accepts at a place inside it, for example ("downloads", 0)."""
    for part in place:
        if isinstance(part, str) and part in model.model_fields:
            inner = [kind for kind in _kinds_in(model.model_fields[part].annotation) if isinstance(kind, type)]
            model = next((kind for kind in inner if issubclass(kind, BaseModel)), model)
    return sorted(model.model_fields)


def _kinds_in(annotation: Any) -> list[Any]:
    """Return an annotation and those inside it, for example of dict[str, list[Model]]."""
    return [annotation, *(kind for part in get_args(annotation) for kind in _kinds_in(part))]
