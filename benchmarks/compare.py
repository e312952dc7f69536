"""`--compare`: runs the scenarios with the package of two commits, in paired rounds, and fails if anything got slower.

Each commit has a process that waits while the other has its turn: turns alternate within milliseconds, so that a busy
machine slows both alike. Every scenario runs in several such pairs of processes.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks import sides
from benchmarks.checkouts import check_out, commits
from benchmarks.pairs import Comparison, End, Measurement
from benchmarks.sides import Pair, Plan, SideError

__all__ = ["QUICK", "compare"]

QUICK: Final = Plan(pairs=2, least=5, most=6, seconds=0.5, quick=True)


def compare(given: list[str], scenarios: Sequence[str], plan: Plan, tell: Callable[[str], None]) -> Comparison:
    """Compare the given commits; `tell` is called with a line of text whenever a pair of processes has finished."""
    before, after = commits(given)
    with TemporaryDirectory(prefix="deepfs-compare-") as name:
        packages = check_out(before, Path(name, "before")), check_out(after, Path(name, "after"))
        run = _Run(Comparison(before, after), packages, plan)
        for scenario in scenarios:
            for number in range(plan.pairs):
                run.add(scenario, number)
                tell(f"{scenario}, pair of processes {number + 1} of {plan.pairs}")
    return run.comparison


class _Run:
    """Adds the measurements of each pair of processes to the comparison."""

    def __init__(self, comparison: Comparison, packages: tuple[Path, Path], plan: Plan) -> None:
        self.comparison = comparison
        self._packages = packages
        self._plan = plan
        self._measurements: dict[tuple[str, str, str], Measurement] = {}

    def add(self, scenario: str, number: int) -> None:
        """Run a scenario in one more pair of processes."""
        with sides.pair(self._packages, scenario, self._plan, swapped=number % 2 == 1) as pair:
            try:
                self._add_races(scenario, pair)
            except SideError as error:
                self.comparison.failures[f"{error.side}: {scenario}"] = str(error)
        if pair.ends:
            self._add_figures(*pair.ends)

    def _add_races(self, scenario: str, pair: Pair) -> None:
        for race in pair.races():
            for contender in race.contenders:
                blocks = pair.measure(contender)
                measurement = self._measurement(scenario, race.work, contender)
                measurement.answers_differ |= blocks is None
                measurement.blocks.append(blocks or [])

    def _measurement(self, scenario: str, work: str, contender: str) -> Measurement:
        key = (scenario, work, contender)
        if key not in self._measurements:
            self._measurements[key] = Measurement(*key)
            self.comparison.measurements.append(self._measurements[key])
        return self._measurements[key]

    def _add_figures(self, before: End, after: End) -> None:
        """Add the bars of both sides; those of a later pair of processes replace those of an earlier one."""
        for one, other in zip(before.bars, after.bars, strict=True):
            self.comparison.figures[f"{one.claim} [{one.unit.strip()}]"] = [median(one.values), median(other.values)]
