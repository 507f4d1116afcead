"""Models that are a list of layers, trained on any mesh of replicas and pipeline stages."""

from .model import Chain, chain

__all__ = ["Chain", "chain"]
