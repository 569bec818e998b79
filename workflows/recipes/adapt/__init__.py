"""Adapt a retriever and a ranker to your own collection, and say which system to deploy."""

from sparring.workflows.recipes.adapt.config import Config
from sparring.workflows.recipes.adapt.defaults import resolve
from sparring.workflows.recipes.adapt.recipe import build

__all__ = ["Config", "build", "resolve"]
