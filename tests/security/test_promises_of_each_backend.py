"""What SECURITY.md promises of some backends only, where no other test says it."""

from pathlib import Path
from typing import Any

import pytest

from deepfs.backends.local_shell import LocalShellBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.wrapper import WrapperBackend
from deepfs.operations import Operation
from deepfs.policy import FilesystemPermission, PermissionedBackend
from support.promises import keeps

pytestmark = pytest.mark.anyio


@keeps("The environment of this process is not handed on unless asked.")
async def test_the_environment_is_not_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "secret")
    assert "secret" not in (await LocalShellBackend(tmp_path).aexecute("/usr/bin/env")).output
    assert "secret" in (await LocalShellBackend(tmp_path, inherit_env=True).aexecute("/usr/bin/env")).output


@keeps("100,000 lines or 100,000 files with `truncated`")
async def test_a_search_stops_and_says_so() -> None:
    memory = MemoryBackend()
    assert (await memory.awrite("/lines", "needle\n" * 100_001)).ok
    found = await memory.agrep("needle")
    assert (len(found.matches or ()), found.truncated) == (100_000, True)


@keeps("What is denied is absent from listings and searches, and answers the same whether it is there or not.")
async def test_what_is_denied_is_absent_and_answers_the_same() -> None:
    memory = MemoryBackend()
    for path in ("/secret/key", "/open"):
        assert (await memory.awrite(path, "needle")).ok
    ruled = PermissionedBackend(memory, [FilesystemPermission(["read", "write"], ["/secret/**"], "deny")])
    assert [match.path for match in (await ruled.agrep("needle")).matches or ()] == ["/open"]
    assert [match.path for match in (await ruled.aglob("**/*")).matches or ()] == ["/open"]
    for operation in (ruled.aread, ruled.adelete, ruled.als):
        there, missing = await operation("/secret/key"), await operation("/secret/kex")
        assert (there.code, str(there.error).replace("key", "kex")) == (missing.code, missing.error)


@keeps("Every operation passes it, each exactly once.")
async def test_every_operation_passes_a_wrapper_once() -> None:
    passed = []

    class Recording(WrapperBackend):
        async def run(self, operation: Operation) -> Any:
            passed.append(operation.name)
            return await super().run(operation)

    backend = Recording(MemoryBackend())
    await backend.awrite("/a", "x")
    await backend.aedit("/a", "x", "y")
    await backend.acopy("/a", "/b")
    await backend.aupload_files([("/d", b"x")])
    await backend.adelete("/d")
    await backend.agrep("x")
    assert passed == ["write", "edit", "copy", "upload_files", "delete", "grep"]
