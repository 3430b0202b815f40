"""Speed as ratios: our code against a named reference, both sides measured in turns in one run.

    make bench                              all of it; prints the table and writes reports/speed.md
    python -m tests.benchmarks -k losses    a part, printed only
    pytest -m benchmarks                    everything once at small sizes: does it still run, do both sides agree?

race.py      the fixtures `race` and `measure` (pytest-benchmark), and the sizes
page.py      pytest-benchmark's JSON -> the table
steps.py     trainings on random rows, step by step;  obvious.py: the same step as one would first write it
test_*.py    the comparisons
"""
