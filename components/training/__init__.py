"""The training loop, its gradients, checkpoints and self-check."""
