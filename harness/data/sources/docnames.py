"""One name for every object of a walk, and the object that a name means at a given place.

The canonical name of an object is the best of the paths that lead to it: public before private packages, the defining
class before a class that inherits, packages around its module before others, fewer parts, fewer letters, then the
alphabet. Two objects of a library with the same last name and the same docstring are one item: a bound method of a
hidden instance, say, or the same method written out in two classes.

A reference is looked up as its reader would: in the object's class, its module, the packages around it, then as an
absolute name, and at last as the only item of the library whose name ends so.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

# public by name only; what users import from it is exported elsewhere
_PRIVATE = ("pandas.core.",)
SHORT_FORMS = {
    "np": "numpy",
    "pd": "pandas",
    "plt": "matplotlib.pyplot",
    "nx": "networkx",
    "sp": "scipy",
    "emath": "numpy.lib.scimath",
}
# a class in a module, an accessor class in that class, a class within the accessor
_NESTING = 3

Rank = tuple[bool, bool, bool, int, int, str]


@dataclass(frozen=True)
class Node:
    """One line of `docwalk`: a module, a class or a leaf."""

    kind: str
    library: str
    module: str | None
    doc: str | None = None
    members: dict[str, int] = field(default_factory=dict)
    bases: list[int] = field(default_factory=list)


def _rank(name: str, *, inherited: bool = False, foreign: bool = False) -> Rank:
    return name.startswith(_PRIVATE), inherited, foreign, name.count("."), len(name), name


class Names:
    """Canonical names of the documented objects of a walk."""

    def __init__(self, nodes: list[Node]) -> None:
        self._nodes = nodes
        self._modules = {node.module: node for node in nodes if node.kind == "module" and node.module}
        self._best: dict[int, Rank] = {}
        self._endings: dict[tuple[str, str], set[tuple[str, int]]] = defaultdict(set)
        self._name_module_members()
        for _ in range(_NESTING):
            self._name_class_members()
        self.items = self._merge()
        """Canonical name of every documented node that has one; equal names mean one item."""
        for number, rank in self._best.items():
            self._note_ending(rank[-1], number)

    def resolve(self, reference: str, number: int) -> str | None:
        """The item that a docstring of node `number` means by `reference`; None if there is none or several.

        A place that leads back to the object itself is passed over as long as another one is left.
        """
        own, node = self.items[number], self._nodes[number]
        itself = None
        for name in self._readings(reference, own, node):
            found = self.items.get(self._lookup(name))
            if found is not None and found != own:
                return found
            itself = itself or found
        candidates = self._endings.get((node.library, reference.rpartition(".")[2]), set())
        ends = {self.items.get(other) for name, other in candidates if name.endswith(f".{reference}")} - {None, own}
        return ends.pop() if len(ends) == 1 else itself

    def _readings(self, reference: str, own: str, node: Node) -> Iterator[str]:
        """Absolute names that the reference may stand for, nearest place first."""
        around = list(_prefixes(own))
        for place in around:
            if place not in self._modules:
                yield f"{place}.{reference}"
        for place in _prefixes(node.module or ""):
            yield f"{place}.{reference}"
        for place in around:
            if place in self._modules:
                yield f"{place}.{reference}"
        head, dot, rest = reference.partition(".")
        yield reference
        if head in SHORT_FORMS:
            yield SHORT_FORMS[head] + dot + rest

    def _lookup(self, name: str) -> int:
        """The node at an absolute dotted name, the longest module in it first; -1 if there is none."""
        parts = name.split(".")
        for cut in range(len(parts) - 1, 0, -1):
            container: Node | None = self._modules.get(".".join(parts[:cut]))
            number = None
            for part in parts[cut:]:
                number = self._member(container, part) if container is not None else None
                container = self._nodes[number] if number is not None else None
            if number is not None:
                return number
        return -1

    def _member(self, container: Node, name: str) -> int | None:
        for holder in (container, *(self._nodes[base] for base in container.bases)):
            if name in holder.members:
                return holder.members[name]
        return None

    def _name_module_members(self) -> None:
        for node in self._modules.values():
            for name, number in node.members.items():
                member = self._nodes[number]
                if member.library == node.library:
                    foreign = member.module is not None and not f"{member.module}.".startswith(f"{node.module}.")
                    self._offer(number, _rank(f"{node.module}.{name}", foreign=foreign))
                    self._note_ending(f"{node.module}.{name}", number)

    def _name_class_members(self) -> None:
        """Offers names to the members of every class that has one itself, at the time of the call."""
        for number, rank in list(self._best.items()):
            cls = self._nodes[number]
            _, _, foreign, *_, path = rank
            for name, member in cls.members.items():
                self._offer(member, _rank(f"{path}.{name}", foreign=foreign))
            for base in cls.bases:
                if base in self._best and not self._best[base][0]:
                    continue
                for name, member in self._nodes[base].members.items():
                    if self._member(cls, name) == member:
                        self._offer(member, _rank(f"{path}.{name}", inherited=True, foreign=foreign))

    def _offer(self, number: int, rank: Rank) -> None:
        if number not in self._best or rank < self._best[number]:
            self._best[number] = rank

    def _note_ending(self, name: str, number: int) -> None:
        self._endings[self._nodes[number].library, name.rpartition(".")[2]].add((name, number))

    def _merge(self) -> dict[int, str]:
        """Canonical names, shared by nodes whose library, last name and docstring are equal."""
        alike: dict[tuple[str, str, str], list[int]] = defaultdict(list)
        for number, rank in self._best.items():
            node = self._nodes[number]
            # some versions of Python strip the indentation of docstrings, others keep it
            doc = " ".join((node.doc or "").split())
            if doc:
                alike[node.library, rank[-1].rpartition(".")[2], doc].append(number)
        items: dict[int, str] = {}
        for numbers in alike.values():
            best = min(self._best[number] for number in numbers)[-1]
            items.update(dict.fromkeys(numbers, best))
        return items


def _prefixes(name: str) -> Iterator[str]:
    """`a.b.c` -> a.b.c, a.b, a."""
    while name:
        yield name
        name = name.rpartition(".")[0]
