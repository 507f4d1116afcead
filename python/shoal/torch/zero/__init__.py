"""Sharded data parallel: each worker keeps and updates a part of the optimizer's state."""

from .optimizer import Zero, zero

__all__ = ["Zero", "zero"]
