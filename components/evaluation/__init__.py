"""Measures, statistical tests and result tables."""
