"""What all stored runs say together: the range of each bar over runs and machines, the lower end first."""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.record import Bar, Record
from benchmarks.runs import Run, described, of_newest_edition

__all__ = ["BarRange", "Figure", "Measured", "Ratio", "bar_ranges", "machines", "show", "shown", "span"]

Span = tuple[float, float]

# --- figures ---------------------------------------------------------------------------------------------------------


class Ratio(NamedTuple):
    """How many times as long one contender of a race took as another; by the median of the rounds of a run."""

    scenario: str
    work: str
    slower: str
    faster: str

    def of(self, record: Record) -> float | None:
        """The figure of one run; None if it has no such race or contenders."""
        for race in record.races:
            if race.work == self.work and {self.slower, self.faster} <= {entry.name for entry in race.entries}:
                return median(race.ratios(self.slower, self.faster))
        return None


class Measured(NamedTuple):
    """The median value of the bar whose claim holds all these words; limits are no part of them, since they change."""

    scenario: str
    words: tuple[str, ...]
    scale: float = 1

    def of(self, record: Record) -> float | None:
        """The figure of one run; None if it has no such bar."""
        found = [bar for bar in record.bars if all(word in bar.claim for word in self.words)]
        return found[0].typical * self.scale if found else None


Figure = Ratio | Measured


def span(figure: Figure, runs: Iterable[Run]) -> Span | None:
    """The lowest and the highest value of a figure over the runs of the newest edition that has it."""
    found = [run for run in runs if run.record.scenario == figure.scenario and figure.of(run.record) is not None]
    values = [value for run in of_newest_edition(found) if (value := figure.of(run.record)) is not None]
    return (min(values), max(values)) if values else None


def number(value: float) -> str:
    """A figure with as many digits as it deserves: 0.86, 1.12, 3.8, 12.5, 133."""
    digits = 2 if abs(value) < 2 else 1 if abs(value) < 100 else 0
    return f"{value:,.{digits}f}"


def shown(found: Span) -> str:
    """A range, or one number where both ends read the same."""
    low, high = map(number, found)
    return low if low == high else f"{low}–{high}"


# --- bars ------------------------------------------------------------------------------------------------------------


class BarRange(NamedTuple):
    """A bar over several runs."""

    scenario: str
    bars: Sequence[Bar]
    """The same bar in each run."""

    @property
    def claim(self) -> str:
        """What the bar says."""
        return self.bars[0].claim

    @property
    def span(self) -> Span:
        """The median values of the worst and the best runs, in ascending order."""
        values = [bar.typical for bar in self.bars]
        return min(values), max(values)

    @property
    def is_met(self) -> bool:
        """Whether the bar holds in every run."""
        return all(bar.met for bar in self.bars)

    @property
    def measured(self) -> str:
        """The range with its unit."""
        return f"{shown(self.span)}{self.bars[0].unit}"


def bar_ranges(runs: Iterable[Run]) -> list[BarRange]:
    """Every bar of the newest edition of each scenario."""
    found: dict[tuple[str, str], list[Bar]] = {}
    for run in of_newest_edition(runs):
        for bar in run.record.bars:
            found.setdefault((run.record.scenario, bar.claim), []).append(bar)
    return [BarRange(scenario, bars) for (scenario, _), bars in found.items()]


def machines(runs: Iterable[Run]) -> list[str]:
    """A line for each machine: what it is, how many runs it made at most, on which days, and of which scenarios."""
    by_machine: dict[str, list[Record]] = {}
    for run in runs:
        by_machine.setdefault(described(run.record), []).append(run.record)
    return [f"{machine} ({_made(records)})" for machine, records in by_machine.items()]


def _made(records: list[Record]) -> str:
    scenarios = [record.scenario for record in records]
    most = max(map(scenarios.count, scenarios))
    days = sorted({record.started_at[:10] for record in records})
    made = f"{most} run{'s' * (most > 1)}, {' to '.join([days[0], *days[1:][-1:]])}"
    return f"{made}: {', '.join(dict.fromkeys(scenarios))}"


def show(runs: Sequence[Run], console: Console) -> None:
    """Print the machines, and the range of every bar; runs of earlier editions are named, and not in the ranges."""
    current = list(of_newest_edition(runs))
    earlier = [run for run in runs if run not in current]
    for name, part in (("Runs in these ranges", current), ("Earlier editions, not in them", earlier)):
        for machine in machines(part):
            console.print(f"• {name}: {machine}", highlight=False, markup=False)
    console.print(_table(bar_ranges(current)))


def _table(found: Sequence[BarRange]) -> Table:
    met = sum(bar.is_met for bar in found)
    table = Table(title=f"{met} of {len(found)} bars met by every run", title_justify="left", expand=True)
    for column in ("scenario", "claim"):
        table.add_column(column, overflow="fold")
    for column in ("bar", "lowest–highest run", "runs", ""):
        table.add_column(column, justify="right", no_wrap=True)
    for bar in found:
        verdict = "[green]met[/green]" if bar.is_met else "[bold red]MISSED[/bold red]"
        table.add_row(bar.scenario, bar.claim, bar.bars[0].limit_shown, bar.measured, str(len(bar.bars)), verdict)
    return table
