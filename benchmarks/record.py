"""The results of a scenario, and the stored runs: `results/<machine>/<scenario>.json` has those of one machine."""

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Final, Literal

import msgspec

EDITION: Final = 3
"""Raised when the package or a scenario changes so much that earlier runs no longer tell how fast it is.

Ranges hold runs of one edition, the newest that a scenario has.
"""
RESULTS: Final = Path(__file__).parent / "results"


class Entry(msgspec.Struct, frozen=True):
    """One contender of a race: its exact call, its seconds in each round, and whether its answers were complete."""

    name: str
    call: str
    seconds: list[float]
    answer: str
    complete: bool


class Race(msgspec.Struct, frozen=True):
    """The same work by several contenders, in turns."""

    work: str
    entries: list[Entry]

    def entry(self, name: str) -> Entry:
        return next(entry for entry in self.entries if entry.name == name)

    def milliseconds(self, name: str, times: int = 1) -> list[float]:
        """The time of each round of a contender, for one of so many calls in a round."""
        return [seconds * 1000 / times for seconds in self.entry(name).seconds]

    def ratios(self, slower: str, faster: str) -> list[float]:
        """How many times as long as `faster` the other took: by round, or by medians if they ran different numbers."""
        long, short = self.entry(slower).seconds, self.entry(faster).seconds
        if len(long) != len(short):
            return [median(long) / median(short)]
        return [one / other for one, other in zip(long, short, strict=True)]


class Bar(msgspec.Struct, frozen=True):
    """A limit that the project sets itself, and the measured values, one for each round."""

    claim: str
    comparison: Literal["at least", "at most"]
    limit: float
    unit: str
    values: list[float]

    @property
    def typical(self) -> float:
        return median(self.values)

    @property
    def met(self) -> bool:
        return self.typical >= self.limit if self.comparison == "at least" else self.typical <= self.limit

    @property
    def limit_shown(self) -> str:
        return f"{'≥' if self.comparison == 'at least' else '≤'} {self.limit:g}{self.unit}"


class Point(msgspec.Struct, frozen=True):
    """A value with its spread: the quartiles, or the extremes if there are fewer than four values."""

    x: float
    y: float
    low: float
    high: float


def point(x: float, values: Sequence[float]) -> Point:
    low, _, high = quantiles(values, n=4) if len(values) >= 4 else (min(values), 0, max(values))
    return Point(x, median(values), low, high)


class Line(msgspec.Struct, frozen=True):
    """The points of one contender, by x."""

    name: str
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
    edition: int = EDITION
    commit: str = ""
    """The commit that was measured, with a `+` if files had changed since."""

    @property
    def box(self) -> list[str]:
        """What tells its machine from others: processor, cores, Python and, if known, the file system of the inputs."""
        python = ".".join(self.versions["Python"].split(".")[:2])
        kind = self.machine.get("file system")
        parts = [self.machine["processor"], f"{self.machine['cores']} cores", f"Python {python}"]
        return parts + ([kind] if kind else [])

    @property
    def directory(self) -> str:
        """The directory for runs of its machine, as in `2-cores-amd-epyc-python-3.12-ext4`."""
        if self.quick:
            return "quick"
        processor, cores, *rest = self.box
        words = re.sub(r"\((R|TM)\)|@.*|\b(CPU|Processor)\b", " ", processor, flags=re.IGNORECASE)
        return re.sub(r"[^a-z0-9.]+", "-", " ".join([cores, words, *rest]).lower()).strip("-")


def write(record: Record, directory: Path, *, beside: bool = False) -> Path:
    """Store a run in place of the earlier ones, or `beside` those of its edition; return the path of the file."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{record.scenario}.json"
    earlier = [one for one in load(path) if one.edition == record.edition] if beside and path.exists() else []
    path.write_bytes(msgspec.json.format(msgspec.json.encode([*earlier, record]), indent=1) + b"\n")
    return path


def load(path: Path) -> list[Record]:
    """The runs in a file, oldest first."""
    return msgspec.json.decode(path.read_bytes(), type=list[Record])


def stored(results: Path = RESULTS) -> list[Record]:
    """The runs of all machines that tell how fast the package is: of each scenario, those of its newest edition."""
    found = [record for path in sorted(results.glob("*/*.json")) for record in load(path) if not record.quick]
    newest = {record.scenario: record.edition for record in sorted(found, key=lambda record: record.edition)}
    return [record for record in found if record.edition == newest[record.scenario]]
