"""Registries: tables from names to code that is imported only when it is asked for.

A target is the string "module:attribute". A duplicate name is an error, an
unknown name is an error that suggests the nearest one, and packages outside this repository can add names through
entry points (for example group `xmc_harness.methods`).
"""

from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from harness.errors import UserError, unknown_name

T = TypeVar("T")


class Registry(Generic[T]):
    """Lazy name -> "module:attribute" table for one kind of part; `get` returns a class or factory of T."""

    def __init__(self, kind: str, group: str | None = None) -> None:
        self.kind = kind
        self._group = group
        self._targets: dict[str, str] = {}
        self._summaries: dict[str, str] = {}

    def register(self, name: str, target: str, summary: str = "") -> None:
        """Add a name; `UserError` if it is already registered."""
        if name in self._targets:
            raise UserError(f"{self.kind} {name!r} is registered twice: {self._targets[name]} and {target}")
        if target.count(":") != 1:
            raise ValueError(f"target {target!r} is not of the form 'module:attribute'")
        self._targets[name] = target
        self._summaries[name] = summary

    @cached_property
    def _outside(self) -> dict[str, EntryPoint]:
        if self._group is None:
            return {}
        found: dict[str, EntryPoint] = {}
        for point in entry_points(group=self._group):
            if point.name in self._targets or point.name in found:
                raise UserError(
                    f"{self.kind} {point.name!r} from package {point.dist and point.dist.name} is already taken"
                )
            found[point.name] = point
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._targets or name in self._outside

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._targets, *self._outside}))

    def summary(self, name: str) -> str:
        """Return one line about a name, without importing its target."""
        return self._summaries.get(name) or (f"from {self._outside[name].value}" if name in self._outside else "")

    def origin(self, name: str) -> str:
        """Return the target of a name, "module:attribute"."""
        return self._targets[name] if name in self._targets else self._outside[name].value

    def get(self, name: str) -> Any:
        """Import and return the target of a name."""
        if name in self._targets:
            module, attribute = self._targets[name].split(":")
            return getattr(import_module(module), attribute)
        if name in self._outside:
            return self._outside[name].load()
        raise unknown_name(self.kind, name, self)
