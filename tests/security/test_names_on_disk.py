"""Names that are in no path, link cycles and odd times blind no directory, and nothing with such a name is lost."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from anyio.to_thread import run_sync as in_thread

from deepfs.backends.composite import CompositeBackend
from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.wrapper import WrapperBackend
from deepfs.middleware.tools import FileOperations
from deepfs.policy.history import HistoryBackend
from deepfs.policy.permissions import FilesystemPermission, PermissionedBackend
from deepfs.types import LsResult

pytestmark = pytest.mark.anyio

SHOWN = ["..\\x", "C:", "C:d/", "\\x", "new\nline", "plain", "sep\u2028", "z\x1b[0m", "~t"]
NOT_UTF8 = [b"\xff", b"\xfed/"]


def make(root: Path) -> None:
    (root / "t").mkdir()
    for name in [*map(os.fsencode, SHOWN), *NOT_UTF8]:
        place = os.fsencode(root / "t") + b"/" + name
        if name.endswith(b"/"):
            os.mkdir(place)
            place += b"file"
        with open(place, "w") as file:
            file.write("needle")


class Listing(WrapperBackend):
    """A layer whose trees are made of its listings."""

    async def als(self, path: str) -> LsResult:
        return await super().als(path)


RULES = [FilesystemPermission(["read", "write"], ["/denied/**"], "deny")]

LAYERS: dict[str, Callable[[Path], tuple[BackendProtocol, str]]] = {
    "disk": lambda root: (FilesystemBackend(root), "/t"),
    "unconfined": lambda root: (FilesystemBackend(root, virtual_mode=False), f"{root}/t"),
    "mounted": lambda root: (CompositeBackend(MemoryBackend(), {"/m": FilesystemBackend(root)}), "/m/t"),
    "all": lambda root: (
        PermissionedBackend(
            HistoryBackend(
                CompositeBackend(MemoryBackend(), {"/m": Listing(FilesystemBackend(root))}), MemoryBackend()
            ),
            RULES,
        ),
        "/m/t",
    ),
}
layers = pytest.mark.parametrize("layer", LAYERS)


@layers
async def test_odd_names_are_listed_or_counted(tmp_path: Path, layer: str) -> None:
    await in_thread(make, tmp_path)
    backend, at = LAYERS[layer](tmp_path)
    listed = await backend.als(at)
    assert [entry.path for entry in listed.entries or ()] == [f"{at}/{name}" for name in sorted(SHOWN)]
    assert (listed.ok, listed.skipped) == (True, len(NOT_UTF8))
    found = await backend.agrep("needle", at, "**")
    assert {match.path for match in found.matches or ()} >= {f"{at}/plain", f"{at}/C:", f"{at}/C:d/file"}
    assert "2 names are no text (UTF-8) and are not shown" in (await FileOperations(backend).ls(at, 0, 100)).content


@layers
async def test_a_tree_with_odd_names_is_moved_whole_or_not_at_all(tmp_path: Path, layer: str) -> None:
    await in_thread(make, tmp_path)
    backend, at = LAYERS[layer](tmp_path)
    before = await in_thread(lambda: sorted(os.listdir(os.fsencode(tmp_path / "t"))))
    beside = at.removesuffix("t") + "moved"
    assert (await backend.acopy(at, at.removesuffix("t") + "copied")).ok
    assert await in_thread(lambda: sorted(os.listdir(os.fsencode(tmp_path / "copied")))) == before
    moved = await backend.amove(at, beside)
    there = tmp_path / ("moved" if moved.ok else "t")
    assert await in_thread(lambda: sorted(os.listdir(os.fsencode(there)))) == before
    elsewhere = CompositeBackend(MemoryBackend(), {"/elsewhere": backend})
    for transfer in (elsewhere.amove, elsewhere.acopy):
        refused = await transfer(f"/elsewhere{beside if moved.ok else at}", "/taken")
        assert refused.code == "invalid_path"
    assert await in_thread(lambda: sorted(os.listdir(os.fsencode(there)))) == before


async def test_a_layer_without_odd_names_in_its_listing_does_not_lose_them(tmp_path: Path) -> None:
    await in_thread((tmp_path / "t").mkdir)
    await in_thread(lambda: open(os.fsencode(tmp_path) + b"/t/\xff", "w").close())
    both = CompositeBackend(MemoryBackend(), {"/m": Listing(FilesystemBackend(tmp_path))})
    assert (await both.amove("/m/t", "/taken")).code == "invalid_path"
    history = HistoryBackend(Listing(FilesystemBackend(tmp_path)), MemoryBackend())
    assert (await history.adelete("/t")).code == "invalid_path"
    assert await in_thread(lambda: os.listdir(os.fsencode(tmp_path / "t"))) == [b"\xff"]


@pytest.mark.parametrize("rule", ["/**/secret", "/t/*/secret"])
async def test_rules_reach_beneath_odd_names(tmp_path: Path, rule: str) -> None:
    for name in (b"\xff", b"C:"):
        place = os.fsencode(tmp_path) + b"/t/" + name
        await in_thread(os.makedirs, place)
        await in_thread(lambda place=place: open(place + b"/secret", "w").close())
        backend = PermissionedBackend(
            FilesystemBackend(tmp_path), [FilesystemPermission(["read", "write"], [rule], "deny")]
        )
        for result in (await backend.adelete("/t"), await backend.amove("/t", "/u"), await backend.acopy("/t", "/u")):
            assert result.code == "permission_denied"
        assert await in_thread(os.path.exists, place + b"/secret")
        await in_thread(os.remove, place + b"/secret")
        await in_thread(os.rmdir, place)


@pytest.mark.parametrize("seconds", [253_402_300_800, -62_135_596_801, 2**62])
async def test_times_of_any_value(tmp_path: Path, seconds: int) -> None:
    def made() -> None:
        (tmp_path / "file").write_text("needle")
        os.utime(tmp_path / "file", (seconds, seconds))

    await in_thread(made)
    backend = FilesystemBackend(tmp_path)
    results: list[Any] = [
        await backend.als("/"),
        await backend.aglob("**"),
        await backend.agrep("needle"),
        await backend.aread("/file"),
        await backend.aread_raw("/file"),
    ]
    assert [result.error for result in results] == [None] * 5
    assert (await backend.awrite("/file", "x", overwrite=True)).ok
