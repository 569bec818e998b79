"""Retrieval: exact top-k, FAISS, BM25 with Lucene, fusion of rankings, and screening for false negatives."""
