"""The run folder: record, event log, lock, resume."""
