"""Names as MLflow accepts them, and back: letters, digits and `_ - . : /` and space, at most 250, no odd paths.

`@` becomes `_at_`, any other character `_u<code>_`. An underscore that would begin such a sequence by chance is written
as `_u5f_`, so no two names meet. A longer name is cut and ends in its hash, `_h<hash>_`, as no other does; the whole is
kept in a tag.
"""

import hashlib
import posixpath
import re
import sys
from collections.abc import Mapping

LONGEST = 250
_ALLOWED = r"\w\-. :/"
_CODED = r"(?:at|u[0-9a-f]*)"
_CODE = re.compile(r"_(at|u([0-9a-f]*))_")
_CUT = re.compile(r"_h([0-9a-f]{16})_$")


def metric_name(key: str) -> str:
    """Our key as MLflow accepts it, for figures, parameters and tags; see `original_name` for the way back."""
    name = _encoded(key, _ALLOWED)
    path = posixpath.normpath(name)
    if path != name or path.startswith(("..", "/")) or path == ".":  # MLflow refuses names that are odd as paths
        name = _encoded(key, r"\w\- :")
    if len(name) <= LONGEST:
        return name
    return f"{name[: LONGEST - 19]}_h{_short_hash(key)}_"


def full_name_tag(key: str) -> dict[str, str]:
    """The tag that keeps a name which had to be cut; empty for one that had not."""
    return {f"full_name.{_short_hash(key)}": key} if _CUT.search(metric_name(key)) else {}


def original_name(name: str, tags: Mapping[str, str] | None = None) -> str:
    """The inverse of `metric_name`; a name that was cut is looked up in the tags of its run."""
    cut = _CUT.search(name)
    if cut:
        return (tags or {}).get(f"full_name.{cut[1]}", name)
    return _CODE.sub(_decoded, name)


def _decoded(match: re.Match[str]) -> str:
    """What a sequence stands for; one beyond Unicode, which no key of ours becomes, stands for itself."""
    if match[1] == "at":
        return "@"
    code = int(match[2] or "0", 16)
    return "" if not match[2] else chr(code) if code <= sys.maxunicode else match[0]


def _encoded(key: str, allowed: str) -> str:
    forbidden = f"[^{allowed}]"
    by_chance = rf"_(?={_CODED}(?:_|{forbidden}))"
    like_a_cut = rf"(?:(?<=_)|(?<={forbidden}))h(?=[0-9a-f]{{16}}_\Z)"
    pieces = re.compile(f"{by_chance}|{like_a_cut}|{forbidden}", re.ASCII)
    return pieces.sub(lambda match: "_at_" if match[0] == "@" else f"_u{ord(match[0]):x}_", key) or "_u_"


def _short_hash(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:16]
