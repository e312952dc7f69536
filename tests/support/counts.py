"""How often CI and `nox -s stress` repeat stress tests, and how these report figures."""

from collections.abc import Callable
from typing import Any

import pytest

__all__ = ["Tell", "few_or_many", "telling"]

Tell = Callable[[str], None]


def few_or_many(few: int, many: int, *, seconds: int = 900) -> list[Any]:
    """Values for `parametrize`: `few` in every run of the suite; `many`, with this timeout, in `nox -s stress`."""
    return [pytest.param(few), pytest.param(many, marks=[pytest.mark.stress, pytest.mark.timeout(seconds)])]


def telling(record_property: Callable[[str, object], None]) -> Tell:
    """Reports a figure in the test's output (`pytest -rP`) and as a property of the test in its XML report."""

    def tell(figure: str) -> None:
        print(figure)
        record_property("figure", figure)

    return tell
