"""EAR: expand a query in many ways, rerank the expansions, and retrieve with the best."""

from sparring.workflows.recipes.ear.config import Config
from sparring.workflows.recipes.ear.recipe import build

__all__ = ["Config", "build"]
