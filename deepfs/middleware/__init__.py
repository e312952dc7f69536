"""Tools over a backend, and middleware that gives them to LangChain agents."""

from deepfs._lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
