"""Modules that turn rows into a batch, representations and named loss terms: one objective a file."""
