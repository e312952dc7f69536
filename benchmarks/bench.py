"""What a scenario calls to run races and to record bars, notes and plots."""

from collections.abc import Sequence
from datetime import UTC, datetime
from math import inf
from typing import Any, Literal

from benchmarks import harness
from benchmarks.harness import Contender
from benchmarks.machine import commit, machine, versions
from benchmarks.record import EDITION, Bar, Line, Plot, Race, Record

__all__ = ["Bench"]


class Bench:
    """Runs the races of one scenario; `record` holds the results so far."""

    is_paired = False
    """Whether two processes take turns, each with the package of one commit, so that only this one may run races."""

    def __init__(self, scenario: str, title: str, *, quick: bool) -> None:
        self.quick = quick
        """Whether the run must be short: fewer rounds, and less work where the work is long."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.record = Record(scenario, title, quick, now, 0.0, machine(), versions(), edition=EDITION, commit=commit())

    async def race(
        self,
        work: str,
        contenders: Sequence[Contender],
        *,
        noun: str,
        rounds: int = 15,
        seconds: float = 30,
        patience: float = inf,
        sweep: bool = False,
    ) -> Race:
        """Run a race; a short one in a quick run."""
        limits: dict[str, Any] = {"rounds": rounds, "seconds": seconds, "patience": patience}
        if self.quick:
            limits = {"rounds": min(rounds, 3), "seconds": 0.5, "patience": min(patience, 1)}
        race = await harness.race(work, contenders, noun=noun, sweep=sweep, **limits)
        self.record.races.append(race)
        return race

    def at_least(
        self, claim: str, limit: float, values: Sequence[float], unit: str = "×", *, reduced: bool = False
    ) -> None:
        """Set a bar (a required value): the median of `values` must reach `limit`."""
        self.record.bars.append(Bar(claim, "at least", limit, unit, list(values), reduced))

    def at_most(
        self, claim: str, limit: float, values: Sequence[float], unit: str = "×", *, reduced: bool = False
    ) -> None:
        """Set a bar (a required value): the median of `values` must not exceed `limit`."""
        self.record.bars.append(Bar(claim, "at most", limit, unit, list(values), reduced))

    def complete(self, claim: str, race: Race, name: str) -> None:
        """Set the bar that the answers of a contender are complete."""
        whole = race.entry(name).complete
        self.at_least(claim, 1, [float(whole)], " of 1")

    def note(self, text: str) -> None:
        """Add a note that explains the figures."""
        self.record.notes.append(text)

    def plot(
        self,
        name: str,
        title: str,
        labels: tuple[str, str],
        lines: Sequence[Line],
        *,
        log: Literal["x", "y", "xy"] = "xy",
        ticks: Sequence[str] = (),
    ) -> None:
        """Add a plot to draw; `labels` are those of the x and the y axis."""
        self.record.plots.append(
            Plot(name, title, *labels, list(lines), log_x="x" in log, log_y="y" in log, ticks=list(ticks))
        )
