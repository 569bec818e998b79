"""Retriever kinds: each file is a family of first-stage retriever (`components.retrieval.kind`)."""
