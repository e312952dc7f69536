"""What a scenario calls: races, in which contenders do the same work in turns, and bars, notes and plots to record."""

import gc
import inspect
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from typing import Any, Final, NamedTuple

import anyio
from anyio.lowlevel import checkpoint

from benchmarks.machine import commit, machine, versions
from benchmarks.record import Bar, Entry, Line, Plot, Race, Record

MB: Final = 1_000_000


class Timed(NamedTuple):
    """An answer with a time of its own, where that of the whole call, such as starting Python, must not count."""

    seconds: float
    answer: Any
    added: int = 0
    """Bytes by which the peak of resident memory exceeded the memory before, without what the answer holds."""


@dataclass
class Contender:
    """One way to do the work of a race."""

    name: str
    call: str
    """The exact call or command, as shown."""
    run: Callable[[], Any]
    """A function, plain or async, that does the work once."""
    rows: Callable[[Any], Collection[Hashable]] = lambda answer: [answer]
    """Converts the answer of `run` to rows in a form that all contenders share."""
    may_lose: bool = False
    """Whether it is known to lose rows: lost and repeated rows are then reported, but wrong rows are an error."""
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    """A context in which it runs; entering and leaving it is not timed."""
    before: Callable[[], object] = lambda: None
    """What is done before each turn, within that context, and not timed."""
    own: bool = False
    """Whether deepfs does the work, as its name may tell: `--compare` runs only such contenders."""

    def __post_init__(self) -> None:
        self.own = self.own or self.name.startswith("deepfs")


@dataclass
class Lane:
    """The rounds that one contender has run: their seconds, and how many rows each had of those expected."""

    contender: Contender
    seconds: list[float] = field(default_factory=list)
    kept: set[int] = field(default_factory=set)
    repeated: int = 0

    async def turn(self) -> Collection[Hashable]:
        """Do the work once, and return its rows."""
        gc.collect()
        with self.contender.around():
            self.contender.before()
            start = time.perf_counter()
            answer = self.contender.run()
            if inspect.isawaitable(answer):
                answer = await answer
            took = time.perf_counter() - start
        if isinstance(answer, Timed):
            took, answer = answer.seconds, answer.answer
        self.seconds.append(took)
        return self.contender.rows(answer)

    def check(self, rows: Collection[Hashable], expected: Counter[Hashable], work: str) -> None:
        """Raise if the rows differ from those expected; with `may_lose`, lost and repeated rows are only counted."""
        got = Counter(rows)
        missing, extra = expected - got, got - expected
        repeated = sum(extra[row] for row in extra if row in expected)
        if extra.total() > repeated or ((missing or extra) and not self.contender.may_lose):
            shown = f"misses {list(missing)[:3]}, has {list(extra)[:3]} besides"
            raise AssertionError(f"{work}: {self.contender.name} answers otherwise than the others; {shown:.2000}")
        self.kept.add(expected.total() - missing.total())
        self.repeated = max(self.repeated, repeated)

    def entry(self, expected: int, noun: str) -> Entry:
        answer = f"{expected:,} {noun}"
        loses = self.kept != {expected}
        if loses:
            answer = f"{'–'.join(f'{each:,}' for each in sorted({min(self.kept), max(self.kept)}))} of {answer}"
        if self.repeated:
            answer += f", repeats {self.repeated:,}"
        complete = not (loses or self.repeated)
        return Entry(self.contender.name, self.contender.call, self.seconds, answer, complete)


class Bench:
    """Runs the races of one scenario; `record` holds the results so far."""

    def __init__(self, scenario: str, title: str, *, quick: bool) -> None:
        self.quick = quick
        """Whether the run must be short: fewer rounds, and less work where the work is long."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.record = Record(scenario, title, quick, now, 0.0, machine(), versions(), commit=commit())

    async def race(
        self,
        work: str,
        contenders: Sequence[Contender],
        noun: str,
        *,
        rounds: int = 15,
        seconds: float = 30,
        patience: float = inf,
    ) -> Race:
        """Let the contenders do the work in turns; each round begins with another one.

        A first round warms caches up and is not counted; the answers of every round must be equal. No further round
        begins once `seconds` are over, but at least one is run. A contender that takes longer than `patience` seconds
        in the first round runs no other one, and its first round counts. In a quick run, all these are small.
        """
        if self.quick:
            rounds, seconds, patience = min(rounds, 3), 0.5, min(patience, 1)
        lanes, racing, answers = [Lane(contender) for contender in contenders], [], []
        for lane in lanes:
            begun = time.perf_counter()
            answers.append(await lane.turn())
            if time.perf_counter() - begun <= patience:
                racing.append(lane)
        expected = Counter(next(a for lane, a in zip(lanes, answers, strict=True) if not lane.contender.may_lose))
        for lane, rows in zip(lanes, answers, strict=True):
            lane.check(rows, expected, work)
        del answers, rows
        for lane in racing:
            lane.seconds.clear()
        deadline = time.perf_counter() + seconds
        for number in range(rounds):
            if number and time.perf_counter() > deadline:
                break
            first = number % max(len(racing), 1)
            for lane in racing[first:] + racing[:first]:
                lane.check(await lane.turn(), expected, work)
        return self.add(Race(work, [lane.entry(expected.total(), noun) for lane in lanes]))

    def add(self, race: Race) -> Race:
        self.record.races.append(race)
        return race

    def at_least(self, claim: str, limit: float, values: Sequence[float], unit: str = "×") -> None:
        """Set a bar (a required value): the median of `values` must reach `limit`."""
        self.record.bars.append(Bar(claim, "at least", limit, unit, list(values)))

    def at_most(self, claim: str, limit: float, values: Sequence[float], unit: str = "×") -> None:
        """Set a bar (a required value): the median of `values` must not exceed `limit`."""
        self.record.bars.append(Bar(claim, "at most", limit, unit, list(values)))

    def beats_peer(self, work: str, least: float, race: Race, ours: str = "deepfs", theirs: str = "deepagents") -> None:
        """Set the bar that deepfs is so many times as fast as deepagents."""
        self.at_least(f"{work}: at least {least:g}× deepagents", least, race.ratios(theirs, ours))

    def complete(self, claim: str, race: Race, name: str = "deepfs") -> None:
        """Set the bar that the answers of a contender are complete."""
        self.at_least(claim, 1, [float(race.entry(name).complete)], " of 1")

    def note(self, text: str) -> None:
        self.record.notes.append(text)

    def plot(self, name: str, title: str, axes: tuple[str, str], lines: Sequence[Line], **options: Any) -> None:
        """Add a plot to draw; `axes` are the labels of x and y, options those of `Plot`."""
        self.record.plots.append(Plot(name, title, *axes, list(lines), **options))


def both(
    call: str, ours: Callable[[], Any], theirs: Callable[[], Any], rows: Callable[..., Any], *, may_lose: bool = False
) -> list[Contender]:
    """deepfs and deepagents, each with the same call."""
    return [
        Contender("deepfs", call, ours, rows),
        Contender("deepagents", call, theirs, rows, may_lose=may_lose),
    ]


@asynccontextmanager
async def ticking(lags: list[float]) -> AsyncIterator[None]:
    """While the block runs, a task sleeps a millisecond at a time; `lags` gets the seconds by which it woke late."""

    async def tick() -> None:
        while True:
            asked = time.perf_counter() + 0.001
            await anyio.sleep(0.001)
            lags.append(time.perf_counter() - asked)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        await checkpoint()
        yield
        tasks.cancel_scope.cancel()


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that `percent` percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def percentiles(seconds: Sequence[float]) -> str:
    """Some percentiles in milliseconds, as shown."""
    return ", ".join(f"{percentile(seconds, each) * 1000:.2f} ms p{each}" for each in (50, 99, 100))


_MEASURED: Final = """
import asyncio, json, re, sys, time
from pathlib import Path

def memory(field):
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"^{field}:\\s+(\\d+) kB", status, re.MULTILINE)[1]) * 1024

async def measured(work, held=lambda answer: 0):
    Path("/proc/self/clear_refs").write_text("5")  # The peak counts from here.
    before, start = memory("VmRSS"), time.perf_counter()
    answer = await work
    return time.perf_counter() - start, answer, memory("VmHWM") - before - held(answer)
"""


async def in_new_process(program: str, *arguments: object) -> Timed:
    """Run a program whose async function `main` takes the arguments, as texts, and returns what `measured` does."""
    source = f"{_MEASURED}\n{program}\nprint(json.dumps(asyncio.run(main(*sys.argv[1:]))))"
    command = [sys.executable, "-c", source, *map(str, arguments)]
    return Timed(*json.loads((await anyio.run_process(command, stderr=None)).stdout))
