"""LaTeX is parsed strictly by a library, and compiled where there is a compiler."""

import re
import shutil
import subprocess
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pylatexenc import latex2text, latexwalker

from harness.report.cells import Cell, Figure, Table
from harness.report.latex import latex_text
from harness.report.tables import PACKAGES, as_latex, in_document

REPORTS = Path(__file__).parents[2] / "reports"
COMPILER = shutil.which("pdflatex")
HOSTILE = "=x_1 & 50% #<script>alert(1)</script> {y} $z ^~ \\ | `b` *c* \\end{table} [2] -- ''q'' ?` !` %"
KNOWN_MACROS = set(
    r"""usepackage caption label resizebox ifdim else fi width linewidth totalheight textheight centering small
    toprule midrule bottomrule textbf underline footnotesize raggedright arraybackslash addtocounter oplus
    setlength abovecaptionskip belowcaptionskip par smallskip pm neq dagger
    textbackslash textless textgreater textbar textasciitilde textasciicircum textasciigrave""".split()
) | {"\\", "&", "%", "$", "#", "_", "{", "}", "'", '"', "`", "^", "~", "=", ".", "u", "v", "H", "r", "c"}


def reader() -> latex2text.LatexNodes2Text:
    """pylatexenc, which does not know these macros by itself."""
    context = latex2text.get_default_latex_context_db()
    names = {"textless": "<", "textgreater": ">", "textbar": "|", "textasciicircum": "^"}
    macros = [latex2text.MacroTextSpec(name, text) for name, text in names.items()]
    context.add_context_category("texts", prepend=True, macros=macros)
    return latex2text.LatexNodes2Text(latex_context=context, strict_latex_spaces=True)


def parsed(text: str) -> list[Any]:
    """Nodes of a text; anything that is not well-formed raises."""
    nodes, _, _ = latexwalker.LatexWalker(text, tolerant_parsing=False).get_latex_nodes()
    return list(nodes)


def walk(nodes: list[Any]) -> list[Any]:
    """All nodes below some."""
    found = []
    for node in nodes:
        if node is not None:
            arguments = getattr(getattr(node, "nodeargd", None), "argnlist", None) or []
            found += [node, *walk(list(arguments)), *walk(list(getattr(node, "nodelist", None) or []))]
    return found


def a_table(text: str = "m", rows: int = 3, **changes: Any) -> Table:
    cells = (
        Cell(text),
        Cell.of(Figure(46.1, 0.2, 2, 44.9, True, 3), best=True, mark="†"),
        Cell.of(Figure(-1.0), second=True),
    )
    values = {"title": text, "columns": ("a_b", "|Q_B|", text), "rows": (cells,) * rows, "caption": text, "words": 1}
    return Table(**{**values, "notes": (text, text), "breaks": (1,), **changes})


latin = st.characters(min_codepoint=32, max_codepoint=126) | st.sampled_from("äéîõñÇšžőŘů±")


@given(st.text(latin, max_size=40))
@example(HOSTILE)
@example("--- ''' ,,, ``` ?` !` << >>")
def test_a_text_comes_back_from_latex(text: str) -> None:
    """fault 64: pylatexenc reads what we escaped and finds the text."""
    assert reader().nodelist_to_text(parsed(latex_text(text))) == " ".join(text.split())


@given(st.text(max_size=20))
@example("\0\x1b\ud800\N{GRINNING FACE}\N{RIGHT-TO-LEFT OVERRIDE}")
def test_every_text_is_ascii_and_says_what_it_cannot_print(text: str) -> None:
    """fault 64: no character depends on fonts or on an encoding; what has no macro is there as its code point."""
    escaped = latex_text(text)
    assert escaped.isascii()
    assert escaped.isprintable()
    parsed(escaped)
    for character in unicodedata.normalize("NFC", text):
        if unicodedata.category(character) in ("So", "Lo", "Cc", "Cs") and not character.isspace():
            assert f"U+{ord(character):04X}]" in escaped or character in "°©"


def test_all_letters_of_our_own_files_are_printed() -> None:
    root = REPORTS.parent
    paths = [*root.glob("methods/published/*.yaml"), *root.glob("datasets/**/*.yaml"), *root.glob("methods/*.yaml")]
    letters = {letter for path in paths for letter in path.read_text(encoding="utf-8")}
    assert "Φ" in letters
    assert not [letter for letter in letters if "U+" in latex_text(letter)]


@settings(max_examples=30)
@given(st.text(latin, max_size=20))
@example(HOSTILE)
@example("[1cm]")
@example("*[1cm]")
def test_tables_are_well_formed_whatever_is_in_them(text: str) -> None:
    """fault 64"""
    nodes = walk(parsed(as_latex(a_table(text))))
    environments = [node.environmentname for node in nodes if node.isNodeType(latexwalker.LatexEnvironmentNode)]
    assert environments == ["table", "tabular", *["tabular"] * 3, "minipage"]
    assert {node.macroname for node in nodes if node.isNodeType(latexwalker.LatexMacroNode)} <= KNOWN_MACROS
    body = as_latex(a_table(text)).partition("\\toprule\n")[2].partition("\\bottomrule")[0]
    rows = [line for line in body.splitlines() if line != r"\midrule"]
    assert len(rows) == 4
    for row in rows:
        assert row.endswith((r" \\", r" \\[3pt]"))
        assert len(re.findall(r"(?<!\\)&", row)) == 2
        assert row[0] not in "[*"  # an option of the rule or of the end of the row before


def test_marks_and_rules() -> None:
    text = as_latex(a_table())
    assert r"\textbf{46.10 $\pm$ 0.20}$^{\dagger}$\\{\footnotesize (2 of 3 seeds; paper 44.90?, +1.20)}" in text
    assert r"\underline{-1.00}" in text
    assert text.count(r"\midrule") == 2
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == 1
    assert r"\begin{tabular}{lrr}" in text
    assert f"\\usepackage{{{','.join(PACKAGES)}}}" in text


def test_a_long_table_continues_on_further_pages() -> None:
    rows = tuple((Cell(f"r{number}"),) for number in range(100))
    text = as_latex(Table("Long.", ("a",), rows, "Much.", breaks=(50, 99), notes=("End.",)))
    floats = text.split("\\begin{table}")[1:]
    assert len(floats) == 3
    assert re.findall(r"^(r\d+) ", text, re.MULTILINE) == [f"r{number}" for number in range(100)]
    assert [r"\caption{Long. Much.}" in floats[0], *(r"\caption{Long. (continued)}" in one for one in floats[1:])] == [
        True
    ] * 3
    assert text.count(r"\label") == text.count("End.") == 1
    assert [one.count(r"\midrule") for one in floats] == [1, 2, 2]
    assert "\\midrule\nr50 " in floats[1]
    assert "\\midrule\nr99 " in floats[2]


def test_long_words_are_broken_into_lines() -> None:
    assert r"\begin{tabular}{>{\raggedright\arraybackslash}p{55mm}rr}" in as_latex(a_table("word " * 20))


def compiled(fragments: list[str], folder: Path) -> str:
    """The log of a successful compilation."""
    assert COMPILER
    (folder / "all.tex").write_text(in_document(fragments), encoding="ascii")
    command = [COMPILER, "-halt-on-error", "-interaction=nonstopmode", "-no-shell-escape", "all.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
    assert (folder / "all.pdf").read_bytes().startswith(b"%PDF")
    return (folder / "all.log").read_text(encoding="utf-8", errors="replace").replace("\n", "")


def committed() -> list[str]:
    """Every LaTeX table in the repository; that they are what the runs give is another test."""
    return [path.read_text(encoding="utf-8") for path in sorted(REPORTS.rglob("*.tex"))]


@pytest.mark.skipif(not COMPILER, reason="no pdflatex here: apt-get install texlive-latex-recommended")
def test_tables_compile_and_fit_their_page(tmp_path: Path) -> None:
    """faults 61 and 64"""
    every_letter = "".join(map(chr, [*range(1, 0x250), *range(0x391, 0x3CA), 0x2020, 0x2021, 0x20AC, 0x4E2D, 0x1F600]))
    bare = {"title": "T", "caption": "", "notes": ()}  # where a word longer than a line would stand out of it
    letters = [a_table(every_letter[start : start + 80], **bare) for start in range(0, len(every_letter), 80)]
    odd = [a_table(HOSTILE), a_table("[1cm]"), a_table("* [1cm]"), a_table(rows=0, notes=(), breaks=())]
    large = [a_table("word " * 30, rows=90), a_table(rows=200)]
    large.append(replace(a_table(), rows=((Cell("unbreakable" * 20),) * 3,)))
    texts = [*committed(), *(as_latex(table) for table in (*odd, *large, *letters))]
    log = compiled(texts, tmp_path)
    floats = sum(text.count("\\begin{table}") for text in texts)
    assert f"Output written on all.pdf ({floats} pages" in log
    assert "Missing character" not in log
    for fault in ("Float too large", "Overfull \\hbox"):
        assert fault not in log, fault


def test_labels_of_committed_tables_are_unique() -> None:
    labels = re.findall(r"\\label\{(.*?)\}", "".join(committed()))
    assert labels
    assert len(labels) == len({*labels})
