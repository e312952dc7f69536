"""Threads, locks and queues of the operating system, also where gevent puts its own in the place of Python's.

Those of gevent belong to one thread, and raise an error where they would have to wait for another one.
"""

import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["Lock", "RLock", "SimpleQueue", "get_ident", "start_thread"]

_gevent: Any = sys.modules.get("gevent.monkey")


def _original(module: str, name: str) -> Any:
    return getattr(import_module(module), name) if _gevent is None else _gevent.get_original(module, name)


if TYPE_CHECKING:
    from queue import SimpleQueue
    from threading import Lock, RLock, get_ident
else:
    Lock = _original("threading", "Lock")
    RLock = _original("threading", "RLock")
    get_ident = _original("threading", "get_ident")
    SimpleQueue = _original("queue", "SimpleQueue")


def start_thread(target: Callable[[], object], name: str) -> None:
    """Start a daemon thread.

    Args:
        target: What the thread runs.
        name: The name of the thread; not for gevent, whose own names are of greenlets.

    Raises:
        RuntimeError: No thread can be started.
    """
    if _gevent is None:
        threading.Thread(target=target, name=name, daemon=True).start()
    else:
        _original("_thread", "start_new_thread")(target, ())
