"""Strategies: how workers that make several local steps between two commits stay one training.

Pure: no call, no clock, no random state. docs/design/strategies.md has the contract.
"""

from .contract import Strategy
from .matching import partners
from .text import STRATEGIES, Sync, parse

__all__ = ["STRATEGIES", "Strategy", "Sync", "parse", "partners"]
