"""Recipes, one module each: a `Config` and a `build(config)` that returns the systems and the steps that make them."""
