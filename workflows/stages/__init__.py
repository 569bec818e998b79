"""Sub-graphs that recipes share, and what a recipe returns."""
