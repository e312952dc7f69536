"""Backends that stand before other backends."""

from deepfs.policy.wrapper import WrapperBackend

__all__ = ["WrapperBackend"]
