"""Remove passwords and the paths of this machine from text before it is printed or recorded."""

import os
import re
from pathlib import Path
from urllib.parse import unquote

from harness.io.files import home


def without_secrets(text: str) -> str:
    """Replace passwords and tokens of the tracking store, and those inside any address, by stars."""
    secrets = [os.environ.get(f"MLFLOW_TRACKING_{name}", "") for name in ("PASSWORD", "TOKEN")]
    user, at, _ = os.environ.get("MLFLOW_TRACKING_URI", "").partition("://")[2].rpartition("@")
    password = user.partition(":")[2] if at else ""
    for secret in sorted({*secrets, password, unquote(password)} - {""}, key=len, reverse=True):
        text = text.replace(secret, "***")
    return re.sub(r"(://[^:/@\s]*:)[^@\s]+@", r"\1***@", text)


def without_paths(text: str) -> str:
    """Replace the paths of the workspace, the current folder and the home folder by `$HARNESS_HOME`, `.` and `~`."""
    for folder, name in ((home(), "$HARNESS_HOME"), (Path.cwd(), "."), (Path.home(), "~")):
        if folder != folder.parent:  # the root folder is part of every path
            text = text.replace(str(folder), name)
    return text
