"""One idea a file: pure functions of Scores."""
