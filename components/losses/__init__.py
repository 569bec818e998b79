"""Losses: pure functions of `Scores` that return a value per query. Configs name them by short name or dotted path."""
