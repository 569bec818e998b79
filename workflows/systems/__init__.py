"""Systems, what is measured of them, and what a recipe returns."""
