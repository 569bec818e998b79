"""EAR: expand a query in many ways, rerank the expansions, retrieve with the best."""

from workflows.recipes.ear.config import Config
from workflows.recipes.ear.recipe import build

__all__ = ["Config", "build"]
