"""Skills of an agent: loading 500 of them from a store, and copying their files to where commands run."""

from collections.abc import Callable, Collection, Hashable
from itertools import count
from pathlib import Path
from typing import Any, Final

import anyio
from deepagents.backends import StoreBackend as PeerBackend
from deepagents.middleware.skills import SkillsMiddleware as PeerSkills
from langgraph.store.base import PutOp

from benchmarks import inputs, stores
from benchmarks.bench import Bench
from benchmarks.harness import Contender
from deepfs.backends import BackendProtocol, CompositeBackend, LocalShellBackend, MemoryBackend, SqliteBackend
from deepfs.backends.store import StoreBackend
from deepfs.backends.wrapper import WrapperBackend
from deepfs.middleware.skills import SkillsMiddleware
from deepfs.operations import Operation

TITLE: Final = "Skills"

_SKILLS: Final = 500
_FILES: Final = 200
_SECONDS: Final = 0.05
_NAMESPACE: Final = ("assistant", "skills")
_STAMP: Final = "2026-01-01T00:00:00+00:00"
_SOURCE: Final = "/skills"
_TEXT: Final = (
    "---\nname: {name}\ndescription: Use it for task {number}, and for others like it.\nlicense: MIT\n---\n\n"
    "# {name}\n\n" + "Do one thing after another.\n" * 40
)


async def measure(bench: Bench) -> None:
    """Race the loading of skills by a new thread, and count what a changed file costs."""
    await _load(bench)
    await _copy(bench)


# --- loading ---------------------------------------------------------------------------------------------------------


def _texts() -> dict[str, str]:
    names = [f"task-{number:03}" for number in range(_SKILLS)]
    return {f"{_SOURCE}/{name}/SKILL.md": _TEXT.format(name=name, number=at) for at, name in enumerate(names)}


async def _load(bench: Bench) -> None:
    texts = _texts()
    with inputs.scratch() as directory:
        async with stores.STORES["AsyncSqliteStore"]() as (store, _), SqliteBackend(directory / "files.db") as database:
            data = {"encoding": "utf-8", "created_at": _STAMP, "modified_at": _STAMP}
            await store.abatch([PutOp(_NAMESPACE, path, {"content": text, **data}) for path, text in texts.items()])
            await database.aupload_files([(path, text.encode()) for path, text in texts.items()])
            await anyio.sleep(0.1)  # What just changed is read again.
            peer = PeerSkills(backend=PeerBackend(store=store, namespace=lambda _: _NAMESPACE), sources=[_SOURCE])
            race = await bench.race(
                f"{_SKILLS} skills, a new thread",
                [
                    _loading("deepfs", StoreBackend(store, namespace=_NAMESPACE)),
                    _loading("SqliteBackend", database),
                    Contender(
                        name="deepagents",
                        call="await SkillsMiddleware(backend=StoreBackend(…)).abefore_agent(…)",
                        run=lambda: peer.abefore_agent({"messages": []}, None, {}),  # type: ignore[arg-type]
                        rows=_rows,
                    ),
                ],
                noun="skills",
            )
    bench.at_least(f"{_SKILLS} skills in a store: at least 3× deepagents", 3, race.ratios("deepagents", "deepfs"))
    for name, kind in (("deepfs", "a StoreBackend over SQLite"), ("SqliteBackend", "a SqliteBackend")):
        milliseconds = [seconds * 1000 for seconds in race.entry(name).timing.seconds]
        bench.at_most(f"{_SKILLS} skills in {kind}, after the first time: at most 20 ms", 20, milliseconds, " ms")


def _loading(name: str, backend: BackendProtocol) -> Contender:
    skills = SkillsMiddleware(backend=backend, sources=[_SOURCE])
    call = f"await SkillsMiddleware(backend={type(backend).__name__}(…)).abefore_agent(…)"
    return Contender(name=name, call=call, run=lambda: skills.abefore_agent({}, None), rows=_rows, own=True)


def _rows(update: Any) -> Collection[Hashable]:
    return [tuple(sorted((key, str(value)) for key, value in each.items())) for each in update["skills_metadata"]]


# --- copying ---------------------------------------------------------------------------------------------------------


class _Distant(WrapperBackend):
    """A sandbox that is reached over a network: each command and each file operation takes as long."""

    def __init__(self, inner: BackendProtocol) -> None:
        super().__init__(inner)
        self.calls = 0

    async def run(self, operation: Operation) -> Any:
        self.calls += 1
        await anyio.sleep(_SECONDS)
        return await super().run(operation)


async def _copy(bench: Bench) -> None:
    with inputs.scratch() as directory:
        turns = await _Turns.begun(directory)
        contenders = [
            Contender(name=name, call="await SkillsMiddleware(…).abefore_agent(…)", run=run, own=True)
            for name, run in (("one changed", turns.changed), ("none changed", turns.unchanged))
        ]
        for contender in contenders:
            await bench.race(f"a turn, {contender.name} of {_FILES} files", [contender], noun="turns", seconds=5)
        bench.at_most(f"One of {_FILES} files changed: at most 2 commands", 2, turns.commands["changed"], " commands")
        bench.at_most("No file changed: no command", 0, turns.commands["unchanged"], " commands")
        bench.note(
            f"The files lie on a mount, and commands run in a shell that each call takes {_SECONDS * 1000:.0f} ms to "
            f"reach. The first copy of {_FILES} files took {turns.first} calls, a new process that finds them "
            f"unchanged makes {await turns.again()}. deepagents copies nothing: scripts of such skills do not run."
        )


class _Turns:
    """An agent with 200 files of skills on a mount, called turn by turn."""

    def __init__(self, root: Path) -> None:
        self.store = MemoryBackend()
        self._root = root
        self._start()
        self.commands: dict[str, list[float]] = {"changed": [], "unchanged": []}
        self.first = 0
        self._numbers = count()

    def _start(self) -> None:
        """Begin as a process does, which does not know what the sandbox holds."""
        self.shell = _Distant(LocalShellBackend(self._root))
        files = CompositeBackend(self.shell, {f"{_SOURCE}/": self.store})
        self.skills = SkillsMiddleware(backend=files, sources=[_SOURCE])

    @classmethod
    async def begun(cls, root: Path) -> "_Turns":
        """Store the files and make the first copy."""
        turns = cls(root)
        made = [(f"/task/{number}.py", b"#!/usr/bin/env python3\nprint(%d)\n" % number) for number in range(_FILES - 1)]
        text = _TEXT.format(name="task", number=0).encode()
        await turns.store.aupload_files([("/task/SKILL.md", text), *made])
        await anyio.sleep(0.1)
        turns.first = await turns._counted(lambda: turns.skills.abefore_agent({}, None))
        return turns

    async def _counted(self, call: Callable[[], Any]) -> int:
        before = self.shell.calls
        update = await call()
        assert update is None or not update["skills_load_errors"], update
        return self.shell.calls - before

    async def changed(self) -> str:
        """A turn after a change, and whether the copy has it."""
        text = f"#!/bin/sh\necho {next(self._numbers)}\n"
        await self.store.awrite("/task/7.py", text, overwrite=True)
        self.commands["changed"].append(await self._counted(lambda: self.skills.abefore_agent({}, None)))
        copied = await self.shell.inner.aread(f"{_SOURCE}/task/7.py")
        assert copied.file_data is not None
        assert copied.file_data.content == text
        return "copied"

    async def unchanged(self) -> str:
        """A turn without a change."""
        self.commands["unchanged"].append(await self._counted(lambda: self.skills.abefore_agent({}, None)))
        return "unchanged"

    async def again(self) -> int:
        """The calls of a new process."""
        self._start()
        return await self._counted(lambda: self.skills.abefore_agent({}, None))
