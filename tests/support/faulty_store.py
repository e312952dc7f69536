"""A store with the faults of real ones: errors before, during and after a write, stale reads, caps and broken pages."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from langgraph.store.base import BaseStore, GetOp, Op, PutOp, Result, SearchOp

__all__ = ["FAULTS", "FaultyStore", "LostError"]

FAULTS: Final = ("before", "after", "half", "blind", "stale", "repeat", "gap", "foreign")
"""`before`, `after`: the next change fails without or with effect; `half`: it fails midway; `blind`: it fails after its
effect, and so does the next read; `stale`: the next listing is the previous one; `repeat`, `gap`: a page has a row
twice, or lacks one; `foreign`: the answers to the next reads come in another order."""


class LostError(ConnectionError):
    """The connection was lost."""


class FaultyStore(BaseStore):
    """Forwards to `inner`, with one fault at a time: `fault` names it, and is cleared when it has happened.

    An answer has at most `cap` items, unless that is None.
    """

    def __init__(self, inner: BaseStore, cap: int | None = None) -> None:
        self.inner = inner
        self.cap = cap
        self.fault: str | None = None
        self.happened: list[str] = []
        self._listed: dict[int, list[Any]] = {}

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        raise AssertionError("a sync method of the store was called")

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        operations = list(ops)
        if any(isinstance(operation, PutOp) for operation in operations):
            return await self._put(operations)
        if self._takes("unread"):
            raise LostError
        answers = [await self._answer(operation) for operation in operations]
        if any(isinstance(operation, GetOp) for operation in operations) and self._takes("foreign"):
            answers.reverse()
        return answers

    def _takes(self, *faults: str) -> str | None:
        """The pending fault, if it is one of `faults`; it then counts as happened."""
        fault = self.fault
        if fault not in faults:
            return None
        self.fault = None
        self.happened.append(str(fault))
        return fault

    async def _put(self, operations: Sequence[Op]) -> list[Result]:
        fault = self._takes("before", "after", "half", "blind")
        if fault == "before":
            raise LostError
        some = operations[: (len(operations) + 1) // 2] if fault == "half" else operations
        await self.inner.abatch(some)
        if fault == "blind":
            self.fault = "unread"
        if fault is not None:
            raise LostError
        return [None] * len(operations)

    async def _answer(self, operation: Op) -> Result:
        if not isinstance(operation, SearchOp):
            return (await self.inner.abatch([operation]))[0]
        limit = operation.limit if self.cap is None else min(operation.limit, self.cap)
        [rows] = await self.inner.abatch([operation._replace(limit=limit)])
        return self._broken(operation.offset, list(rows or ()))  # type: ignore[arg-type]

    def _broken(self, offset: int, rows: list[Any]) -> list[Any]:
        earlier, self._listed[offset] = self._listed.get(offset, rows), rows
        if self._takes("stale"):
            return earlier
        if offset and rows and self._takes("gap"):
            return rows[1:]
        if rows and self._takes("repeat"):
            return [rows[-1], *rows]
        return rows
