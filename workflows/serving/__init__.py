"""The search service: systems that stay open, asked over HTTP by a page and by programs."""
