"""Backends from text: an address names a backend and a path in it, a TOML file describes a whole tree."""

from deepfs.config.trees import TreeConfig, load_tree, open_backend, open_tree
from deepfs.config.urls import Address, parse_address

__all__ = ["Address", "TreeConfig", "load_tree", "open_backend", "open_tree", "parse_address"]
