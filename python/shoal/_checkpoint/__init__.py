"""Checkpoints: the state as named tensors, and the files that keep it."""
