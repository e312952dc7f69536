"""Module attributes that are imported when they are first used (PEP 562)."""

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["lazy_exports"]


def lazy_exports(
    package: str, homes: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of `package`; `homes` maps each module to the names to load from it.

    A key of `homes` is relative to `package`, or absolute if it starts with the name of the root package.
    """
    root = package.partition(".")[0]
    full = {home: home if home.startswith(f"{root}.") else f"{package}.{home}" for home in homes}
    home_of = {name: full[home] for home, names in homes.items() for name in names}
    namespace = vars(sys.modules[package])

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = namespace[name] = getattr(import_module(home_of[name]), name)
        return value

    def names() -> list[str]:
        return sorted({*namespace, *home_of})

    return get, names
