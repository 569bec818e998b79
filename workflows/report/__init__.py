"""The report: one HTML page, its sections and its templates."""
