"""The command line, called in this process."""

from harness.cli import main


def call(*arguments: str) -> int:
    """Run a command and return its exit code."""
    try:
        main(list(arguments))
    except SystemExit as done:
        return int(done.code or 0)
    return 0
