"""One filesystem for agents over many storages, natively async.

Names are loaded when they are first used: importing deepfs loads no LangGraph, LangChain or driver.
"""

from deepfs._lazy import lazy_exports

__version__ = "0.1.0"

__getattr__, __dir__ = lazy_exports(__name__, "__version__")
