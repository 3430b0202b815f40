"""What this machine has and what a run uses of it: memory, cores, threads, load."""
