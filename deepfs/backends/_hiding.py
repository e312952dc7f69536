"""What a search need not look at, because its caller would not show it."""

import inspect
from functools import lru_cache
from typing import Any

from deepfs.core.search import Hidden

__all__ = ["hiding"]


def hiding(backend: object, hidden: Hidden | None) -> dict[str, Any]:
    """The option that tells the searches of `backend` what their caller hides; nothing where they do not have it.

    They have it by name: a method that takes any option might change paths, and hide others for it.
    """
    kind: Any = type(backend)
    return {} if hidden is None or not _can_hide(kind) else {"hidden": hidden}


@lru_cache(maxsize=256)
def _can_hide(kind: Any) -> bool:
    return all("hidden" in inspect.signature(search).parameters for search in (kind.aglob, kind.agrep))
