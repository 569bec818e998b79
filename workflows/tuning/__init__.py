"""Tuning of a recipe with Ray Tune: the section `tune` of an experiment, the sampler, the trials and their table."""
