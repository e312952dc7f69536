"""Workspaces: copies of a tree that cost nothing, in which changes are tried, looked at, and merged or discarded."""

from deepfs._lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
