"""What layers do with `achange_files`: each change is seen, and what belongs together stays together."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread

from deepfs import (
    CompositeBackend,
    ContentChange,
    FilesystemBackend,
    FilesystemPermission,
    MemoryBackend,
    PermissionedBackend,
    SqliteBackend,
)
from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import PermissionDeniedError
from deepfs.policy import (
    AuditedBackend,
    AuditRecord,
    Call,
    HistoryBackend,
    HookedBackend,
    QuotaBackend,
    RateLimit,
    ReadOnlyBackend,
    WrapperBackend,
)
from deepfs.text.lines import version
from deepfs.types import DeleteResult, WriteResult
from support.graphs import in_run

pytestmark = pytest.mark.anyio

BATCH = [ContentChange("/new", b"\x00"), ContentChange("/old", None), ContentChange("/kept", b"2", overwrite=True)]


def stored(**files: bytes) -> MemoryBackend:
    return MemoryBackend(files={f"/{name}": content for name, content in files.items()})


async def errors_of(backend: BackendProtocol, *changes: ContentChange, whole: bool = False) -> list[str | None]:
    outcomes = await backend.achange_files(changes, all_or_none=whole)
    assert [outcome.path for outcome in outcomes] == [change.path for change in changes]
    return [outcome.error for outcome in outcomes]


async def contents(backend: BackendProtocol) -> dict[str, bytes | None]:
    entries = (await backend.alist_tree("/")).entries
    names = [entry.path for entry in entries if entry.kind == "file" and not entry.path.startswith("/.history")]
    return {item.path: item.content for item in await backend.adownload_files(names)}


# --- rules -----------------------------------------------------------------------------------------------------------


async def test_each_change_needs_the_permission_for_its_path() -> None:
    memory = stored(old=b"old", kept=b"1", hidden=b"secret")
    rules = [
        FilesystemPermission(["write"], ["/old"], "deny"),
        FilesystemPermission(["read"], ["/hidden"], "deny"),
    ]
    files = PermissionedBackend(memory, rules)
    guess = [ContentChange("/hidden", content, if_match=version(b"secret")) for content in (b"x", None)]
    for change in guess:
        assert await errors_of(files, change) == ["permission_denied"], "whether it matches would tell the content"
    assert await errors_of(files, *BATCH, whole=True) == ["conflict", "permission_denied", "conflict"]
    assert await contents(memory) == {"/old": b"old", "/kept": b"1", "/hidden": b"secret"}
    assert await errors_of(files, *BATCH) == [None, "permission_denied", None]
    assert await errors_of(files, ContentChange("/hidden", b"x", overwrite=True)) == [None], "writing needs no reading"


@pytest.fixture
def linked(tmp_path: Path) -> FilesystemBackend:
    """A disk with a file and a link to it."""
    (tmp_path / "secret").write_bytes(b"kept")
    (tmp_path / "link").symlink_to("secret")
    return FilesystemBackend(tmp_path)


async def test_rules_follow_links_to_files(linked: FilesystemBackend) -> None:
    files = PermissionedBackend(linked, [FilesystemPermission(["write"], ["/secret"], "deny")])
    denied = await errors_of(files, ContentChange("/link", b"x", overwrite=True), ContentChange("/free", b"free"))
    assert denied == ["permission_denied", None]
    assert (await linked.adownload_files(["/secret"]))[0].content == b"kept"


async def test_a_read_only_backend_refuses_every_change() -> None:
    memory = stored(old=b"old", kept=b"1")
    assert set(await errors_of(ReadOnlyBackend(memory), *BATCH)) == {"permission_denied"}
    assert await contents(memory) == {"/old": b"old", "/kept": b"1"}


# --- hooks, limits and logs ------------------------------------------------------------------------------------------


async def test_hooks_see_each_change_as_an_upload_or_a_deletion() -> None:
    before: list[tuple[str, Any, Any]] = []
    after: list[tuple[str, str, bool]] = []

    def note(call: Call) -> None:
        assert call.changes
        before.append((call.operation, call.arguments["path"], call.arguments.get("content")))

    def look(call: Call, result: Any) -> None:
        assert isinstance(result, DeleteResult) == (call.operation == "delete")
        after.append((call.operation, result.path or call.arguments["path"], result.error is None))

    files = HookedBackend(stored(old=b"old", kept=b"1"), [note], [look])
    assert await errors_of(files, *BATCH, ContentChange("/none", None)) == [None, None, None, "file_not_found"]
    assert before == [
        ("upload_files", "/new", b"\x00"),
        ("delete", "/old", None),
        ("upload_files", "/kept", b"2"),
        ("delete", "/none", None),
    ]
    assert after == [
        ("upload_files", "/new", True),
        ("delete", "/old", True),
        ("upload_files", "/kept", True),
        ("delete", "/none", False),
    ]


async def test_what_a_hook_denies_is_not_done_and_under_all_or_none_nothing_is() -> None:
    def deny(call: Call) -> None:
        if call.operation == "delete":
            raise PermissionDeniedError(call.arguments["path"])

    memory = stored(old=b"old", kept=b"1")
    files = HookedBackend(memory, [deny])
    assert await errors_of(files, *BATCH, whole=True) == ["conflict", "permission_denied", "conflict"]
    assert await contents(memory) == {"/old": b"old", "/kept": b"1"}
    assert await errors_of(files, *BATCH) == [None, "permission_denied", None]


async def test_a_hook_may_turn_the_answer_to_a_deletion_into_an_error() -> None:
    def refuse(call: Call, result: Any) -> None:
        raise PermissionDeniedError(call.arguments["path"])

    assert await errors_of(HookedBackend(stored(old=b""), after=[refuse]), ContentChange("/old", None)) == [
        "permission_denied"
    ]


async def test_each_change_counts_for_a_rate_limit() -> None:
    files = HookedBackend(stored(old=b"old", kept=b"1"), [RateLimit(2, 60, clock=lambda: 0.0)])
    assert await errors_of(files, *BATCH) == [None, None, "permission_denied"]


async def test_an_audit_record_has_the_size_of_each_change() -> None:
    records: list[AuditRecord] = []
    files = AuditedBackend(stored(old=b"old", kept=b"1"), records.append)
    await errors_of(files, *BATCH, whole=True)
    [record] = records
    assert (record.operation, record.ok, record.content_bytes) == ("change_files", True, 2)
    assert record.arguments == {
        "files": [{"path": "/new", "size": 1}, {"path": "/old", "size": None}, {"path": "/kept", "size": 1}],
        "all_or_none": True,
    }


# --- quotas ----------------------------------------------------------------------------------------------------------


async def test_a_quota_counts_what_the_changes_of_a_whole_add_together() -> None:
    memory = stored(a=b"x" * 60, b=b"x" * 30)
    quota = QuotaBackend(memory, max_bytes=100, max_files=2)
    swap = [ContentChange("/new", b"x" * 70), ContentChange("/a", None)]
    assert await errors_of(quota, *swap, whole=True) == [None, None]
    assert await quota.ausage() == (100, 2)
    more = [ContentChange("/b", b"x" * 31, overwrite=True), ContentChange("/new", b"x" * 70, overwrite=True)]
    assert await errors_of(quota, *more, whole=True) == ["quota_exceeded"] * 2
    failed = [ContentChange("/b", None), ContentChange("/new", b"")]
    assert await errors_of(quota, *failed, whole=True) == ["conflict", "already_exists"]
    assert await quota.ausage() == (100, 2) == await quota.arecount()


async def test_a_quota_refuses_the_single_changes_that_do_not_fit() -> None:
    quota = QuotaBackend(stored(a=b"x" * 60), max_bytes=100)
    changes = [ContentChange("/b", b"x" * 50), ContentChange("/c", b"x" * 30), ContentChange("/a", None)]
    assert await errors_of(quota, *changes) == ["quota_exceeded", None, None]
    assert await quota.ausage() == (30, 1) == await quota.arecount()


async def test_a_link_that_is_deleted_frees_nothing(linked: FilesystemBackend) -> None:
    quota = QuotaBackend(linked, max_bytes=100)
    assert await errors_of(quota, ContentChange("/link", None)) == [None]
    assert await quota.ausage() == (4, 1) == await quota.arecount()


# --- histories -------------------------------------------------------------------------------------------------------


async def test_a_history_logs_one_change_and_takes_it_back_as_a_whole() -> None:
    before = {"/old": b"old", "/kept": b"1"}
    files = HistoryBackend(MemoryBackend(files=before))
    with in_run("A"):
        assert await errors_of(files, *BATCH, ContentChange("/none", None)) == [None, None, None, "file_not_found"]
    [change] = await files.achanges(run="A")
    assert (change.operation, sorted(change.paths)) == ("change_files", ["/kept", "/new", "/old"])
    assert [len(await files.ahistory(path)) for path in ("/new", "/old", "/kept")] == [0, 1, 1]
    undone = await files.aundo(change=change.id)
    assert undone.conflicts == {}
    assert await contents(files) == before


async def test_a_whole_that_fails_leaves_no_version() -> None:
    files = HistoryBackend(stored(old=b"old", kept=b"1"))
    assert await errors_of(files, *BATCH, ContentChange("/none", None), whole=True) == [
        *["conflict"] * 3,
        "file_not_found",
    ]
    assert await files.achanges() == []
    assert [await files.ahistory(path) for path in ("/old", "/kept")] == [[], []]


async def test_a_file_is_deleted_though_a_quota_has_no_room_for_its_version() -> None:
    files = HistoryBackend(stored(old=b"x" * 90), QuotaBackend(MemoryBackend(), max_bytes=50))
    assert await errors_of(files, ContentChange("/old", None)) == [None]
    files = HistoryBackend(stored(old=b"x" * 90), QuotaBackend(MemoryBackend(), max_bytes=50))
    assert await errors_of(files, ContentChange("/old", b"", overwrite=True)) == ["quota_exceeded"]


# --- mounts and views ------------------------------------------------------------------------------------------------


async def test_a_composite_has_all_or_none_within_one_mount() -> None:
    memory, mounted = MemoryBackend(), stored(kept=b"1")
    files = CompositeBackend(memory, {"/m/": mounted})
    both = [ContentChange("/a", b"a"), ContentChange("/m/kept", b"2", if_match=version(b"1"))]
    assert await errors_of(files, *both, whole=True) == ["unsupported"] * 2
    within = [ContentChange("/m/new", b"\x00"), ContentChange("/m/none", None)]
    assert await errors_of(files, *within, whole=True) == ["conflict", "file_not_found"]
    assert await errors_of(files, within[0], ContentChange("/../x", b""), whole=True) == ["conflict", "invalid_path"]
    assert (await contents(memory), await contents(mounted)) == ({}, {"/kept": b"1"})
    assert await errors_of(files, *within[:1], both[1], whole=True) == [None, None]
    assert await errors_of(files, both[0], ContentChange("/m", b""), within[1]) == [
        None,
        "is_directory",
        "file_not_found",
    ]
    assert await contents(mounted) == {"/new": b"\x00", "/kept": b"2"}


async def test_a_view_of_a_tenant_changes_its_files_only(tmp_path: Path) -> None:
    shared = SqliteBackend(tmp_path / "files.db", lambda runtime: ("nobody",))
    ada, ben = shared.at("ada"), shared.at("ben")
    assert await errors_of(ada, ContentChange("/a", b"\x00"), ContentChange("/b", b"b"), whole=True) == [None, None]
    assert (await contents(ada), await contents(ben)) == ({"/a": b"\x00", "/b": b"b"}, {})


# --- overrides -------------------------------------------------------------------------------------------------------


class Refusing(WrapperBackend):
    """A layer that overrides methods by name, as programs have them."""

    async def awrite(self, path: str, content: str, **options: Any) -> WriteResult:
        raise PermissionDeniedError(path)


class RefusingMemory(MemoryBackend):
    def delete(self, path: str) -> DeleteResult:
        raise PermissionDeniedError(path)


@pytest.mark.parametrize(
    ("refuses", "expected"),
    [(Refusing, ["permission_denied", None]), (lambda memory: RefusingMemory(files=memory.to_files()), None)],
)
async def test_changes_do_not_bypass_a_method_that_a_class_overrides(
    refuses: Callable[[MemoryBackend], BackendProtocol], expected: list[str | None] | None
) -> None:
    files = refuses(stored(old=b"old"))
    changes = [ContentChange("/new", b"text"), ContentChange("/old", None)]
    assert await errors_of(files, *changes, whole=True) == ["unsupported"] * 2
    assert await errors_of(files, *changes) == (expected or [None, "permission_denied"])


# --- one transaction -------------------------------------------------------------------------------------------------


def add_trigger(file: Path) -> None:
    """Let the statement that replaces `/kept` fail."""
    with closing(sqlite3.connect(file)) as database:
        database.execute(
            "CREATE TRIGGER full BEFORE UPDATE ON files WHEN new.path = '/kept' BEGIN SELECT raise(ABORT, 'full'); END"
        )
        database.commit()


async def test_a_whole_is_one_transaction_of_the_database(tmp_path: Path) -> None:
    file = tmp_path / "files.db"
    files = SqliteBackend(file)
    await files.aupload_files([("/kept", b"1"), ("/old", b"old")])
    await to_thread.run_sync(add_trigger, file)
    assert await errors_of(files, *BATCH, whole=True) == ["backend_error"] * 3
    assert await contents(files) == {"/kept": b"1", "/old": b"old"}
