"""The fault list: what the harness survives, one line a case.

A test that tries case 17 says `fault 17` in its docstring.
"""

FAULTS = {
    # kill, resume, concurrency
    1: "SIGKILL at a random step, then resume: weights equal bit for bit",
    2: "killed while a checkpoint is half written: the one before is used",
    3: "killed while hard negatives are mined: the same result",
    4: "killed during evaluation: evaluated again, not trained again",
    5: "SIGTERM: checkpoint and KILLED within 10 s; a second one ends at once",
    6: "Ctrl-C in a sweep: trial marked, study resumable, no processes left",
    7: "resume with other settings or data: refused, field by field",
    8: "resume under another torch: warned, both versions recorded",
    9: "resume with another number of workers: the same batches",
    10: "resume with another world size: refused",
    11: "one run in two processes: the second names who holds it",
    12: "a lock of a dead process is taken over, that of another host is not",
    13: "eight processes start on a fresh tracking database",
    14: "eight processes write a thousand metrics each",
    15: "a sweep's worker is killed: its trial is put back and goes on from its checkpoint",
    16: "a trial that keeps dying fails, the sweep goes on",
    17: "a live trial misses its heartbeat: its worker lives on",
    18: "a study's file is cut off anywhere: an error or recovery, no trial lost silently",
    19: "one study name with two search spaces: refused",
    20: "a run that is gone is reaped, a live one is not",
    # tracking outage
    21: "tracking server down at the start: trained, logged, exit code 0",
    22: "server dies in mid-run and returns: no gap, nothing twice",
    23: "tracking store read-only or its disk full: training goes on",
    24: "the same log replayed twice adds nothing",
    25: "NaN and infinite metrics are kept, flagged and never 1.8e308",
    26: "metric names with @, unicode or 300 characters go there and back",
    27: "a parameter of 20 kB is stored whole",
    28: "a run folder that was moved still resolves",
    # resources
    29: "out of memory in a step: smaller pieces of the same batch",
    30: "out of memory in evaluation: smaller pieces, the same numbers",
    31: "out of memory while saving or mining: the last checkpoint stays",
    32: "sizes are found without exhausting the host",
    33: "disk full while anything is written: nothing half-written is believed",
    34: "two processes build one cache: one builds, both read the same",
    35: "no GPU, wrong CUDA, two faiss builds: diagnosed in a line",
    36: "offline with a warm cache works, with a cold one fails fast by name",
    37: "1.3 million labels: nothing dense of their size",
    38: "more than 2^31 elements",
    # data
    39: "a download with a wrong hash: removed, tried elsewhere, refused",
    40: "cut-off archives and quota pages are called what they are",
    41: "archives that climb, link or explode are refused",
    42: "texts and labels of different length: both counts",
    43: "label ids out of range, negative, fractional, repeated, unsorted",
    44: "empty, huge, binary and foreign text",
    45: "rows without labels",
    46: "labels without rows",
    47: "documents of train that are in test are reported",
    48: "filter files out of range, missing, empty",
    49: "filtering comes before ranking and before PSP",
    50: "a header that disagrees with its file: the line is named",
    51: "JSON lines with missing keys, wrong types, repeated ids: the line is named",
    52: "no propensity constants: no PSP, and none guessed",
    53: "the same data has the same digest, one changed byte another",
    # metrics and tables
    54: "ties are broken by label id",
    55: "too few predictions, padding and NaN scores are misses",
    56: "perfect, useless and random predictors have their closed forms",
    57: "P, nDCG and PSP equal independent definitions to 1e-10",
    58: "PSP of the oracle is 100",
    59: "head, torso and tail add up",
    60: "permuted rows and labels change nothing",
    61: "tables with missing cells, failed runs and single seeds",
    62: "versions are not mixed in one table",
    63: "reports made twice are equal byte for byte",
    64: "names that are LaTeX, HTML, Markdown or a formula stay names",
    # config and security
    65: "misspelt, repeated and senseless settings",
    66: "YAML that builds objects, explodes or is huge",
    67: "pickles in any file are refused and not run",
    68: "one flipped bit in anything stored is found",
    69: "model folders with code of their own are refused",
    70: "names that climb out; servers on loopback; no secrets in artifacts",
}
"""Promises of the fault list, by number of the case."""

PARITY = {
    1: "gradient caching equals the full batch",
    2: "several ranks: refused, so that no number depends on how many there are",
    3: "losses in chunks equal dense ones",
    4: "our exact search equals faiss's flat index",
    5: "the batch size of an evaluation changes no result",
}
"""Promises that two ways to compute a number agree, by number of the case; a test says `parity 3`."""
