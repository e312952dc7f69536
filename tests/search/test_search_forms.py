"""A search is defined by parameters or by a request object: a class defines one form, and the other calls it."""

from typing import Any

import anyio.to_thread
import pytest

from deepfs import CompositeBackend, GrepResult, MemoryBackend
from deepfs.operations import Grep, Operation

pytestmark = pytest.mark.anyio


class Noting(MemoryBackend):
    """Records the methods called, from the outermost inwards."""

    is_synchronous = False

    def __init__(self) -> None:
        super().__init__()
        self.passed: list[str] = []


class ByParameters(Noting):
    async def agrep(self, *args: Any, **options: Any) -> GrepResult:
        self.passed.append(f"agrep {args} {options}")
        return await super().agrep(*args, **options)


class ByRequest(ByParameters):
    async def run(self, operation: Operation) -> Any:
        if isinstance(operation, Grep):
            self.passed.append(f"run {operation.pattern}")
        return await super().run(operation)


class Synchronous(ByRequest):
    def grep(self, *args: Any, **options: Any) -> GrepResult:
        self.passed.append("grep")
        return super().grep(*args, **options)


FORMS = {
    "async": lambda backend: backend.agrep("x", regex=True),
    "sync": lambda backend: anyio.to_thread.run_sync(lambda: backend.grep("x", regex=True)),
    "request": lambda backend: backend.arun(Grep("x", regex=True)),
    "mounted": lambda backend: CompositeBackend(MemoryBackend(), {"/m": backend}).agrep("x", "/m", regex=True),
}


async def test_each_override_is_called_once_in_any_form() -> None:
    for kind, expected in [
        (ByParameters, ["agrep"]),
        (ByRequest, ["run", "agrep"]),
        (Synchronous, ["grep", "run", "agrep"]),
    ]:
        for form in FORMS:
            backend = kind()
            await backend.awrite("/a", "x")
            assert len((await FORMS[form](backend)).matches or ()) == 1
            assert [line.split()[0] for line in backend.passed] == expected
            assert "'regex': True" in backend.passed[-1]


async def test_a_missing_option_is_unsupported_but_a_limit_is_applied() -> None:
    class Short(MemoryBackend):
        async def agrep(self, pattern: str, path: str | None = None, glob: str | None = None) -> GrepResult:  # type: ignore[override]
            return await super().agrep(pattern, path, glob)

    backend = Short()
    await backend.awrite("/a", "x\nx\n")
    assert (await backend.arun(Grep("x", regex=True))).code == "unsupported"
    limited = await backend.arun(Grep("x", max_count=1))
    assert (len(limited.matches or ()), limited.truncated) == (1, True)
