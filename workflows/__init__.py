"""What the system runs: recipes, and the graph of steps they are made of."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The repository's root."""
