"""Reprs tell which storage a backend has and what a result says, without secrets and without long contents."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import msgspec
from langgraph.store.memory import InMemoryStore

from deepfs import (
    BackendProtocol,
    CompositeBackend,
    FilesystemBackend,
    FilesystemPermission,
    FsspecBackend,
    MemoryBackend,
    PermissionedBackend,
    PostgresBackend,
    S3Backend,
    SqliteBackend,
    StateBackend,
    StoreBackend,
)
from deepfs._brief import address, brief
from deepfs.errors import NotFoundError
from deepfs.policy import AuditedBackend, HistoryBackend, RateLimit, ReadOnlyBackend
from deepfs.policy.hooks import Call
from deepfs.sandboxes import AllowedHosts, BubblewrapSandbox
from deepfs.types import (
    ExecuteResponse,
    FileDataV2,
    FileDownloadResponse,
    FileInfo,
    GrepMatch,
    GrepResult,
    LsResult,
    ReadResult,
    failure,
)

SECRET = "s3cr3t"
MEGABYTES = "x" * 10_000_000


def namespace_of_tests(runtime: object) -> tuple[str, ...]:
    return ("tests",)


BACKENDS: list[tuple[Callable[[], object], str]] = [
    (lambda: FilesystemBackend("/srv/files"), "FilesystemBackend('/srv/files', virtual_mode=True)"),
    (lambda: SqliteBackend("files.db", namespace_of_tests), "SqliteBackend('files.db', namespace_of_tests)"),
    (StateBackend, "StateBackend(file_format='v2')"),
    (
        lambda: StoreBackend(InMemoryStore(), namespace=("ada",)),
        "StoreBackend(store=InMemoryStore, namespace=('ada',))",
    ),
    (
        lambda: PostgresBackend(f"postgresql://ada:{SECRET}@db:5432/files?passfile={SECRET}", "ada"),
        "PostgresBackend('postgresql://db:5432/files', 'ada')",
    ),
    (
        lambda: S3Backend("bucket", "a/b", region="eu-west-1", access_key_id="id", secret_access_key=SECRET),
        "S3Backend('s3://bucket/a/b')",
    ),
    (lambda: FsspecBackend("memory://a", "/b", token=SECRET), "FsspecBackend('memory://a', root='/b')"),
    (lambda: FsspecBackend(fsspec.filesystem("memory")), "FsspecBackend('memory://', root='/')"),
    (
        lambda: ReadOnlyBackend(AuditedBackend(FilesystemBackend("/a"), print)),
        "ReadOnlyBackend(AuditedBackend(FilesystemBackend('/a', virtual_mode=True)))",
    ),
    (
        lambda: HistoryBackend(FilesystemBackend("/a")),
        "HistoryBackend(FilesystemBackend('/a', virtual_mode=True), directory='/.history')",
    ),
    (
        lambda: PermissionedBackend(StateBackend(), [FilesystemPermission(["write"], ["/a/**"], "deny")]),
        "PermissionedBackend(StateBackend(file_format='v2'), "
        "(FilesystemPermission(operations=['write'], paths=['/a/**'], mode='deny'),))",
    ),
    (
        lambda: CompositeBackend(StateBackend(), {"/src/": FilesystemBackend("/a")}),
        "CompositeBackend(StateBackend(file_format='v2'), {'/src/': FilesystemBackend('/a', virtual_mode=True)})",
    ),
    (lambda: RateLimit(3, 60, ["read"]), "RateLimit(3, 60, operations=['read'])"),
    (lambda: AllowedHosts(["example.org"]), "AllowedHosts(['example.org'])"),
]


def test_a_repr_tells_which_storage_it_is(tmp_path: Path) -> None:
    for make, expected in BACKENDS:
        made = make()
        assert repr(made) == str(made) == expected
    sandbox = BubblewrapSandbox(tmp_path, env={"TOKEN": SECRET})
    assert repr(sandbox) == f"BubblewrapSandbox('{tmp_path}', virtual_mode=True)"


def test_files_in_memory_are_counted() -> None:
    files = MemoryBackend(files={"/a": MEGABYTES})
    assert repr(files).startswith("<MemoryBackend with 1 file at 0x")
    files.write("/b", "x")
    assert repr(files).startswith("<MemoryBackend with 2 files at 0x")
    assert repr(files) != repr(MemoryBackend(files={"/a": "", "/b": ""}))


def test_addresses_show_no_secret() -> None:
    for url in (
        f"postgresql://ada:{SECRET}@db/files",
        f"postgresql://ada:{SECRET}/x@db/files",
        f"postgresql://ada:?{SECRET}@db/files",
        f"postgresql://ada:#{SECRET}@db/files",
        f"postgresql://ada:a@{SECRET}/x@db/files",
        f"postgresql://db/files?password=a@{SECRET}",
        f"postgresql://db/files?password={SECRET}",
        f"zip://a@b/c::sftp://ada:{SECRET}@host/a.zip",
        f"abfs://files/a?sig={SECRET}#x",
    ):
        assert SECRET not in address(url)
        assert address(url).startswith(url.partition("://")[0])


RESULTS: list[Any] = [
    GrepResult(matches=[GrepMatch(f"/{number}", 1, "x" * 5000) for number in range(10_000)]),
    ReadResult(file_data=FileDataV2(MEGABYTES)),
    FileDownloadResponse("/a", MEGABYTES.encode()),
    ExecuteResponse(MEGABYTES, 0),
    Call("write", {"path": "/a", "content": MEGABYTES}),
]


def test_long_results_are_cut_in_reprs_only() -> None:
    for result in RESULTS:
        assert len(repr(result)) < 5000
        assert " more" in repr(result)
        same = pickle.loads(pickle.dumps(result))
        assert same == result
        assert msgspec.to_builtins(same) == msgspec.to_builtins(result)


def test_a_repr_shows_the_fields_that_are_set() -> None:
    assert repr(FileInfo("/a", False, 0)) == "FileInfo(path='/a', is_dir=False, size=0)"
    assert repr(GrepResult(matches=[])) == "GrepResult(matches=[])"
    assert repr(ReadResult(file_data=FileDataV2("a"), start_line=1)) == (
        "ReadResult(file_data=FileDataV2(content='a', encoding='utf-8'), start_line=1)"
    )
    failed = repr(failure(LsResult, NotFoundError("/a")))
    assert failed == "LsResult(error=\"Error: File '/a' not found\", code=<ErrorCode.FILE_NOT_FOUND: 'file_not_found'>)"


def test_what_is_cut_is_told() -> None:
    assert brief("x" * 201) == f"'{'x' * 200}'… 1 more"
    assert brief("x" * 200) == f"'{'x' * 200}'"
    assert brief((1,)) == "(1,)"
    assert brief(list(range(7))) == "[0, 1, 2, 3, 4, … 2 more]"
    nested: list[Any] = []
    nested.append(nested)
    assert brief(nested) == "[[[[[[[…]]]]]]]"
    routes = {f"/{number:03}/": FilesystemBackend("/a") for number in range(100)}
    assert repr(CompositeBackend(StateBackend(), routes)).endswith(", … 95 more})")


def test_a_backend_of_someone_else_has_the_usual_repr() -> None:
    class Unfinished(FilesystemBackend):
        def __init__(self) -> None:
            assert "Unfinished object at 0x" in repr(self)
            super().__init__("/a")

    class Own(BackendProtocol):
        """Has no storage that it tells of."""

    assert repr(Unfinished()) == "Unfinished('/a', virtual_mode=True)"
    assert "Own object at 0x" in repr(Own())


def test_options_of_fsspec_with_equal_reprs_name_different_storages() -> None:
    one, other = (FsspecBackend("ftp://host/a", token=ReadOnlyBackend(StateBackend())) for _ in range(2))
    assert one._scope() != other._scope()
    assert FsspecBackend("ftp://host/a", token="t")._scope() == FsspecBackend("ftp://host/a", token="t")._scope()
