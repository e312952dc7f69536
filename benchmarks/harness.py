"""Races: the same work by several contenders in turns, timed only while their answers are equal."""

import gc
import inspect
import resource
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import inf
from typing import Any

from benchmarks.record import Entry, Race, Timing

__all__ = ["Contender", "Lane", "race"]


@dataclass(frozen=True, kw_only=True)
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
    own_seconds: Callable[[Any], float] | None = None
    """Takes the time from the answer, if the time of the whole call, such as starting Python, must not count."""
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    """A context in which it runs; entering and leaving it is not timed."""
    own: bool = False
    """Whether deepfs does the work: `--compare` runs only such contenders."""


@dataclass
class Lane:
    """The rounds that one contender has run."""

    contender: Contender
    seconds: list[float] = field(default_factory=list)
    processor_seconds: list[float] = field(default_factory=list)
    first_turn: float = 0.0
    lost: list[int] = field(default_factory=list)
    repeated: list[int] = field(default_factory=list)

    async def turn(self) -> Collection[Hashable]:
        """Do the work once, and return its rows."""
        gc.collect()
        with self.contender.around():
            worked, start = _processor_time(), time.perf_counter()
            answer = self.contender.run()
            if inspect.isawaitable(answer):
                answer = await answer
            took = time.perf_counter() - start
            self.processor_seconds.append(_processor_time() - worked)
        self.first_turn = self.first_turn or took
        own = self.contender.own_seconds
        self.seconds.append(took if own is None else own(answer))
        return self.contender.rows(answer)

    def check(self, rows: Collection[Hashable], expected: Counter[Hashable], work: str) -> None:
        """Raise if the rows differ from those expected; with `may_lose`, lost and repeated rows are only counted."""
        got = Counter(rows)
        missing, extra = expected - got, got - expected
        repeated = sum(extra[row] for row in extra if row in expected)
        if extra.total() > repeated or ((missing or extra) and not self.contender.may_lose):
            shown = f"misses {list(missing)[:3]}, has {list(extra)[:3]} besides"
            raise AssertionError(f"{work}: {self.contender.name} answers otherwise than the others; {shown:.2000}")
        self.lost.append(missing.total())
        self.repeated.append(repeated)

    def forget(self) -> None:
        """Discard the times of the rounds so far."""
        self.seconds.clear()
        self.processor_seconds.clear()

    def entry(self, expected: int, noun: str) -> Entry:
        answer = f"{expected:,} {noun}"
        if any(self.lost):
            kept = sorted({expected - lost for lost in self.lost})
            answer = f"{'–'.join(f'{count:,}' for count in (kept[0], kept[-1])[: len(kept)])} of {answer}: loses rows"
        if any(self.repeated):
            answer += f", repeats {max(self.repeated):,}"
        timing = Timing(self.seconds, self.processor_seconds)
        return Entry(self.contender.name, self.contender.call, timing, answer, not any(self.lost + self.repeated))


def _processor_time() -> float:
    """Seconds of user and system time, including those of subprocesses that have ended."""
    below = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + below.ru_utime + below.ru_stime


async def race(
    work: str,
    contenders: Sequence[Contender],
    *,
    noun: str,
    rounds: int,
    seconds: float,
    patience: float = inf,
    sweep: bool = False,
) -> Race:
    """Let the contenders do the work in turns; each round begins with another one.

    A first round warms caches up and is not counted; the answers of every round must be equal. There are at most
    `rounds` counted rounds; no further round begins once `seconds` are over, but at least one is run. A contender that
    takes longer than `patience` seconds in the first round runs no other one, and its first round counts.
    """
    lanes = [Lane(contender) for contender in contenders]
    answers = {lane.contender.name: await lane.turn() for lane in lanes}
    expected = Counter(next(answers[lane.contender.name] for lane in lanes if not lane.contender.may_lose))
    for lane in lanes:
        lane.check(answers[lane.contender.name], expected, work)
    del answers
    racing = [lane for lane in lanes if lane.first_turn <= patience]
    for lane in racing:
        lane.forget()
    deadline = time.perf_counter() + seconds
    for number in range(rounds):
        if number and time.perf_counter() > deadline:
            break
        first = number % max(len(racing), 1)
        for lane in racing[first:] + racing[:first]:
            lane.check(await lane.turn(), expected, work)
    return Race(work, [lane.entry(expected.total(), noun) for lane in lanes], sweep)
