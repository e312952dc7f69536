"""The backends; each is loaded when it is first used."""

from deepfs._lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
