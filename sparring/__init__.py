"""Train and compare retrievers and rerankers, and search with what was deployed."""
