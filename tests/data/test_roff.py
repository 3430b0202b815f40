"""Text of manual pages: macros of man and mdoc, escapes, conditions, tables, and what real generators write."""

import time

import pytest

from harness.data.sources.roff import linked_file, sections


def text_of(source: str, heading: str = "") -> str:
    return dict(sections(source))[heading]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (r"plain \fBbold\fP \f[I]italic\f(CW mono\fR", "plain bold italic mono"),
        (r".B bold words" + "\n.I italic", "bold words italic"),
        (r".BR printf (3) ,", "printf(3),"),
        (r'.IB "a b" c', "a bc"),
        (r'.B "say ""no"""', 'say "no"'),
        (r"\-\-option\ with\~blanks\0here", "--option with blanks here"),
        (r"a\(dqb\[rq] \(co \(bu \[u00E9] \('e \(zz.", 'a"b" (c) é é .'),
        (r"one\|two\^three\&.\c", "onetwothree."),
        (r"\s-1small\s0 \s+2big\s0 \s10ten", "small big ten"),
        (r"back\eslash \\fB", "back\\slash \\fB"),
        (r"\h'1i'wide\v'-.5m' \w'x'u \n(.g \n[reg]\k.", "wide u"),
        ('text \\" a comment\n.\\" another\n\'\\" and one more\nmore', "text more"),
        ("joined \\\nline", "joined line"),
        ("caf\u00e9 \u2010 x", "café - x"),
        ('.TP 4\n.B \\-v\nVerbose.\n.IP "second" 4\nThing.\n.RS 4\n.nf\n.in 8\n.fi', "-v Verbose. second Thing."),
        (".UR http://here\nlink\n.UE .", "link ."),
        (".unknown a macro\n.also", "a macro"),
        ("", ""),
    ],
)
def test_text_of_man_macros(source: str, expected: str) -> None:
    assert text_of(source) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (".if n here\n.if t not here\n.if !t and here\n.if !n nor here", "here and here"),
        (".ie n terminal\n.el printer", "terminal"),
        (".ie t printer\n.el terminal", "terminal"),
        (".if t \\{\\\nno\n.if n \\{ no \\}\nno\n.\\}\nyes", "yes"),
        (".if n \\{\\\nyes\n.B yes\n.\\}\nyes", "yes yes yes"),
        (".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\nit\\*(Aqs", "it's"),
        ('.ie n \\{\\\n. ds L" ""\n\'br\\}\n.el\\{\\\n. ds L" ``\n\'br\\}\n\\*(L"quoted', '"quoted'),
        (".if '\\*(.T'html' never\n.if \\nF>0 \\{\\\n. de IX\n. tm a b\n..\n.\\}\nkept", "kept"),
        ('.de Vb \\" verbatim\n.ft CW\nnot text\n..\nkept', "kept"),
        (".de XX END\nnot text\n..\n.END\nkept", "kept"),
        (".ig\nignored\n..\nkept", "kept"),
        (".EQ\nx sup 2\n.EN\nkept", "kept"),
        (".if", ""),
        (".el alone", ""),
        (".if n \\{\nunclosed", "unclosed"),
        (".if t \\{\nunclosed", ""),
        (".de unclosed\nlost", ""),
        (".if n " * 500 + "deep", "deep"),
    ],
)
def test_conditions_and_definitions(source: str, expected: str) -> None:
    assert text_of(source) == expected


def test_tables_are_cells() -> None:
    table = ".TS\ntab(:) allbox;\nlb lb\nl l.\nName:Meaning\n_\na:T{\na long\n.B cell\nT}\n.T&\nl.\nb\n.TE\nafter"
    assert text_of(table) == "Name Meaning a a long cell b after"
    assert text_of(".TS\nl l.\nunclosed\tcell") == "unclosed cell"


def test_sections() -> None:
    page = '.TH X 1\nbefore\n.SH NAME\nx \\- a page\n.SH "SEE ALSO"\n.BR y (1)\n.SH\nNEXT\nz\n.SS Part\nw'
    assert sections(page) == [("", "before"), ("NAME", "x - a page"), ("SEE ALSO", "y(1)"), ("NEXT", "z Part w")]


MDOC = """.Dd May 1, 2020
.Dt STRLCPY 3
.Os
.Sh NAME
.Nm strlcpy ,
.Nm strlcat
.Nd copy strings
.Sh SYNOPSIS
.Fn strlcpy "char *dst" "size_t size"
.Sh DESCRIPTION
The
.Nm
function, with
.Fl v Ns Ar level
and
.Op Fl h ,
is of
.Fx 3.3 .
.Bl -tag -width indent
.It Sq Pa /etc
.No Don Ap t
.Pf ( Ar x )
.El
.Sh SEE ALSO
.Xr snprintf 3 ,
.Xr strncpy 3
.An -nosplit
.Sh AUTHORS
.An A. Author Aq a@b.c
"""


def test_text_of_mdoc_macros() -> None:
    found = dict(sections(MDOC))
    assert found["NAME"] == "strlcpy, strlcat - copy strings"
    assert found["SYNOPSIS"] == "strlcpy char *dst size_t size"
    assert found["DESCRIPTION"] == "The strlcpy function, with -vlevel and -h, is of FreeBSD 3.3. /etc Don't (x)"
    assert found["SEE ALSO"] == "snprintf(3), strncpy(3)"
    assert found["AUTHORS"] == "A. Author a@b.c"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (".so man3/printf.3\n", "man3/printf.3"),
        ('.\\" comment\n.so printf.3', "printf.3"),
        (".so man3/a.3\ntext", ""),
        (".so", ""),
        ("", ""),
    ],
)
def test_a_page_that_is_a_link(source: str, expected: str) -> None:
    assert linked_file(source) == expected


def test_no_page_makes_text_without_end() -> None:
    """Strings that double themselves, and lines beyond measure, are cut."""
    doubling = "\n".join([".ds a xxxxxxxxxx", *([".ds a \\*a\\*a"] * 60), "\\*a" * 1000])
    assert len(text_of(doubling)) <= 100_000
    assert len(text_of("x" * 10_000_000)) <= 20_000


@pytest.mark.parametrize("unit", ["\\[", "\\f[", "\\h'", ".ie n ", ".TS\n", "'", "\\{", ".if n \\{\n"])
def test_no_page_takes_without_end(unit: str) -> None:
    """Time grows with the length of a page, not with its square."""
    line = unit * (20_000 // len(unit)) + "\n"
    start = time.process_time()
    sections(line * 10)
    assert time.process_time() - start < 5
