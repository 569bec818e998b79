"""Objectives, one per file. An objective turns rows into a batch, representations and named loss terms."""
