"""Trust, tried on purpose: fault list (`make faults`), kill and resume (`make soak`), hostile input (`make fuzz`).

cases.py      what is promised, one line a case
accounts.py   the part inside pytest: which tests try which case, and what they say was done and what happened
faults.py     runs those tests and writes the table;  page.py: reports/faults.md, a section for each command
soak.py       trainings that are killed at random moments and resumed
fuzz.py       the command that feeds every parser and loader: engine.py gives each its time, judge.py says what is a
              finding, mutations.py changes inputs, targets_*.py are the readers, world.py has what inputs are made from
"""
