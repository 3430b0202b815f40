"""Many runs: bench, sweep and tune."""
