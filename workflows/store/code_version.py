"""The commit of the running code."""

import json
import os
import subprocess
from typing import Any

from sparring.workflows import ROOT


def code_version() -> dict[str, Any]:
    """Return the commit of the code, and whether files were changed since. Empty outside a git checkout.

    Code that was submitted to a cluster is no checkout. There `$SPARRING_CODE` names the commit that was sent.
    """
    if sent := os.environ.get("SPARRING_CODE"):
        return dict(json.loads(sent))

    if not (ROOT / ".git").exists():  # installed, perhaps inside somebody's checkout of something else
        return {}
    words = ["git", "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # git is not installed
        return {}
    lines = done.stdout.splitlines()
    commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), "(initial)")
    changed = any(not line.startswith("#") for line in lines)
    return {} if commit == "(initial)" else {"commit": commit, "changed": changed}
