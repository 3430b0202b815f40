"""reports/FINDINGS.md: which claims of the papers hold on the data that was run, each with figures, test and verdict.

    claims.yaml -> tests over records (`claims`) -> verdicts, where UniDEC is behind (`behind`) -> `page`
    records of the matrix -> `standings`: one table for the page, and reports/STANDINGS.md

No figure and no verdict is written by hand. Sentences that explain one are; each is shown only while the runs still say
what it was written for.
"""

from harness.report.findings.claims import CLAIMS, Claim, Finding, Findings, Outcome, read_claims
from harness.report.findings.page import FINDINGS, details, findings_page, summary
from harness.report.findings.standings import STANDINGS, matrix_table, standings_page

__all__ = [
    "CLAIMS",
    "FINDINGS",
    "STANDINGS",
    "Claim",
    "Finding",
    "Findings",
    "Outcome",
    "details",
    "findings_page",
    "matrix_table",
    "read_claims",
    "standings_page",
    "summary",
]
