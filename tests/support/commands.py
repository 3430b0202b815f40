"""The command line, called in this process."""

from harness.cli import main


def call(*arguments: str) -> int:
    """Exit code of a command."""
    try:
        main(list(arguments))
    except SystemExit as done:
        return int(done.code or 0)
    return 0
