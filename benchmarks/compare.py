"""`--compare`: runs scenarios with the package of two commits, in paired rounds, and fails if anything got slower.

Each commit has a process that waits while the other has its turn: turns alternate within milliseconds, so that a busy
machine slows both alike. Every scenario runs in several such pairs of processes. The scenarios are those of this tree.

`python -m benchmarks.compare PACKAGE SCENARIO [--quick]` is such a process. Messages are JSON lines.
"""

import hashlib
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from math import nan, sqrt
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from anyio.lowlevel import checkpoint

import deepfs
from benchmarks import scenarios
from benchmarks.bench import Bench, Contender, Lane
from benchmarks.record import Entry, Race

ROOT: Final = Path(__file__).parents[1]
SLOWER: Final = 1.05
"""The ratio that the whole interval must lie above before a measurement counts as slower."""


class Plan(NamedTuple):
    """How much to measure: pairs of processes for each scenario, and blocks of four turns in each of these."""

    pairs: int = 3
    least: int = 4
    most: int = 25
    seconds: float = 4
    """No block beyond `least` begins after this time."""
    quick: bool = False


QUICK: Final = Plan(pairs=2, least=5, most=6, seconds=0.5, quick=True)

# --- statistics ------------------------------------------------------------------------------------------------------


class Block(NamedTuple):
    """The seconds of four turns, in the order before, after, after, before, so that steady drift cancels out.

    Every other block runs in the order after, before, before, after.
    """

    before: tuple[float, float]
    after: tuple[float, float]

    @property
    def ratio(self) -> float:
        """How many times as long the later commit took: the geometric mean of the two pairs."""
        return sqrt(self.after[0] / self.before[0] * self.after[1] / self.before[1])


@dataclass
class Measurement:
    """One contender of one race on both commits; `blocks` has a list for each pair of processes."""

    scenario: str
    work: str
    contender: str
    blocks: list[list[Block]] = field(default_factory=list)
    answers_differ: bool = False

    @property
    def all_blocks(self) -> list[Block]:
        return list(chain.from_iterable(self.blocks))

    @property
    def interval(self) -> tuple[float, float]:
        return interval([[block.ratio for block in blocks] for blocks in self.blocks if blocks])

    @property
    def verdict(self) -> str:
        """The verdict; "unclear" if more rounds are needed to show, or to exclude, that the later commit is slower."""
        if self.answers_differ:
            return "answers differ"
        low, high = self.interval
        if high <= SLOWER:
            return "same" if high >= 1 / SLOWER else "faster"
        # With few rounds, an interval is no evidence, and a run has about a hundred.
        return "slower" if low > SLOWER and len(self.all_blocks) >= 10 else "unclear"


def interval(groups: Sequence[Sequence[float]], samples: int = 1_000) -> tuple[float, float]:
    """The 95 % interval of the median, by a bootstrap that first draws groups, and then values within each group.

    Two processes differ in their memory layout, however many turns they take. So the values of one pair of processes
    are not independent of each other, and a difference counts only if other pairs show it, too.
    """
    draw = random.Random(0).choices
    medians = sorted(
        median(value for group in draw(groups, k=len(groups)) for value in draw(group, k=len(group)))
        for _ in range(samples)
    )
    return medians[samples // 40], medians[-samples // 40]


# --- the process that compares ---------------------------------------------------------------------------------------


@dataclass
class Comparison:
    """The result of one run about two commits; failures are by side and scenario."""

    before: str
    after: str
    measurements: dict[tuple[str, str, str], Measurement] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def is_passed(self) -> bool:
        """Whether nothing is slower, no answers differ, and all scenarios run on the later commit."""
        verdicts = {measurement.verdict for measurement in self.measurements.values()}
        return not verdicts & {"slower", "answers differ"} and not any(key.startswith("after") for key in self.failures)


def commits(given: str) -> tuple[str, str]:
    """The earlier and the later commit of `REV`, which stands for `REV` and this working tree, or of `REV..REV`."""
    before, dots, after = given.partition("..")
    return before or "HEAD", (after or "HEAD") if dots else str(ROOT)


def compare(named: tuple[str, str], names: Sequence[str], plan: Plan) -> Comparison:
    comparison = Comparison(*named)
    with TemporaryDirectory(prefix="deepfs-compare-") as place:
        packages = [_check_out(name, Path(place, side)) for name, side in zip(named, ("before", "after"), strict=True)]
        for scenario in names:
            for number in range(plan.pairs):
                # Which process starts first may affect caches.
                with _pair(packages, scenario, plan.quick, -1 if number % 2 else 1) as (before, after):
                    try:
                        _add(comparison, scenario, before, after, plan)
                    except _SideError as error:
                        side, reason = error.args
                        comparison.failures[f"{side}: {scenario}"] = reason
                print(f"{scenario}, pair of processes {number + 1} of {plan.pairs}")
    return comparison


def _check_out(name: str, directory: Path) -> Path:
    """Put the package of a commit of this repository, or of another directory, into `directory`, and return this."""
    directory.mkdir()
    if Path(name, "deepfs").is_dir():
        shutil.copytree(Path(name, "deepfs"), directory / "deepfs", ignore=shutil.ignore_patterns("__pycache__"))
        return directory
    command = ["git", "archive", "--format=tar", f"{name}^{{commit}}", "deepfs"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"{name} is neither a commit nor a directory with the package: {done.stderr.decode().strip()}")
    subprocess.run(["tar", "-x"], cwd=directory, input=done.stdout, check=True)
    return directory


class _SideError(Exception):
    """A side failed to run the scenario; the arguments are its name and the reason."""


class _Side:
    """A process that runs a scenario with the package of one commit."""

    def __init__(self, package: Path, process: "subprocess.Popen[Any]") -> None:
        self.name, self._process = package.name, process

    def receive(self, kind: str) -> Any:
        """Wait for a message of the process. Raises if it is of another kind."""
        line = self._process.stdout.readline() if self._process.stdout else b""
        found = json.loads(line) if line else {"failure": f"the process ended with {self._process.wait()}"}
        if kind not in found:
            raise _SideError(self.name, found.get("failure") or f"{found} in place of {kind}")
        return found[kind]

    def tell(self, contender: str | None) -> None:
        """Let the process do the work of a contender once, or go on to the next race."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # `receive` reports a process that has ended.
            self._process.stdin.write(json.dumps(contender).encode() + b"\n")
            self._process.stdin.flush()


@contextmanager
def _pair(packages: Sequence[Path], scenario: str, quick: bool, order: int) -> Iterator[list[_Side]]:
    """Start both processes. Each imports the package of its commit, and all else from this tree."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with ExitStack() as stack:
        sides = []
        for package in packages[::order]:
            command = [sys.executable, "-P", "-m", "benchmarks.compare", str(package), scenario, *["--quick"] * quick]
            environment = {**kept, "PYTHONPATH": os.pathsep.join([str(package), str(ROOT)]), "PYTHONHASHSEED": "0"}
            process = subprocess.Popen(
                command, cwd=package, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            sides.append(_Side(package, stack.enter_context(process)))
        yield sides[::order]  # At the end of the block, the input of both ends, and so do they.


def _add(comparison: Comparison, scenario: str, before: _Side, after: _Side, plan: Plan) -> None:
    offers = before.receive("race"), after.receive("race")
    while any(offers):
        if offers[0] != offers[1]:
            raise _SideError("after", f"{offers[1]} where the other has {offers[0]}")
        work, contenders = offers[0]
        for contender in contenders:
            key = (scenario, work, contender)
            measurement = comparison.measurements.setdefault(key, Measurement(*key))
            blocks = _blocks(before, after, contender, plan)
            measurement.answers_differ |= blocks is None
            measurement.blocks.append(blocks or [])
        before.tell(None)
        after.tell(None)
        offers = before.receive("race"), after.receive("race")


def _blocks(before: _Side, after: _Side, contender: str, plan: Plan) -> list[Block] | None:
    """The blocks of turns, or None if the answers differ. First turns warm caches up, and do not count."""
    digests = set()

    def turn(side: _Side) -> float:
        side.tell(contender)
        seconds, digest = side.receive("turn")
        digests.add(digest)
        return float(seconds)

    turn(before), turn(after)
    blocks: list[Block] = []
    deadline = time.perf_counter() + plan.seconds
    while len(blocks) < plan.most and (len(blocks) < plan.least or time.perf_counter() < deadline):
        outer, inner = (after, before) if len(blocks) % 2 else (before, after)
        first, second, third, last = (turn(side) for side in (outer, inner, inner, outer))
        around, within = (first, last), (second, third)
        blocks.append(Block(within, around) if len(blocks) % 2 else Block(around, within))
        if len(digests) > 1:
            return None
    return blocks


# --- a process of one commit -----------------------------------------------------------------------------------------


class _PairedBench(Bench):
    """Runs turns of a race on command, and only those of deepfs."""

    def __init__(self, scenario: str, *, quick: bool) -> None:
        super().__init__(scenario, "", quick=quick)
        self._answers = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)  # Output that a scenario prints must not mix with messages.

    def send(self, **message: Any) -> None:
        with suppress(BrokenPipeError):  # The input ends then, too.
            self._answers.write(json.dumps(message).encode() + b"\n")
            self._answers.flush()

    async def race(self, work: str, contenders: Sequence[Contender], noun: str, **options: Any) -> Race:
        """Offer the race to the process that compares; other contenders are not run, and have `nan` as time."""
        lanes = {contender.name: Lane(contender) for contender in contenders if contender.own}
        if lanes:
            self.send(race=[work, list(lanes)])
            # This blocks, so that nothing runs here while the other side has its turn.
            while (name := json.loads(sys.stdin.readline() or sys.exit(1))) is not None:
                rows = await lanes[name].turn()
                digest = hashlib.sha256("\n".join(sorted(map(repr, rows))).encode()).hexdigest()
                self.send(turn=[lanes[name].seconds[-1], digest])
                await checkpoint()
        times = {name: lane.seconds or [nan] for name, lane in lanes.items()}
        entries = [Entry(each.name, each.call, times.get(each.name, [nan]), "", True) for each in contenders]
        return self.add(Race(work, entries))


def main() -> None:
    """Run the scenario, and send that there is no further race, or the traceback if it raises."""
    package, name, *options = sys.argv[1:]
    assert Path(package).samefile(Path(deepfs.__path__[0]).parent), deepfs.__path__
    logging.getLogger("deepagents").setLevel(logging.ERROR)
    bench = _PairedBench(name, quick="--quick" in options)
    try:
        scenarios.run(bench)
    except Exception:
        bench.send(failure=traceback.format_exc())
    else:
        bench.send(race=None)


if __name__ == "__main__":
    main()
