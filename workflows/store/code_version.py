"""The commit that the running code is at."""

import json
import os
import subprocess
from typing import Any

from workflows import ROOT


def code_version() -> dict[str, Any]:
    """The commit of the code and whether files were changed since; empty outside a git checkout.

    Code that was submitted to a cluster is no checkout; there `$SPARRING_CODE` says which commit was sent.
    """
    if sent := os.environ.get("SPARRING_CODE"):
        return dict(json.loads(sent))

    def git(*words: str) -> str | None:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    try:
        commit = git("rev-parse", "HEAD")
        return {"commit": commit, "changed": bool(git("status", "--porcelain", "-uno"))} if commit else {}
    except FileNotFoundError:  # git is not installed
        return {}
