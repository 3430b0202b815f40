"""Trust, tried on purpose: fault list (`make faults`), kill and resume (`make soak`), hostile input (`make fuzz`).

cases.py      what is promised, one line a case
accounts.py   the part inside pytest: which tests try which case, and what they say was done and what happened
faults.py     runs those tests and writes the table
soak.py       trainings that are killed at random moments and taken up again
fuzz.py       the command that feeds every parser and loader; fuzzing.py says what a target is and what a finding,
              mutations.py how inputs are changed, targets*.py what reads them, world.py what they are made from
"""
