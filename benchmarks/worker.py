"""`python -m benchmarks.worker PACKAGE SCENARIO [--quick]`: a process of a comparison, which does turns on command.

The scenario is that of this tree, the package that of one commit. Messages are JSON lines on the standard streams.
"""

import asyncio
import hashlib
import logging
import os
import sys
import traceback
from collections.abc import Collection, Hashable, Sequence
from importlib import import_module
from math import isnan, nan
from pathlib import Path
from typing import Any

import anyio.lowlevel
import msgspec

import deepfs
from benchmarks.bench import Bench
from benchmarks.harness import Contender, Lane
from benchmarks.pairs import Command, End, Message, Offer, Turn
from benchmarks.record import Bar, Entry, Race, Timing


class Channel:
    """The connection to the process that compares."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)  # Output that a scenario prints must not mix with messages.

    def send(self, message: Message) -> None:
        """Send a message; exit if the other process has closed the connection."""
        try:
            self._answers.write(msgspec.json.encode(message) + b"\n")
            self._answers.flush()
        except BrokenPipeError:
            sys.exit(1)

    def receive(self) -> Command:
        """Wait for a command. This blocks, so that nothing runs here while the other side has its turn."""
        line = sys.stdin.buffer.readline()
        if not line:
            sys.exit(1)
        return msgspec.json.decode(line, type=Command)


class PairedBench(Bench):
    """Runs turns of a race on command, and only those of deepfs."""

    is_paired = True

    def __init__(self, channel: Channel, scenario: str, title: str, *, quick: bool) -> None:
        super().__init__(scenario, title, quick=quick)
        self._channel = channel

    async def race(self, work: str, contenders: Sequence[Contender], **options: Any) -> Race:
        """Offer the race to the process that compares; other contenders are not run, and have `nan` as time."""
        lanes = {contender.name: Lane(contender) for contender in contenders if contender.own}
        if lanes:
            await self._serve(work, lanes)
        entries = [_entry(contender, lanes.get(contender.name)) for contender in contenders]
        race = Race(work, entries, sweep=bool(options.get("sweep")))
        self.record.races.append(race)
        return race

    async def _serve(self, work: str, lanes: dict[str, Lane]) -> None:
        self._channel.send(Offer(work, list(lanes)))
        while (name := self._channel.receive().contender) is not None:
            self._channel.send(await _turn(lanes[name]))
            await anyio.lowlevel.checkpoint()


async def _turn(lane: Lane) -> Turn:
    rows = await lane.turn()
    return Turn(lane.seconds[-1], lane.processor_seconds[-1], _digest(rows))


def _digest(rows: Collection[Hashable]) -> str:
    return hashlib.sha256("\n".join(sorted(map(repr, rows))).encode()).hexdigest()


def _entry(contender: Contender, lane: Lane | None) -> Entry:
    if lane is not None and lane.seconds:
        return lane.entry(0, "rows")
    return Entry(contender.name, contender.call, Timing([nan], [nan]), "not run", complete=True)


def _own_bars(bench: Bench) -> list[Bar]:
    return [bar for bar in bench.record.bars if not any(map(isnan, bar.values))]


def main() -> None:
    """Run the scenario, and send an End; its failure is the traceback if the scenario raises."""
    package, name, *options = sys.argv[1:]
    assert Path(package).samefile(Path(deepfs.__path__[0]).parent), deepfs.__path__
    logging.getLogger("deepagents").setLevel(logging.ERROR)
    channel = Channel()
    try:
        scenario = import_module(f"benchmarks.scenarios.{name}")
        bench = PairedBench(channel, name, scenario.TITLE, quick="--quick" in options)
        asyncio.run(scenario.measure(bench))
    except Exception:
        channel.send(End(failure=traceback.format_exc()))
    else:
        channel.send(End(_own_bars(bench)))


if __name__ == "__main__":
    main()
