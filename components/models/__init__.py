"""Retrievers, rankers, generators and readers: creating, loading, running and saving them."""
