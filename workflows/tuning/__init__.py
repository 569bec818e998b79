"""Ray Tune over a recipe: the section `tune` of an experiment, the sampler, the trials and their table."""
