"""Lines of `example.py` for stages that take many: expansions and readers."""
