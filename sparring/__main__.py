"""The command `sparring`, which is also `python -m sparring`."""

import os
import sys

NEEDED = ("numpy", "psutil", "pyarrow", "pydantic", "tqdm", "yaml")
"""Packages that every command imports."""


def command() -> int:
    """Run the command line; its exit status."""
    leave_current_folder()
    from importlib.util import find_spec

    if lacking := [name for name in NEEDED if find_spec(name) is None]:
        print(
            f"error: {sys.executable} has no package {', '.join(lacking)}. Use the Python of the environment that "
            "`make setup` makes. For a job it must come first on the PATH that the cluster's head is started with.",
            file=sys.stderr,
        )
        return 2
    from sparring.workflows.command_line import main

    return main()


def leave_current_folder() -> None:
    """Take the current folder off the path of modules, here and in every Python that this process starts.

    Users call the program in folders with other people's files. Python would import a `random.py` there in place of its
    own. A checkout that is not installed stays on the path, behind everything else.
    """
    os.environ["PYTHONSAFEPATH"] = "1"
    here, home = os.getcwd(), os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path[:] = [folder for folder in sys.path if folder not in ("", here)]
    if home not in sys.path:
        sys.path.append(home)


if __name__ == "__main__":
    sys.exit(command())
