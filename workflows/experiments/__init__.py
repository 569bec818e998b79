"""Experiments as their YAML files describe them."""
