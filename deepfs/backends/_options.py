"""Options on their way from one backend to another."""

from typing import Any

__all__ = ["given"]


def given(**options: Any) -> dict[str, Any]:
    """The options that are neither None nor False, so that a backend without the others can be called."""
    return {name: value for name, value in options.items() if value is not None and value is not False}
