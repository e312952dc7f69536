"""Backends from text: an address names a backend and a path in it, a TOML file describes a whole tree."""

from deepfs.config.addresses import Address, parse_address
from deepfs.config.trees import TreeConfig, load_tree, open_backend, open_tree

__all__ = ["Address", "TreeConfig", "load_tree", "open_backend", "open_tree", "parse_address"]
