"""Backends that are slow or fail, to test the code that uses them."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import anyio

from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.wrapper import WrapperBackend
from deepfs.operations import Operation

__all__ = ["Fault", "FaultyBackend", "LatencyBackend"]

Fault: TypeAlias = Callable[[str, int], Exception | None]
"""Returns the error to raise, if any, given the name of an operation (`"write"`) and its number, counted from 1."""


class LatencyBackend(WrapperBackend):
    """Each operation takes `seconds` longer; a float, or one for each operation by name."""

    def __init__(self, inner: BackendProtocol, seconds: float | Mapping[str, float]) -> None:
        super().__init__(inner)
        self._seconds = seconds

    async def run(self, operation: Operation) -> Any:
        for name in operation.known_as:
            await anyio.sleep(self._seconds.get(name, 0) if isinstance(self._seconds, Mapping) else self._seconds)
        return await super().run(operation)


class FaultyBackend(WrapperBackend):
    """Operations fail as `fail` says: `{"write": BackendError("disk on fire")}`, or a `Fault` that gets each call.

    Leaves of `deepfs.errors` reach the caller as the error of the Result, other exceptions unchanged, like a bug of the
    backend. Streams are `"upload_stream"` and `"download_stream"`. With `late`, an operation is carried out before it
    fails, as if its answer were lost.
    """

    def __init__(self, inner: BackendProtocol, fail: Fault | Mapping[str, Exception], *, late: bool = False) -> None:
        super().__init__(inner)
        self._fail = fail
        self._late = late
        self.calls: Counter[str] = Counter()
        """The number of calls of each operation, by name."""

    async def run(self, operation: Operation) -> Any:
        fail, errors = self._fail, []
        for name in operation.known_as:
            self.calls[name] += 1
            errors.append(fail.get(name) if isinstance(fail, Mapping) else fail(name, self.calls[name]))
        error = next((error for error in errors if error is not None), None)
        answer = await super().run(operation) if error is None or self._late else None
        if error is not None:
            raise error
        return answer
