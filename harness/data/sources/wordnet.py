"""Building a dataset of WordNet synsets and the synsets related to them: `lf-wordnet`.

A row is a synset, that is one meaning of one or several words: the words and the definition. Its labels are the
synsets that any relation of WordNet joins it with in either direction (kind and superordinate, part and whole, similar,
opposite, derived form and others), but for topics, regions and usages, which are no neighbours in meaning.

All relations hold both ways here, so of a train and a test synset one alone has the other as a label. Sister terms, the
kinds of one superordinate, do not count: they all have each other, and those in train would tell those of a test row.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.data.card import DatasetCard
from harness.data.prepare import DatasetWriter
from harness.data.sources import apt
from harness.data.sources.links import Links, one_line, one_way_across_splits, write_linked
from harness.errors import DataError

BUILDER = 2
"""Version of the builder; raised whenever the same package would give other rows, labels or texts."""

PACKAGES = ("wordnet-base",)

_FILES = re.compile(r"usr/share/wordnet/data\.(?:noun|verb|adj|adv)")
_DOMAINS = {";c", ";r", ";u", "-c", "-r", "-u"}
_POSITION = re.compile(r"\((?:a|p|ip)\)$")
"""Where an adjective may stand, written behind the word."""
_EXAMPLE = re.compile(r";?\s*\"")


class Synset(NamedTuple):
    """One meaning."""

    id: str
    """Part of speech and place in the database, such as n02084071 (dog)."""
    words: list[str]
    definition: str
    """The gloss without its examples."""
    relations: list[tuple[str, str]]
    """Symbol of a relation, and id of the synset at its other end."""


class WordnetSource:
    """Builds a dataset from the WordNet database in a Debian package."""

    def fingerprint(self, card: DatasetCard, raw: Path) -> dict[str, Any]:
        """Return the version of the package."""
        return {
            "builder": BUILDER,
            "versions": apt.packages(raw.parent / apt.FOLDER, "wordnet", PACKAGES)[1]["versions"],
        }

    def write(self, card: DatasetCard, raw: Path, writer: DatasetWriter) -> dict[str, Any]:
        """Parse the database and write every row, label and filter pair; return the provenance."""
        debs, manifest = apt.packages(raw.parent / apt.FOLDER, "wordnet", PACKAGES)
        files = apt.packed_files(debs[PACKAGES[0]], _FILES)
        if not files:
            raise DataError("no usr/share/wordnet/data.* in this package", debs[PACKAGES[0]])
        synsets = [synset for path, file in sorted(files.items()) for synset in parse_synsets(file.content, path)]
        synsets.sort()
        links, counts = related(synsets)
        texts = [one_line(f"{', '.join(synset.words)}: {synset.definition}") for synset in synsets]
        written = write_linked(writer, one_way_across_splits(links), texts, texts)
        return {"versions": manifest["versions"], **counts, **written}


def parse_synsets(content: bytes, path: str) -> list[Synset]:
    """Return the synsets of a WordNet data file (its format is in the manual page wndb(5WN)).

    Args:
        content: Bytes of the file.
        path: Name for error messages.
    """
    synsets = []
    for number, line in enumerate(content.decode("utf-8", "replace").split("\n"), 1):
        if not line.strip() or line.startswith("  "):  # the licence
            continue
        head, _, gloss = line.partition(" | ")
        fields = head.split()
        try:
            place, kind, count = fields[0], fields[2], int(fields[3], 16)
            words = [_POSITION.sub("", word).replace("_", " ") for word in fields[4 : 4 + 2 * count : 2]]
            begin = 5 + 2 * count
            relations = [
                (fields[at], fields[at + 2] + fields[at + 1])
                for at in range(begin, begin + 4 * int(fields[begin - 1]), 4)
            ]
        except (IndexError, ValueError) as error:
            raise DataError("not a synset of WordNet", path, number) from error
        # satellites (s) of an adjective are in its file and pointed at as adjectives
        synsets.append(Synset(kind.replace("s", "a") + place, words, _EXAMPLE.split(gloss, maxsplit=1)[0], relations))
    return synsets


def related(synsets: list[Synset]) -> tuple[Links, dict[str, int]]:
    """Return the links of all related synsets, both ways, and counts of what was left out.

    Args:
        synsets: Synsets, sorted by id.
    """
    position = {synset.id: item for item, synset in enumerate(synsets)}
    pairs: set[tuple[int, int]] = set()
    unknown = to_itself = 0
    for item, synset in enumerate(synsets):
        for symbol, name in synset.relations:
            other = position.get(name)
            if other is None:
                unknown += 1
            elif symbol not in _DOMAINS:
                to_itself += other == item
                pairs |= {(item, other), (other, item)}
    ends = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
    counts = {
        "relations_to_no_synset": unknown,
        "relations_to_itself": to_itself,
    }
    return Links([synset.id for synset in synsets], ends[:, 0], ends[:, 1]), counts
