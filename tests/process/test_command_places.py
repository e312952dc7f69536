"""Which commands of several backends start, and in which order; the commands are stood in for by tasks."""

from collections.abc import Hashable

import anyio
import pytest

from deepfs.process import _ASSURED, _MAX_ASSURED, MAX_COMMANDS, _Places
from support.waiting import until_tasks_wait

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]


class Commands:
    """Tasks that take places, and hold them until they are told to end."""

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self.places = _Places()
        self.started: list[str] = []
        self._tasks = tasks
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._ends: dict[str, anyio.Event] = {}

    async def add(self, *names: str) -> None:
        """Add commands; the letter of a name is the backend."""
        for name in names:
            self._scopes[name], self._ends[name] = anyio.CancelScope(), anyio.Event()
            self._tasks.start_soon(self._run, name)
            await until_tasks_wait()

    async def _run(self, name: str) -> None:
        with self._scopes[name]:
            async with self.places.place(_backend(name)):
                self.started.append(name)
                await self._ends[name].wait()

    async def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
            await until_tasks_wait()

    async def cancel(self, *names: str) -> None:
        for name in names:
            self._scopes[name].cancel()
            await until_tasks_wait()

    def new(self) -> list[str]:
        """The commands that started since the last call."""
        started, self.started = self.started, []
        return started


def _backend(name: str) -> Hashable:
    return name[0]


def names(backend: str, count: int, start: int = 0) -> list[str]:
    return [f"{backend}{number}" for number in range(start, start + count)]


async def test_other_backends_start_some_commands_although_all_places_are_taken() -> None:
    async with anyio.create_task_group() as tasks:
        commands = Commands(tasks)
        await commands.add(*names("a", MAX_COMMANDS + 1))
        commands.new()
        await commands.add(*names("b", _ASSURED + 2), *names("c", 1))
        assert commands.new() == [*names("b", _ASSURED), "c0"]
        await commands.end("b1")
        assert commands.new() == [f"b{_ASSURED}"]
        tasks.cancel_scope.cancel()


async def test_there_is_a_limit_for_all_backends_together() -> None:
    async with anyio.create_task_group() as tasks:
        commands = Commands(tasks)
        await commands.add(*names("a", MAX_COMMANDS))
        for number in range(_MAX_ASSURED):
            await commands.add(f"{chr(1000 + number)}0")
        assert len(commands.new()) == _MAX_ASSURED
        await commands.end("a0")
        assert len(commands.new()) == 1
        tasks.cancel_scope.cancel()


async def test_a_command_that_is_cancelled_while_it_waits_never_starts() -> None:
    async with anyio.create_task_group() as tasks:
        commands = Commands(tasks)
        await commands.add(*names("a", MAX_COMMANDS + 3))
        commands.new()
        await commands.cancel("a32", "a33", "a5")
        assert commands.new() == ["a34"]
        tasks.cancel_scope.cancel()
    queue = commands.places._queue
    assert (queue.served, bool(queue), queue._groups) == (0, False, {})


async def test_a_command_that_is_cancelled_as_it_gets_its_place_gives_it_back() -> None:
    async with anyio.create_task_group() as tasks:
        commands = Commands(tasks)
        await commands.add(*names("a", MAX_COMMANDS + 2))
        commands.new()
        commands._ends["a0"].set()
        commands._scopes["a32"].cancel()
        await until_tasks_wait()
        assert commands.new() == ["a33"]
        tasks.cancel_scope.cancel()
    assert commands.places._queue.served == 0
