"""Code for reciprocal nearest neighbours, reranking by them, and evidence-based label smoothing."""
