"""The two processes of a comparison, which take turns at the same scenario, each with the package of one commit."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.checkouts import ROOT
from benchmarks.pairs import Block, Command, End, Message, Offer, Turn

__all__ = ["Pair", "Plan", "SideError", "pair"]


class Plan(NamedTuple):
    """How many rounds to measure."""

    pairs: int = 3
    """Pairs of processes for each scenario."""
    least: int = 4
    """The fewest blocks of four turns for a measurement in each pair of processes."""
    most: int = 25
    """The most such blocks."""
    seconds: float = 4
    """No block beyond `least` begins after this time."""
    quick: bool = False
    """Whether long work is reduced."""


class SideError(Exception):
    """A side failed to run the scenario."""

    def __init__(self, side: str, message: Message) -> None:
        super().__init__(message.failure if isinstance(message, End) else f"out of turn: {message}")
        self.side = side


# --- one process -----------------------------------------------------------------------------------------------------


class Side:
    """A process that runs a scenario with the package of one commit."""

    def __init__(self, name: str, package: Path, scenario: str, *, quick: bool) -> None:
        self.name = name
        command = [sys.executable, "-P", "-m", "benchmarks.worker", str(package), scenario, *["--quick"] * quick]
        self._process = subprocess.Popen(
            command, cwd=package.parent, env=_environment(package), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def receive(self) -> Message:
        """Wait for a message of the process; an End with a failure if the process has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            return End(failure=f"the process ended with {self._process.wait()}")
        message: Message = msgspec.json.decode(line, type=Message)
        return message

    def turn(self, contender: str) -> Turn:
        """Let the process do the work of a contender once."""
        self._tell(contender)
        answer = self.receive()
        if isinstance(answer, Turn):
            return answer
        raise SideError(self.name, answer)

    def go_on(self) -> None:
        """Let the process go on to the next race."""
        self._tell(None)

    def _tell(self, contender: str | None) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # `receive` reports a process that has ended.
            self._process.stdin.write(msgspec.json.encode(Command(contender)) + b"\n")
            self._process.stdin.flush()

    def close(self) -> None:
        """End the process: it exits when it waits for a command and its input ends."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()
        self._process.wait()


def _environment(package: Path) -> dict[str, str]:
    """An environment that imports the package of the commit, and all else from this tree, also in subprocesses."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": os.pathsep.join([str(package), str(ROOT)]), "PYTHONHASHSEED": "0"}


# --- one pair of processes -------------------------------------------------------------------------------------------


@contextmanager
def pair(packages: tuple[Path, Path], scenario: str, plan: Plan, *, swapped: bool) -> Iterator["Pair"]:
    """Start both processes; `swapped` changes which one starts first, since that may affect caches."""
    named = list(zip(("before", "after"), packages, strict=True))
    order = named[::-1] if swapped else named
    sides = {name: Side(name, package, scenario, quick=plan.quick) for name, package in order}
    try:
        yield Pair(sides["before"], sides["after"], plan)
    finally:
        for side in sides.values():
            side.close()


class Pair:
    """A scenario in one pair of processes, race by race."""

    def __init__(self, before: Side, after: Side, plan: Plan) -> None:
        self._before, self._after = before, after
        self._plan = plan
        self.ends: tuple[End, End] | None = None
        """The last messages of both processes, when there are no more races."""

    def races(self) -> Iterator[Offer]:
        """Yield each race when both processes have reached it."""
        while isinstance(offer := self._receive(), Offer):
            yield offer
            self._before.go_on()
            self._after.go_on()
        self.ends = offer

    def _receive(self) -> Offer | tuple[End, End]:
        both = {side: side.receive() for side in (self._before, self._after)}
        for side, message in both.items():
            if isinstance(message, End) and message.failure:
                raise SideError(side.name, message)
        before, after = both.values()
        if isinstance(before, End) and isinstance(after, End):
            return before, after
        if isinstance(before, Offer) and before == after:
            return before
        raise SideError(self._after.name, End(failure=f"{after} where the other has {before}"))

    def measure(self, contender: str) -> list[Block] | None:
        """Return the blocks of turns, or None if the answers differ. First turns warm caches up, and do not count."""
        first = self._before.turn(contender)
        if self._after.turn(contender).digest != first.digest:
            return None
        blocks: list[Block] = []
        deadline = time.perf_counter() + self._plan.seconds
        while len(blocks) < self._plan.most and (len(blocks) < self._plan.least or time.perf_counter() < deadline):
            blocks.append(self._block(contender, len(blocks) % 2 == 1))
            if any(turn.digest != first.digest for turn in (*blocks[-1].before, *blocks[-1].after)):
                return None
        return blocks

    def _block(self, contender: str, swapped: bool) -> Block:
        outer, inner = (self._after, self._before) if swapped else (self._before, self._after)
        turns = [side.turn(contender) for side in (outer, inner, inner, outer)]
        around, within = (turns[0], turns[3]), (turns[1], turns[2])
        return Block(within, around) if swapped else Block(around, within)
