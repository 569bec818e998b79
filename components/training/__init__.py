"""The training loop, with gradients, checkpoints and the self-check of gradients."""
