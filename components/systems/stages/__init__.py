"""Stages of a system that read other stages' rankings. Each file has a stage's description, its sentence on the card
and its lines of `example.py`. It is found by its name, and assigns its class to `Stage`. The first stages are in
`components/retrieval/kinds`."""
