"""What is done with a finished run: load, predict, export, serve."""
