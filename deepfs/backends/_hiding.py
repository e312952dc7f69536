"""What a search need not look at, because its caller would not show it."""

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from deepfs.core.search import Hidden

__all__ = ["hiding"]


def hiding(search: Callable[..., Any], hidden: Hidden | None) -> dict[str, Any]:
    """The option that tells a `search` of a backend what its caller hides, where it has such an option.

    Who calls it hides the rest: a method that takes any option might change paths, and hide others for it.
    """
    if hidden is None or not _has_option(getattr(search, "__func__", search)):
        return {}
    return {"hidden": hidden}


@lru_cache(maxsize=256)
def _has_option(function: Callable[..., Any]) -> bool:
    return "hidden" in inspect.signature(function).parameters
