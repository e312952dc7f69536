"""Trees of mounts for random programs, with direct views of all storage: tokens in the contents identify the data.

Each write and edit adds a unique token, so that a loss can be named. A world has symlinks, hard links, names that are
not valid in paths, directories hidden by rules, and storage that is mounted twice.
"""

import os
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any, Final

import anyio
import anyio.to_thread
from langgraph.store.memory import InMemoryStore
from msgspec import Struct
from msgspec.structs import replace

from deepfs.backends.composite import CompositeBackend
from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.store import StoreBackend
from deepfs.policy import FilesystemPermission, PermissionedBackend
from deepfs.text import paths
from support.files import content_of
from support.raw import raw_bytes

__all__ = ["Act", "World", "acts"]

_TOKEN: Final = re.compile(rb"<\d+>")
_PLACES: Final = ("/a", "/a/b", "/a/b/c", "/d", "/d/e", "/d/.dot/x", "/d/secret/k", "/secret/k", "/locked/l", "/e.txt")
_SEEDED: Final = ("/a/b/c", "/d/e", "/d/.dot/x", "/e.txt", "/f", "/g/h")
_MOUNTS: Final = ("", "", "/sub", "/shared", "/mem", "/mem2", "/store", "/store2", "/ruled", "/hidden")
_BY_LENGTH: Final = sorted(_MOUNTS, key=len, reverse=True)
_PATHS: Final = sorted({mount + place for mount in _MOUNTS for place in (*_PLACES, *_SEEDED, "/g", "/d/.dot")})
_DIRECTORIES: Final = (
    *("ws", "ws/a", "ws/d", "ws/sub", "ws/sub/a", "ws/sub/d"),
    *("ruled", "ruled/a", "ruled/d", "ruled/d/secret", "ruled/secret", "out"),
)
_ODD: Final = (b"caf\xe9", b"C:", b"..\\x", b".dot", b"plain", b"\xff\xfe.png")
_LINKS: Final = (b"a", b"d", b"e.txt", b"loop", b"f", b"b")
_TARGETS: Final = (".", "..", "a", "d", "../a", "../d", "e.txt", "../e.txt", "sub", "../sub", "nothing", "loop", "/")
_KINDS: Final = (*["write"] * 4, *["move"] * 8, *["copy"] * 4, *["raw"] * 2, *["link"] * 2, "delete", "twin", "empty")


_EXISTING: Final = "?"
"""Stands for the path of an existing file or directory, chosen by the number of the act."""
_SAME_NAME: Final = "/="
"""Stands for the name of the source."""


class Act(Struct, frozen=True):
    """An event in a world: an operation of the tree, or a direct change; `writers` write during a move or copy."""

    kind: str
    path: str
    other: str = ""
    overwrite: bool = False
    writers: tuple[str, ...] = ()
    number: int = 0


def acts(random: Random, count: int) -> list[Act]:
    """A random program of `count` acts."""
    return [_act(random) for _ in range(count)]


def _act(random: Random) -> Act:
    kind = random.choice(_KINDS)
    path, other = (random.choice(_MOUNTS) + random.choice(_PLACES) for _ in range(2))
    if kind in ("move", "copy"):
        chance = random.random()
        if chance < 0.2:
            other = _EXISTING
        elif chance < 0.45:
            other = random.choice(_MOUNTS) + _SAME_NAME
        path = path if random.random() < 0.1 else _EXISTING
        writers = tuple(random.choice(["edit", "create"]) for _ in range(random.choice([0, 0, 1, 3])))
        return Act(kind, path, other, random.random() < 0.6, writers, random.randrange(1000))
    if kind in ("write", "delete"):
        return Act(kind, path, overwrite=random.random() < 0.5)
    directory = random.choice(_DIRECTORIES)
    name = os.fsdecode(random.choice(_ODD if kind == "raw" else _LINKS))
    twin = f"{random.choice(_DIRECTORIES)}/{random.choice(('e.txt', 'f', 'plain'))}"
    return Act(kind, f"{directory}/{name}", random.choice(_TARGETS) if kind == "link" else twin)


def _rules(backend: BackendProtocol, prefix: str = "") -> BackendProtocol:
    hidden = FilesystemPermission(["read"], [f"{prefix}/secret/**", f"{prefix}/d/secret/**"], "deny")
    locked = FilesystemPermission(["write"], [f"{prefix}/locked/**"], "deny")
    return PermissionedBackend(backend, [hidden, locked])


class World:
    """A new tree with all its storage."""

    def __init__(self, root: Path, *, is_ruled: bool) -> None:
        self.root = root
        for directory in _DIRECTORIES:
            (root / directory).mkdir(parents=True)
        self._number = 0
        self.memory, self.hidden, self.store = MemoryBackend(), MemoryBackend(), InMemoryStore()
        (root / "out" / "f").write_bytes(self.content())
        stores = [StoreBackend(self.store, namespace=("n",)) for _ in range(2)]
        routes: dict[str, BackendProtocol] = {
            "/shared": FilesystemBackend(root / "ws" / "sub"),
            "/mem": self.memory,
            "/mem2": self.memory,
            "/store": stores[0],
            "/store2": stores[1],
            "/ruled": _rules(FilesystemBackend(root / "ruled")),
            "/hidden": _rules(self.hidden),
        }
        self._routes = sorted(routes, key=len, reverse=True)
        tree = CompositeBackend(FilesystemBackend(root / "ws"), routes)
        self.tree = _rules(tree) if is_ruled else tree

    async def fill(self) -> None:
        """Put files into every mount."""
        mounts = dict.fromkeys(mount for mount in _MOUNTS if mount not in ("/shared", "/mem2", "/store2"))
        files = [(mount + place, self.content()) for mount in mounts for place in _SEEDED]
        outcomes = await self.tree.aupload_files(files)
        assert all(outcome.error is None for outcome in outcomes), outcomes

    def content(self) -> bytes:
        """The content of a new file."""
        self._number += 1
        return b"<%d> END\n" % self._number

    # --- direct access to the storage ---

    def _stored(self) -> Iterator[tuple[str, bytes]]:
        """Every file of every storage, by a name that does not depend on links and mounts."""
        for above, _, names in os.walk(self.root):
            for name in names:
                path = os.path.join(above, name)
                if os.path.isfile(path) and not os.path.islink(path):
                    with open(path, "rb") as file:
                        yield path, file.read()
        for prefix, memory in (("memory", self.memory), ("hidden", self.hidden)):
            yield from ((prefix + path, raw_bytes(data) or b"") for path, data in memory._files.items())
        for item in self.store.search(("n",), limit=10_000):
            yield "store" + item.key, content_of(item.value) or b""

    def tokens(self, place: str = "") -> set[bytes]:
        """The tokens of all files, or of the files at and beneath `place`."""
        return {
            token
            for name, content in self._stored()
            if not place or name == place or name.startswith(f"{place}/")
            for token in _TOKEN.findall(content)
        }

    def place(self, path: str, *, follow: bool = True) -> str:
        """The name that `tokens` uses for `path` of the tree; if `follow` is false, a symlink itself is named."""
        mount = next((mount for mount in self._routes if path == mount or path.startswith(f"{mount}/")), "")
        inner = path[len(mount) :]
        kinds = {"/mem": "memory", "/mem2": "memory", "/hidden": "hidden", "/store": "store", "/store2": "store"}
        if mount in kinds:
            return kinds[mount] + inner
        host = {"/shared": "ws/sub", "/ruled": "ruled"}.get(mount, "ws")
        full = f"{self.root}/{host}{inner}"
        return (
            os.path.realpath(full)
            if follow
            else os.path.join(os.path.realpath(os.path.dirname(full)), os.path.basename(full))
        )

    def _past(self, act: Act) -> None:
        """Change the storage without a backend."""
        path, target = self.root / act.path, act.other
        with suppress(OSError):
            if act.kind == "raw":
                path.write_bytes(self.content()) if not os.path.lexists(path) else None
            elif act.kind == "empty":
                path.mkdir()
            elif act.kind == "twin":
                path.hardlink_to(self.root / target)
            else:
                path.symlink_to(f"{self.root}/ws/a" if target == "/" else target)

    # --- acting ---

    async def do(self, act: Act) -> str | None:
        """Carry out an act; returns a description of what it should not have lost, or None."""
        act = await anyio.to_thread.run_sync(self.concrete, act)
        look = partial(anyio.to_thread.run_sync, self._look, act)
        before, replaced, carried = await look()
        written: list[bytes] = []
        result = await self._carried_out(act, written)
        after = await anyio.to_thread.run_sync(self.tokens)
        is_done = result is not None and result.ok
        allowed = replaced if is_done or (act.overwrite and act.kind == "move") or act.kind == "copy" else set()
        if lost := (before | set(written)) - after - allowed:
            return f"{sorted(lost)} lost, {act!r} said {result!r}"
        if is_done and act.kind in ("move", "copy"):
            there = await anyio.to_thread.run_sync(self._visible_at, act.other)
            if missing := carried - there:
                return f"{sorted(missing)} did not arrive, {act!r} said {result!r}"
        return None

    def concrete(self, act: Act) -> Act:
        """The act, with placeholders replaced by paths that exist now."""
        if act.kind not in ("move", "copy"):
            return act
        path, other = self._picked(act.path, act.number), self._picked(act.other, act.number // 7)
        mount = next(mount for mount in _BY_LENGTH if path.startswith(mount))
        return replace(act, path=path, other=other.replace(_SAME_NAME, path.removeprefix(mount)))

    def _picked(self, path: str, number: int) -> str:
        if path != _EXISTING:
            return path
        names = {name for name, _ in self._stored()}
        above = {up for name in names for up in accumulate(name.split("/"), "{}/{}".format)}
        existing = [path for path in _PATHS if self.place(path) in above]
        return existing[number % len(existing)] if existing else "/none"

    def _look(self, act: Act) -> tuple[set[bytes], set[bytes], set[bytes]]:
        """All tokens before an act, the tokens that it may replace, and the tokens that it must carry over."""
        if act.kind in ("move", "copy"):
            source = self.tokens(self.place(act.path, follow=False))
            is_one = self.place(act.path) == self.place(act.other)
            replaced = self.tokens(self.place(act.other)) if act.overwrite and not is_one else set()
            return self.tokens(), replaced, source
        if act.kind == "delete":
            return self.tokens(), self.tokens(self.place(act.path, follow=False)), set()
        replaced = self.tokens(self.place(act.path)) if act.kind == "write" and act.overwrite else set()
        return self.tokens(), replaced, set()

    def _visible_at(self, path: str) -> set[bytes]:
        return self.tokens(self.place(path)) | self.tokens(self.place(path, follow=False))

    async def _carried_out(self, act: Act, written: list[bytes]) -> Any:
        if act.kind not in ("write", "delete", "move", "copy"):
            await anyio.to_thread.run_sync(self._past, act)
            return None
        if act.kind == "write":
            content = self.content()
            result = await self.tree.awrite(act.path, content.decode(), overwrite=act.overwrite)
            written += _TOKEN.findall(content) if result.ok else []
            return result
        if act.kind == "delete":
            return await self.tree.adelete(act.path)
        relocate = self.tree.amove if act.kind == "move" else self.tree.acopy
        return await self._beside(act, partial(relocate, act.path, act.other, overwrite=act.overwrite), written)

    async def _beside(self, act: Act, relocate: Callable[[], Awaitable[Any]], written: list[bytes]) -> Any:
        """Move or copy, while others write at and beneath the source, but not at the destination."""
        results: list[Any] = []
        chosen = await self._chosen(act) if act.writers else []

        async def relocated() -> None:
            results.append(await relocate())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(relocated)
            for number, writer in enumerate(act.writers):
                tasks.start_soon(self._write, writer, chosen[number % len(chosen)], number, written)
        return results[0]

    async def _chosen(self, act: Act) -> list[str]:
        """The files beneath the source that the act does not replace; or else a path for a new file."""
        listed = await self.tree.als(act.path)
        files = [entry.path for entry in listed.entries or () if not entry.is_dir] or [act.path]
        there = await anyio.to_thread.run_sync(self.place, act.other)
        places = [(file, await anyio.to_thread.run_sync(self.place, file)) for file in files]
        return [file for file, place in places if f"{place}/".startswith(f"{there}/") is False] or ["/mem/spare"]

    async def _write(self, writer: str, file: str, number: int, written: list[bytes]) -> None:
        await anyio.sleep(0.0005 * number)
        content = self.content()
        if writer == "edit":
            token = content.partition(b" ")[0]
            result: Any = await self.tree.aedit(file, "END", f"{token.decode()} END")
        else:
            result = await self.tree.awrite(
                f"{paths.parent(file)}/new-{self._number}".replace("//", "/"), content.decode()
            )
        if result.ok:
            written += _TOKEN.findall(content)[:1]
