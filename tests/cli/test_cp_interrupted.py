"""Copies that are interrupted, that go wrong, and that are made while files change."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterable
from hashlib import sha256
from pathlib import Path

import pytest

from deepfs import MemoryBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.transfer import CopyTotals
from deepfs.backends.wrapper import WrapperBackend
from deepfs.cli.copying import CopyOptions, TreeMerge
from deepfs.cli.session import AddressedPlace, Session
from deepfs.config.urls import Address
from deepfs.types import FileDownloadResponse, FileUploadResponse
from support.copies import command, contents, fill

pytestmark = pytest.mark.both_loops

# --- processes that are killed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "number"),
    [("disk", signal.SIGINT), ("sqlite", signal.SIGTERM), ("disk", signal.SIGKILL), ("sqlite", signal.SIGKILL)],
)
def test_an_interrupted_copy_goes_on(
    kind: str, number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    source, target = _sizeable_tree(tmp_path), tmp_path / "copies"
    target.mkdir()
    place = f"file://{target}#/new" if kind == "disk" else f"sqlite:///{tmp_path}/x.db#/new"
    status, told = _interrupted(source, place, number, target if kind == "disk" else tmp_path / "x.db")
    copied, expected = _copied(kind, place, tmp_path / "partly"), _digests(source)
    interrupted = "interrupted. Run the same command again to go on" in told
    if interrupted:
        assert status == 128 + number
        assert "file" in told.splitlines()[-1]
    elif number != signal.SIGKILL:  # The signal came when the copy was made, perhaps while the interpreter ended.
        assert copied == expected
    assert copied.items() <= expected.items(), "only whole files"
    if interrupted and kind == "disk":
        assert contents(target).keys() <= {f"new/{name}" for name in expected}, "no temporary files"
    # The very same command: the target, which now exists, is still the copy and not the directory above it. A process
    # that was killed after its copy was whole leaves a directory like any other.
    if copied != expected:
        assert command("cp", "-r", source, place).status == 0
    assert _copied(kind, place, tmp_path / "whole") == expected


def _sizeable_tree(tmp_path: Path) -> Path:
    chosen = random.Random(0)
    files = {f"{n % 20:02}/{n:04}": chosen.randbytes(chosen.randrange(20_000)) for n in range(800)}
    return fill(tmp_path / "src", {**files, "large": chosen.randbytes(20_000_000)})


def _interrupted(source: Path, place: str, number: signal.Signals, appears: Path) -> tuple[int, str]:
    """Run a copy, and send it a signal at some time after it has begun to store."""
    options = [sys.executable, "-m", "deepfs", "cp", "-r", str(source), place]
    with subprocess.Popen(options, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 30
        while process.poll() is None and not _has_begun(appears) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(random.uniform(0, 0.25))
        process.send_signal(number)
        _, told = process.communicate(timeout=60)
    return process.returncode, told


def _has_begun(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists() and path.stat().st_size > 0


def _copied(kind: str, place: str, directory: Path) -> dict[str, str]:
    """The digests of the files at a place; they are brought to disk to be read."""
    directory.mkdir()
    if command("ls", place).status == 0:
        assert command("cp", "-rT", "--verify=none", place, f"file://{directory}#/").status == 0
    return _digests(directory)


def _digests(directory: Path) -> dict[str, str]:
    return {name: sha256(content).hexdigest() for name, content in contents(directory).items()}


# --- storages that fail ----------------------------------------------------------------------------------------------


class _Truncating(WrapperBackend):
    """Loses the last byte of what it stores at some paths, and says nothing of it."""

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return await self.inner.aupload_files([(path, self._kept(path, content)) for path, content in files])

    async def aupload_stream(self, path: str, chunks: AsyncIterable[bytes]) -> FileUploadResponse:
        content = b"".join([chunk async for chunk in chunks])
        return await self.inner.aupload_stream(path, _stream(self._kept(path, content)))

    def _kept(self, path: str, content: bytes) -> bytes:
        return content[:-1] if "bad" in path else content


async def _stream(content: bytes) -> AsyncIterable[bytes]:
    yield content


class _Changing(WrapperBackend):
    """Its file `/src/a` changes right after it was read."""

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        got = await self.inner.adownload_files(paths)
        await self.inner.aupload_files([("/src/a", b"changed")])
        return got


@pytest.fixture
def session() -> Session:
    return Session(name="cp")


async def _copy(session: Session, source: BackendProtocol, target: BackendProtocol, **options: object) -> CopyTotals:
    totals = CopyTotals()
    ends = [AddressedPlace(backend, "/src", Address("memory://", "/src", "/src")) for backend in (source, target)]
    chosen = CopyOptions(sources=["/src"], target="/src", **options)  # type: ignore[arg-type]
    await TreeMerge(session, chosen, totals, *ends).run(await source.alist_tree("/src"), "/src")
    return totals


async def _filled(files: dict[str, bytes]) -> MemoryBackend:
    backend = MemoryBackend()
    await backend.aupload_files([(f"/src/{name}", content) for name, content in files.items()])
    return backend


@pytest.mark.anyio
@pytest.mark.parametrize("verify", ["read", "size"])
async def test_what_was_not_stored_as_it_is_counts_as_failed(
    verify: str, session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    source = await _filled({"good": b"good", "bad": b"bad", "bad-large": bytes(9_000_000)})
    target = MemoryBackend()
    totals = await _copy(session, source, _Truncating(target), verify=verify, moves=True)
    assert (totals.files, totals.bytes, totals.failed, session.status) == (1, len(b"good"), 2, 1)
    assert totals.passed_bytes == totals.planned_bytes > 0
    assert capsys.readouterr().err.count("what was stored at") == 2
    # A move keeps what did not arrive.
    assert [entry.path for entry in (await source.als("/src")).entries or ()] == ["/src/bad", "/src/bad-large"]
    # Once the storage works, the next copy puts it right.
    totals = await _copy(session, source, target)
    assert (totals.files, totals.skipped) == (2, 0)
    assert (await target.adownload_files(["/src/bad"]))[0].content == b"bad"


@pytest.mark.anyio
async def test_a_move_keeps_what_changed_meanwhile(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    source = await _filled({"a": b"before", "b": b"B"})
    target = MemoryBackend()
    await _copy(session, _Changing(source), target, moves=True)
    assert session.status == 1
    assert "cannot move '/src/a': it was copied but not deleted" in capsys.readouterr().err
    assert (await source.adownload_files(["/src/a"]))[0].content == b"changed"
    assert [entry.path for entry in (await source.als("/src")).entries or ()] == ["/src/a"]
    assert (await target.adownload_files(["/src/a"]))[0].content == b"before"
