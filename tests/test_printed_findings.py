"""The findings on paper: a summary that does not fit two pages is none."""

import re
from pathlib import Path

from markdown_it import MarkdownIt

from harness.report.findings import FINDINGS
from tests.browser import started

REPORTS = Path(__file__).parents[1] / "reports"
STYLE = """
body { font: 9pt/1.3 sans-serif }
h1 { font-size: 14pt; margin: 0 } h2, h3 { font-size: 10pt; margin: 6pt 0 2pt }
p, pre { margin: 3pt 0 } pre { font-size: 7pt; white-space: pre-wrap }
table { font-size: 7pt; border-collapse: collapse }
td, th { border: 1px solid #ccc; padding: 1px 3px; vertical-align: top }
img { max-width: 100%; max-height: 60mm }
"""


def test_the_findings_fit_two_pages(tmp_path: Path) -> None:
    text = MarkdownIt("commonmark", {"html": True}).enable("table").render((REPORTS / FINDINGS).read_text())
    page = tmp_path / "findings.html"
    base = f"<base href='{REPORTS.as_uri()}/'>"
    page.write_text(f"<!doctype html><meta charset=utf-8>{base}<style>{STYLE}</style>{text}")
    margin = dict.fromkeys(("top", "right", "bottom", "left"), "13mm")
    with started() as browser:
        shown = browser.new_page()
        shown.goto(page.as_uri())
        assert shown.evaluate("[...document.images].every((one) => one.naturalWidth > 0)"), "a picture is missing"
        printed = shown.pdf(format="A4", margin=margin)
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 2
