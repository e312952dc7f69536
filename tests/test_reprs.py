"""Reprs tell which storage a backend has and what a result says, without secrets and without long contents."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from deepfs import (
    BackendProtocol,
    FilesystemBackend,
    FsspecBackend,
    PostgresBackend,
    S3Backend,
    StateBackend,
)
from deepfs._brief import address
from deepfs.policy import AuditedBackend, ReadOnlyBackend
from deepfs.policy.hooks import Call
from deepfs.sandboxes import BubblewrapSandbox
from deepfs.types import (
    ExecuteResponse,
    FileDataV2,
    FileDownloadResponse,
    GrepMatch,
    GrepResult,
    ReadResult,
)

SECRET = "s3cr3t"
MEGABYTES = "x" * 10_000_000


BACKENDS: list[tuple[Callable[[], object], str]] = [
    (lambda: FilesystemBackend("/srv/files"), "FilesystemBackend('/srv/files', virtual_mode=True)"),
    (
        lambda: PostgresBackend(f"postgresql://ada:{SECRET}@db:5432/files?passfile={SECRET}", "ada"),
        "PostgresBackend('postgresql://db:5432/files', 'ada')",
    ),
    (
        lambda: S3Backend("bucket", "a/b", region="eu-west-1", access_key_id="id", secret_access_key=SECRET),
        "S3Backend('s3://bucket/a/b')",
    ),
    (lambda: FsspecBackend("memory://a", "/b", token=SECRET), "FsspecBackend('memory://a', root='/b')"),
    (
        lambda: ReadOnlyBackend(AuditedBackend(FilesystemBackend("/a"), print)),
        "ReadOnlyBackend(AuditedBackend(FilesystemBackend('/a', virtual_mode=True)))",
    ),
]


def test_a_repr_tells_which_storage_it_is(tmp_path: Path) -> None:
    for make, expected in BACKENDS:
        made = make()
        assert repr(made) == str(made) == expected
    sandbox = BubblewrapSandbox(tmp_path, env={"TOKEN": SECRET})
    assert repr(sandbox) == f"BubblewrapSandbox('{tmp_path}', virtual_mode=True)"


def test_addresses_show_no_secret() -> None:
    for url in (
        f"postgresql://ada:{SECRET}@db/files", f"postgresql://ada:{SECRET}/x@db/files",
        f"postgresql://ada:?{SECRET}@db/files", f"postgresql://ada:#{SECRET}@db/files",
        f"postgresql://ada:a@{SECRET}/x@db/files", f"postgresql://db/files?password=a@{SECRET}",
        f"postgresql://db/files?password={SECRET}", f"zip://a@b/c::sftp://ada:{SECRET}@host/a.zip",
        f"abfs://files/a?sig={SECRET}#x",
    ):  # fmt: skip
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
