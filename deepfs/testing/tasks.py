"""Concurrent calls."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import anyio

__all__ = ["gather"]

T = TypeVar("T")


async def gather(calls: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """Run each of `calls` in its own task, and return their results in order."""
    results: dict[int, T] = {}

    async def run(number: int, call: Callable[[], Awaitable[T]]) -> None:
        results[number] = await call()

    async with anyio.create_task_group() as tasks:
        for number, call in enumerate(calls):
            tasks.start_soon(run, number, call)
    return [result for _, result in sorted(results.items(), key=lambda item: item[0])]
