"""Several calls at once, their results in the order of the calls."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio

from deepfs.sync import is_inline

__all__ = ["at_once"]

T = TypeVar("T")


async def at_once(
    calls: Sequence[Callable[[], Awaitable[T]]],
    enough: Callable[[Sequence[T | None]], bool] = lambda _: False,
) -> list[T | None]:
    """The results of `calls`, run concurrently; None for those cancelled once `enough` says that the others suffice."""
    results: list[T | None] = [None] * len(calls)
    if is_inline() or len(calls) == 1:
        for index, call in enumerate(calls):
            results[index] = await call()
            if enough(results):
                break
        return results

    async with anyio.create_task_group() as group:

        async def one(index: int, call: Callable[[], Awaitable[T]]) -> None:
            results[index] = await call()
            if enough(results):
                group.cancel_scope.cancel()

        for index, call in enumerate(calls):
            group.start_soon(one, index, call)
    return results
