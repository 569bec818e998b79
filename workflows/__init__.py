"""What the system runs: recipes, and the graph of steps they are made of."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The folder of workflows/, components/, configs/ and cluster/: a checkout, or the package `sparring` of a wheel."""
PACKAGE = ROOT / "sparring" if (ROOT / "sparring").is_dir() else ROOT
"""The folder of the package `sparring`."""
