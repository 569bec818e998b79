"""Losses: pure functions of `Scores` that return one value for each query. Configs name them by dotted path."""
