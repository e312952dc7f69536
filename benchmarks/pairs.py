"""Two commits measured in pairs: the messages between the processes, and the statistics of the times."""

import random
from collections.abc import Sequence
from itertools import chain
from math import comb, sqrt
from statistics import median
from typing import Final, Literal

import msgspec

from benchmarks.record import Bar

__all__ = [
    "Block",
    "Command",
    "Comparison",
    "End",
    "Measurement",
    "Message",
    "Offer",
    "Turn",
    "Verdict",
    "interval",
    "is_sure",
]

SLOWER: Final = 1.05
"""The ratio that the whole interval must lie above before a measurement counts as slower."""

Verdict = Literal["slower", "faster", "same", "unclear", "answers differ"]

# --- messages between the processes ----------------------------------------------------------------------------------


class Offer(msgspec.Struct, frozen=True, tag=True):
    """A worker has reached a race, and waits for commands to do turns of these contenders."""

    work: str
    contenders: list[str]


class Turn(msgspec.Struct, frozen=True, tag=True):
    """The times of one turn, and the digest of its answer."""

    seconds: float
    processor_seconds: float
    digest: str


class End(msgspec.Struct, frozen=True, tag=True):
    """The scenario is over, or it failed."""

    bars: list[Bar] = []
    failure: str = ""


Message = Offer | Turn | End


class Command(msgspec.Struct, frozen=True):
    """A command to the worker: a turn of this contender; None means to go on to the next race."""

    contender: str | None


# --- measurements ----------------------------------------------------------------------------------------------------


class Block(msgspec.Struct, frozen=True):
    """Four turns, in the order before, after, after, before: steady drift, and effects of the order, cancel out.

    Every other block runs in the order after, before, before, after.
    """

    before: tuple[Turn, Turn]
    after: tuple[Turn, Turn]

    @property
    def ratio(self) -> float:
        """How many times as long the later commit took: the geometric mean of the two pairs."""
        return _mean_ratio([turn.seconds for turn in self.after], [turn.seconds for turn in self.before])

    @property
    def processor_ratio(self) -> float:
        """The same ratio for processor time."""
        after, before = ([turn.processor_seconds for turn in turns] for turns in (self.after, self.before))
        return _mean_ratio(after, before)


def _mean_ratio(after: Sequence[float], before: Sequence[float]) -> float:
    # The processor time of a short turn may be 0.
    one, other = (max(long, 1e-9) / max(short, 1e-9) for long, short in zip(after, before, strict=True))
    return sqrt(one * other)


class Measurement(msgspec.Struct):
    """One contender of one race on both commits; `blocks` has a list for each pair of processes."""

    scenario: str
    work: str
    contender: str
    blocks: list[list[Block]] = []
    answers_differ: bool = False

    @property
    def all_blocks(self) -> list[Block]:
        """The blocks of all pairs of processes."""
        return list(chain.from_iterable(self.blocks))

    @property
    def before(self) -> float:
        """The median seconds of the earlier commit."""
        return median(turn.seconds for block in self.all_blocks for turn in block.before)

    @property
    def after(self) -> float:
        """The median seconds of the later commit."""
        return median(turn.seconds for block in self.all_blocks for turn in block.after)

    @property
    def ratio(self) -> float:
        """How many times as long the later commit took."""
        return median(block.ratio for block in self.all_blocks)

    @property
    def processor_ratio(self) -> float:
        """How many times as much processor time the later commit took."""
        return median(block.processor_ratio for block in self.all_blocks)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the ratio."""
        return interval([[block.ratio for block in blocks] for blocks in self.blocks if blocks])

    @property
    def verdict(self) -> Verdict:
        """The verdict; "unclear" if more rounds are needed to show, or to exclude, that the later commit is slower."""
        if self.answers_differ:
            return "answers differ"
        low, high = self.interval
        ratios = [block.ratio for block in self.all_blocks]
        if low > SLOWER and is_sure([ratio > SLOWER for ratio in ratios]):
            return "slower"
        if high < 1 / SLOWER and is_sure([ratio < 1 / SLOWER for ratio in ratios]):
            return "faster"
        return "same" if high <= SLOWER else "unclear"


def is_sure(hits: Sequence[bool]) -> bool:
    """Sign test: whether so many hits have a probability of at most 0.1 % by chance, at even odds.

    A run has about a hundred measurements, and with few blocks, the interval alone calls too many of them slower; this
    test needs at least ten blocks.
    """
    count = len(hits)
    chances = sum(comb(count, number) for number in range(sum(hits), count + 1))
    return chances / 2.0**count <= 0.001


def interval(groups: Sequence[Sequence[float]], *, samples: int = 1_000) -> tuple[float, float]:
    """The 95 % interval of the median, by a bootstrap that first draws groups, and then values within each group.

    Two processes differ in their memory layout, however many turns they take. So the values of one pair of processes
    are not independent of each other, and a difference counts only if other pairs show it, too.
    """
    chosen = random.Random(0)
    medians = sorted(
        median(
            value for group in chosen.choices(groups, k=len(groups)) for value in chosen.choices(group, k=len(group))
        )
        for _ in range(samples)
    )
    return medians[round(0.025 * (samples - 1))], medians[round(0.975 * (samples - 1))]


class Comparison(msgspec.Struct):
    """The result of one run about two commits."""

    before: str
    after: str
    measurements: list[Measurement] = []
    figures: dict[str, list[float]] = {}
    """Bars that measure deepfs alone, such as memory: the value of each commit by claim, shown without a verdict."""
    failures: dict[str, str] = {}
    """Why a scenario could not be compared, by side and scenario."""

    @property
    def is_passed(self) -> bool:
        """Whether nothing is slower, no answers differ, and all scenarios run on the later commit."""
        verdicts = {measurement.verdict for measurement in self.measurements}
        return not verdicts & {"slower", "answers differ"} and not any(key.startswith("after") for key in self.failures)
