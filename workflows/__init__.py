"""The program that users run: commands, recipes, and the steps that recipes are made of."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""Folder of workflows/, components/, configs/ and cluster/: a checkout, or the package `sparring` of a wheel."""
PACKAGE = ROOT / "sparring" if (ROOT / "sparring").is_dir() else ROOT
"""Folder of the package `sparring`."""
