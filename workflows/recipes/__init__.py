"""One recipe a file: a `Config` and a `build(config)` that returns a graph of steps."""
