"""Query expansions: their tables, sampling them from retrieved documents, and choosing among them."""
