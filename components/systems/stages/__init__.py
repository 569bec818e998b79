"""Stages of a system that read other stages' rankings. Each file has a stage's description, its sentence on the card
and its lines of `example.py`. The first stages are in `components/retrieval/kinds`."""
