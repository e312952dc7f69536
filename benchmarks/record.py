"""The results of a scenario, as they are printed, written and drawn."""

from collections.abc import Sequence
from statistics import median, quantiles
from typing import Final, Literal

import msgspec

__all__ = ["EDITION", "Bar", "Entry", "Line", "Plot", "Point", "Race", "Record", "Timing", "point"]

EDITION: Final = 2
"""Raised when the package or a scenario changes so much that earlier runs no longer tell how fast it is.

Ranges hold runs of one edition, the newest that a scenario has; runs of earlier ones are kept, and shown as such.
"""


class Timing(msgspec.Struct, frozen=True):
    """The seconds of each round, in order, and its processor time, including that of subprocesses."""

    seconds: list[float]
    processor_seconds: list[float]

    @property
    def median(self) -> float:
        """The seconds of the median round."""
        return median(self.seconds)

    @property
    def processor_median(self) -> float:
        """The median processor time."""
        return median(self.processor_seconds)

    @property
    def low(self) -> float:
        """The fastest round."""
        return min(self.seconds)

    @property
    def high(self) -> float:
        """The slowest round."""
        return max(self.seconds)


class Entry(msgspec.Struct, frozen=True):
    """One contender of a race: its exact call, its times, and whether its answers were complete."""

    name: str
    call: str
    timing: Timing
    answer: str
    complete: bool


class Race(msgspec.Struct, frozen=True):
    """The same work by several contenders, in turns."""

    work: str
    entries: list[Entry]
    sweep: bool
    """Whether the race is one of a series that a plot shows, so that it has no table of its own."""

    def entry(self, name: str) -> Entry:
        """The contender of that name."""
        return next(entry for entry in self.entries if entry.name == name)

    def ratios(self, slower: str, faster: str) -> list[float]:
        """How many times as long as `faster` the other took: by round, or by medians if they ran different numbers."""
        long, short = self.entry(slower).timing, self.entry(faster).timing
        if len(long.seconds) != len(short.seconds):
            return [long.median / short.median]
        return [one / other for one, other in zip(long.seconds, short.seconds, strict=True)]


class Bar(msgspec.Struct, frozen=True):
    """A limit that the project sets itself, and the measured values, one for each round."""

    claim: str
    comparison: Literal["at least", "at most"]
    limit: float
    unit: str
    values: list[float]
    reduced: bool
    """Whether the work was smaller than the claim says, so that the figure does not count."""

    @property
    def typical(self) -> float:
        """The median, which is compared with the limit."""
        return median(self.values)

    @property
    def met(self) -> bool:
        """Whether the bar holds."""
        return self.typical >= self.limit if self.comparison == "at least" else self.typical <= self.limit

    @property
    def limit_shown(self) -> str:
        """The limit with its sign and unit."""
        return f"{'≥' if self.comparison == 'at least' else '≤'} {self.limit:g}{self.unit}"


class Point(msgspec.Struct, frozen=True):
    """A value with its spread: the quartiles, or the extremes if there are fewer than four values."""

    x: float
    y: float
    low: float
    high: float


def point(x: float, values: Sequence[float]) -> Point:
    """The median of `values` and their spread."""
    if len(values) < 4:
        return Point(x, median(values), min(values), max(values))
    low, _, high = quantiles(values, n=4)
    return Point(x, median(values), low, high)


class Line(msgspec.Struct, frozen=True):
    """The points of one contender, by x, and its exact call."""

    name: str
    call: str
    points: list[Point]


class Plot(msgspec.Struct, frozen=True):
    """A plot: lines over common axes; `ticks` are labels for the x axis in place of numbers."""

    name: str
    title: str
    x_label: str
    y_label: str
    lines: list[Line]
    log_x: bool = True
    log_y: bool = True
    ticks: list[str] = []


class Record(msgspec.Struct):
    """All results of one scenario in one run."""

    scenario: str
    title: str
    quick: bool
    started_at: str
    seconds: float
    machine: dict[str, str]
    versions: dict[str, str]
    races: list[Race] = []
    bars: list[Bar] = []
    notes: list[str] = []
    plots: list[Plot] = []
    edition: int = 1
    """The `EDITION` of the code that ran; 1 in runs from before it was recorded."""
    commit: str = ""
    """The commit that was measured, with a `+` if files had changed since; empty if that is unknown."""
