"""reports/FINDINGS.md: which claims of the papers hold on the data that was run, each with figures, test and verdict.

    claims.yaml -> tests over records (`claims`) -> verdicts, standings, where UniDEC is behind (`behind`) -> `page`

No figure and no verdict is written by hand. Sentences that explain one are; each is shown only while the runs still say
what it was written for.
"""

from harness.report.findings.claims import CLAIMS, Claim, Finding, Findings, Outcome, read_claims
from harness.report.findings.page import FINDINGS, details, findings_page, summary

__all__ = [
    "CLAIMS",
    "FINDINGS",
    "Claim",
    "Finding",
    "Findings",
    "Outcome",
    "details",
    "findings_page",
    "read_claims",
    "summary",
]
