"""Templates of pages and tables: every value is escaped for the reader of its format unless a template says `safe`.

`templates/*.md.j2` have Jinja's usual signs, `*.tex.j2` has `<% %>` and `<< >>`, as braces are LaTeX's.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from harness.io.printable import printable


def _safe(text: str) -> Markup:
    """Text that was escaped for its reader."""
    return Markup(text)  # noqa: S704


def markdown_text(text: str) -> str:
    """Escape text so that Markdown shows it as it is, on one line."""
    escaped = re.sub(r"([\\`*_\[\]|~#])", r"\\\1", " ".join(printable(text).split()))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def markdown_sentence(text: str) -> Markup:
    """A sentence that begins a line: escaped where it would read as an item of a list."""
    return _safe(re.sub(r"^(\d*)([-+.)])", r"\1\\\2", markdown_text(text)))


def markdown_code(text: str) -> Markup:
    """Text as a span of code, whatever is in it."""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return _safe(f"{fence}{space}{' '.join(printable(text).split())}{space}{fence}")


def render_template(name: str, **values: Any) -> str:
    """A page or table from the template of that name."""
    form = name.split(".")[-2]
    return _environment(form).get_template(name).render(**values)


@cache
def _environment(form: str) -> Environment:
    signs: dict[str, str] = {}
    escape: Callable[[str], str] | None = None
    filters: dict[str, Callable[..., Any]] = {}
    if form == "md":
        escape, filters = markdown_text, {"sentence": markdown_sentence, "code": markdown_code}
    elif form == "tex":
        from harness.report.latex import column_types, latex_text

        escape, filters = latex_text, {"column_types": lambda table: _safe(column_types(table))}
        signs = {"block_start_string": "<%", "block_end_string": "%>", "comment_start_string": "<#"}
        signs |= {"comment_end_string": "#>", "variable_start_string": "<<", "variable_end_string": ">>"}

    def escaped(value: Any) -> Any:
        return value if isinstance(value, Markup) or escape is None else _safe(escape(str(value)))

    environment = Environment(
        loader=PackageLoader("harness.report"),
        autoescape=True,  # what `escaped` has not made safe would be escaped as HTML
        finalize=escaped,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **signs,  # type: ignore[arg-type]
    )
    environment.filters.update(filters)
    return environment
