"""The benchmarks: equal answers are demanded, quick runs and comparisons work, the README has the stored figures."""

import asyncio
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks import report
from benchmarks.bench import Bench, Contender
from benchmarks.compare import Block, Comparison, Measurement
from benchmarks.record import RESULTS, load, stored

TREE: Final = Path(__file__).parents[2]


def run(tmp_path: Path, *options: str) -> tuple[int, str]:
    """The exit code and the output of a run."""
    places = {"PYTHONPYCACHEPREFIX": str(tmp_path / "pycache"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "benchmarks", "--quick", *options]
    done = subprocess.run(command, cwd=TREE, env={**os.environ, **places}, capture_output=True, encoding="utf-8")
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def bench() -> Bench:
    return Bench("a scenario", "A scenario", quick=True)


def race(bench: Bench, *answers: Any, **options: Any) -> Any:
    """A race of contenders that give these answers, the last with options."""
    contenders = [Contender(str(n), "", lambda answer=answer: answer, list) for n, answer in enumerate(answers)]
    contenders[-1] = Contender("last", "", contenders[-1].run, list, **options)
    return asyncio.run(bench.race("a race", contenders, "rows"))


def test_times_count_only_if_answers_are_equal(bench: Bench) -> None:
    found = race(bench, ["a", "b"], ["b", "a"])
    assert [(entry.answer, entry.complete) for entry in found.entries] == [("2 rows", True)] * 2
    assert all(entry.seconds for entry in found.entries)
    for other in (["a"], ["a", "b", "b"], ["a", "c"]):
        with pytest.raises(AssertionError, match="last answers otherwise"):
            race(bench, ["a", "b"], other)


@pytest.mark.timeout(600)
def test_a_quick_run_compares_with_deepagents_and_is_stored(tmp_path: Path) -> None:
    code, printed = run(tmp_path, "--results", str(tmp_path), "state")
    assert code == 0, printed
    [record] = load(tmp_path / "state.json")
    assert [(entry.name, entry.complete) for entry in record.races[0].entries] == [
        ("deepfs", True),
        ("deepagents", True),
    ]
    assert len(record.bars) == 2


# --- comparisons -----------------------------------------------------------------------------------------------------


def measured(ratio: float, *others: float, blocks: int = 25) -> Measurement:
    """A measurement with noise around one ratio for each pair of processes, of which there are three."""
    draw = random.Random(0)
    ratios = [ratio, *others, *[ratio] * 2][:3]
    groups = [[each * draw.lognormvariate(0, 0.1) for _ in range(blocks)] for each in ratios]
    return Measurement("mounts", "grep", "deepfs", [[Block((1, 1), (each, each)) for each in one] for one in groups])


@pytest.mark.parametrize(
    ("measurement", "verdict"),
    [
        (measured(1.0), "same"),
        (measured(1.2), "slower"),
        (measured(0.8), "faster"),
        (measured(1.05), "unclear"),
        (measured(1.0, 1.3, 1.3), "unclear"),  # It must appear in every pair of processes.
        (measured(1.5, blocks=3), "unclear"),
    ],
)
def test_a_difference_counts_if_it_exceeds_the_noise(measurement: Measurement, verdict: str) -> None:
    assert measurement.verdict == verdict
    comparison = Comparison("a", "b", {("", "", ""): measurement}, {"before: mounts": "failed"})
    assert comparison.is_passed == (verdict != "slower")
    comparison.failures["after: mounts"] = "failed"
    assert not comparison.is_passed


# --- stored runs -----------------------------------------------------------------------------------------------------


def test_the_readme_has_the_figures_of_the_stored_runs() -> None:
    text = report.README.read_text(encoding="utf-8")
    assert text == report.replaced(text, stored()), "nox -s bench -- --readme writes them anew"


def test_stored_runs_lie_in_the_directories_of_their_machines_and_name_no_other_place() -> None:
    for path in RESULTS.glob("*/*.json"):
        assert {record.directory for record in load(path)} == {path.parent.name}
        assert not re.search(r"/(home|root|tmp|work|Users)/", path.read_text(encoding="utf-8")), path
