"""Hooks, rate limits and audit logs."""

from collections.abc import Callable
from typing import Any

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from deepfs import MemoryBackend
from deepfs.backends.protocol import SandboxBackendProtocol
from deepfs.errors import InvalidContentError, PermissionDeniedError
from deepfs.policy import (
    AuditedBackend,
    AuditRecord,
    Call,
    FilesystemPermission,
    HookedBackend,
    PermissionedBackend,
    RateLimit,
    RateLimitError,
)
from deepfs.sync import OPERATIONS
from deepfs.types import ExecuteResponse, ReadResult

pytestmark = pytest.mark.anyio

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "ls": ("/",),
    "read": ("/a",),
    "read_raw": ("/a",),
    "write": ("/a", "x"),
    "edit": ("/a", "x", "y"),
    "glob": ("*",),
    "grep": ("x",),
    "delete": ("/a",),
    "move": ("/a", "/b"),
    "copy": ("/a", "/b"),
    "upload_files": ([("/a", b"x")],),
    "download_files": (["/a"],),
    "execute": ("true",),
}


class Commands(SandboxBackendProtocol, MemoryBackend):
    id = "commands"
    is_synchronous = True

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    async def aread(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        self.reads += 1
        return await super().aread(path, offset, limit)

    async def aexecute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
        return ExecuteResponse(f"{command} {timeout}", 0)


# --- hooks ---


async def test_a_call_has_the_arguments_by_name() -> None:
    calls: list[Call] = []
    backend = HookedBackend(MemoryBackend(), [calls.append])
    await backend.awrite("//a/", "text", overwrite=True)
    await backend.agrep("x", "/d", max_count=3)
    assert calls[0].arguments == {"path": "//a/", "content": "text", "overwrite": True}
    assert calls[0].paths == ("/a",)
    assert calls[0].changes
    assert calls[1].arguments == {"pattern": "x", "path": "/d", "glob": None, "max_count": 3}
    assert not calls[1].changes


async def test_a_hook_denies_by_raising_a_leaf_error() -> None:
    def deny(call: Call) -> None:
        raise PermissionDeniedError(call.paths[0] if call.paths else "/", "not today")

    after: list[object] = []
    memory = Commands()
    memory.write("/a", "x")
    backend = HookedBackend(memory, [deny], [lambda call, result: after.append(result)])
    for name in OPERATIONS:
        if name == "execute":
            with pytest.raises(PermissionDeniedError, match="not today"):
                await backend.aexecute("rm")
            continue
        result = await getattr(backend, f"a{name}")(*ARGUMENTS[name])
        if isinstance(result, list):
            assert [(item.path, item.error) for item in result] == [("/a", "permission_denied")]
        else:
            assert result.code == "permission_denied"
            assert "not today" in result.error
    assert after == []
    assert [*memory._files] == ["/a"]


async def test_hooks_see_batches_item_by_item() -> None:
    async def no_zips(call: Call) -> None:
        if call.operation == "upload_files" and call.arguments["content"].startswith(b"PK"):
            raise InvalidContentError("Error: no archives")

    def hide(call: Call, result: Any) -> Any:
        if call.paths == ("/b",):
            raise PermissionDeniedError("/b")

    backend = HookedBackend(MemoryBackend(), [no_zips], [hide])
    stored = await backend.aupload_files([("/a", b"text"), ("/z", b"PK.."), ("/b", b"more")])
    assert [item.error for item in stored] == [None, "invalid_content", "permission_denied"]
    fetched = await backend.adownload_files(["/b", "/a", "/z"])
    assert [(item.path, item.content, item.error) for item in fetched] == [
        ("/b", None, "permission_denied"), ("/a", b"text", None), ("/z", None, "file_not_found"),
    ]  # fmt: skip


async def test_an_after_hook_sees_failures_and_replaces_results() -> None:
    seen: list[str | None] = []

    async def mask(call: Call, result: Any) -> Any:
        seen.append(result.error)
        if call.operation == "read" and result.ok:
            return replace(result, file_data=replace(result.file_data, content="***"))
        return None

    backend = HookedBackend(MemoryBackend(), after=[mask, lambda call, result: seen.append(str(result.ok))])
    assert (await backend.aread("/a")).code == "file_not_found"
    await backend.awrite("/a", "secret")
    assert (await backend.aread("/a")).file_data.content == "***"  # type: ignore[union-attr]
    assert seen == ["Error: File '/a' not found", "False", None, "True", None, "True"]


# --- rate limits ---


async def test_a_rate_limit_denies_until_time_has_passed() -> None:
    now = 100.0
    limit = RateLimit(2, 10, ["write"], clock=lambda: now)
    backend = HookedBackend(MemoryBackend(), [limit])
    assert (await backend.awrite("/a", "x")).ok
    now = 104.0
    assert (await backend.awrite("/b", "x")).ok
    refused = await backend.awrite("/c", "x")
    assert refused.code == "permission_denied"
    assert refused.error == "Error: Rate limit reached: 2 operations in 10 seconds. Try again in 6.0 seconds."
    assert (await backend.aread("/a")).ok, "others are not limited"
    now = 110.0
    assert (await backend.awrite("/c", "x")).ok, "the first is ten seconds ago; what was denied does not count"
    with pytest.raises(RateLimitError) as caught:
        limit(Call("write", {"path": "/d"}))
    assert caught.value.retry_after == 4.0


@pytest.mark.parametrize(
    ("limit", "operations", "error", "text"),
    [
        (0, None, ValueError, "at least one operation"),
        (1, ["write_file"], ValueError, "known are ls, read,"),
        (1, [], ValueError, "operations is empty"),
        (1, "read_raw", TypeError, "operations is a collection of names"),
    ],
)
def test_a_wrong_rate_limit_is_refused(limit: Any, operations: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        RateLimit(limit, 1, operations)


async def test_a_rate_limit_counts_concurrent_calls() -> None:
    backend = HookedBackend(MemoryBackend(), [RateLimit(5, 3600)])
    results: list[bool] = []

    async def write(number: int) -> None:
        results.append((await backend.awrite(f"/{number}", "x")).ok)

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(write, number)
    assert sorted(results) == [False] * 15 + [True] * 5


# --- audit ---


async def audited(act: Callable[[AuditedBackend], Any], **options: Any) -> list[AuditRecord]:
    records: list[AuditRecord] = []
    inner = PermissionedBackend(Commands(), [FilesystemPermission(["read", "write"], ["/no/**"], "deny")])
    await act(AuditedBackend(inner, records.append, **options))
    return records


async def test_every_operation_is_logged_without_contents() -> None:
    async def act(backend: AuditedBackend) -> None:
        for name in OPERATIONS:
            await getattr(backend, f"a{name}")(*ARGUMENTS[name])

    records = await audited(act)
    assert [record.operation for record in records] == list(OPERATIONS)
    told = {record.operation: record.arguments for record in records}
    assert told["write"] == {"path": "/a", "content": {"size": 1}}
    assert told["edit"] == {"path": "/a", "old": {"size": 1}, "new": {"size": 1}, "replace_all": False}
    assert told["upload_files"] == {"files": [{"path": "/a", "size": 1}]}
    assert all(record.seconds >= 0 and record.at.endswith("+00:00") for record in records)
    assert msgspec.json.decode(msgspec.json.encode(records[3]))["arguments"]["path"] == "/a"


async def test_failures_and_denials_are_logged() -> None:
    async def act(backend: AuditedBackend) -> None:
        await backend.aread("/none")
        await backend.awrite("/no/x", "y")
        await backend.adownload_files(["/none", "/no/x"])

    assert [(record.ok, record.code, record.error) for record in await audited(act)] == [
        (False, "file_not_found", "Error: File '/none' not found"),
        (False, "permission_denied", "Error: permission denied for write on /no/x"),
        (False, "file_not_found", "/none: file_not_found; /no/x: permission_denied"),
    ]


async def test_a_redaction_changes_and_drops_records() -> None:
    def redact(record: AuditRecord) -> AuditRecord | None:
        if record.operation == "ls":
            return None
        return replace(record, arguments=record.arguments | {"path": "/…"})

    async def act(backend: AuditedBackend) -> None:
        await backend.als("/")
        await backend.awrite("/name-of-a-patient", "x")

    (record,) = await audited(act, redact=redact)
    assert "patient" not in str(record)


async def test_exceptions_and_cancellation_are_logged() -> None:
    class Failing(MemoryBackend):
        async def aread(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
            if path == "/wait":
                await anyio.sleep_forever()
            raise KeyError("bug")

    records: list[AuditRecord] = []

    async def log(record: AuditRecord) -> None:
        await anyio.lowlevel.checkpoint()
        records.append(record)

    backend = AuditedBackend(Failing(), log)
    with pytest.raises(KeyError):
        await backend.aread("/a")
    with anyio.move_on_after(0.01):
        await backend.aread("/wait")
    assert records[0].error == "KeyError"
    assert [record.ok for record in records] == [False, False]
    assert "Cancelled" in (records[1].error or "")
