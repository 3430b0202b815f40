"""Commands that start many runs: bench, sweep and tune."""
