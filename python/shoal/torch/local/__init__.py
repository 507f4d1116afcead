"""Optimizers that make local steps: the strategies of shoal.sync, for models of PyTorch."""

from .steps import local_steps

__all__ = ["local_steps"]
