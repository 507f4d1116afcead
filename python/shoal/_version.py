"""The version of the package, and of the protocol's `join` message."""

__version__ = "0.3.1"
