"""`--compare` reports results that differ between two commits and times that are certainly slower, and nothing else."""

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

import deepfs
from benchmarks import checkouts, compare
from benchmarks.checkouts import CheckoutError, check_out, commits
from benchmarks.pairs import Block, Comparison, Measurement, Turn, interval
from benchmarks.sides import Plan

TREE: Final = Path(__file__).parents[2]
INSTALLED: Final = Path(next(iter(deepfs.__path__))).parent

Package = Callable[[str], Path]

# --- verdicts --------------------------------------------------------------------------------------------------------


def turns(seconds: float) -> tuple[Turn, Turn]:
    return (Turn(seconds, seconds, "same"), Turn(seconds, seconds, "same"))


def measured(*groups: list[float]) -> Measurement:
    """A measurement with these ratios, one list per pair of processes; the speed of the machine varies."""
    load = random.Random(0)
    blocks = []
    for ratios in groups:
        paces = [load.uniform(1, 20) for _ in ratios]
        blocks.append([Block(turns(pace), turns(pace * ratio)) for pace, ratio in zip(paces, ratios, strict=True)])
    return Measurement("mounts", "grep", "deepfs", blocks)


def noisy(ratio: float, seed: int) -> list[float]:
    chosen = random.Random(seed)
    return [ratio * chosen.lognormvariate(0, 0.1) for _ in range(25)]


@pytest.mark.parametrize(("ratio", "verdict"), [(1.0, "same"), (1.2, "slower"), (0.8, "faster"), (1.05, "unclear")])
def test_a_difference_counts_if_it_exceeds_the_noise(ratio: float, verdict: str) -> None:
    assert measured(*(noisy(ratio, seed) for seed in range(3))).verdict == verdict


def test_a_slowdown_must_appear_in_every_pair_of_processes() -> None:
    assert measured(noisy(1.3, 0), noisy(1.3, 1), noisy(1.0, 2)).verdict == "unclear"


def test_few_noisy_rounds_are_unclear() -> None:
    assert measured([1.6, 0.9], [1.3, 1.0], [1.2, 0.8]).verdict == "unclear"


def test_too_few_blocks_are_unclear_even_if_each_is_slower() -> None:
    assert measured([1.4, 1.3], [1.3, 1.2], [1.4, 1.2]).verdict == "unclear"
    assert measured([1.4, 1.3] * 2, [1.3, 1.2] * 2, [1.4, 1.2] * 2).verdict == "slower"


def test_the_order_within_a_block_cancels_out() -> None:
    later_is_faster = Block((Turn(2, 2, ""), Turn(1, 1, "")), (Turn(1, 1, ""), Turn(2, 2, "")))
    assert later_is_faster.ratio == 1
    assert later_is_faster.processor_ratio == 1


def test_the_interval_contains_the_median_and_narrows_with_the_noise() -> None:
    low, high = interval([[0.9, 1.0, 1.1]] * 3)
    assert low < 1 < high
    assert interval([[1.0, 1.0, 1.0]] * 3) == (1, 1)


def test_a_comparison_fails_on_slower_or_different_or_newly_failing_results() -> None:
    same, slower = measured(noisy(1.0, 0)), measured(noisy(1.5, 0))
    other = Measurement("mounts", "grep", "deepfs", [[]], answers_differ=True)
    assert Comparison("a", "b", [same]).is_passed
    assert not Comparison("a", "b", [same, slower]).is_passed
    assert not Comparison("a", "b", [same, other]).is_passed
    assert Comparison("a", "b", [same], failures={"before: mounts": "no such name"}).is_passed
    assert not Comparison("a", "b", [same], failures={"after: mounts": "no such name"}).is_passed


# --- commits ---------------------------------------------------------------------------------------------------------


def test_arguments_name_the_versions_to_compare(tmp_path: Path) -> None:
    assert commits(["HEAD~1"]) == ("HEAD~1", str(TREE))
    assert commits(["a..b"]) == ("a", "b")
    assert commits(["a.."]) == ("a", "HEAD")
    assert commits(["a", "b"]) == ("a", "b")
    assert commits([str(tmp_path / "..")]) == (str(tmp_path / ".."), str(TREE))
    with pytest.raises(CheckoutError, match="two commits at most"):
        commits(["a", "b", "c"])


@pytest.mark.needs("git")
def test_a_checkout_has_the_package_as_it_was_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "repository"
    (repository / "deepfs").mkdir(parents=True)
    file = repository / "deepfs" / "__init__.py"
    monkeypatch.setattr(checkouts, "ROOT", repository)
    as_somebody = ("-c", "user.name=A", "-c", "user.email=a@example.com")
    for command in (("init", "-q"), ("add", "."), (*as_somebody, "commit", "-qm", "First")):
        file.write_text("committed")
        subprocess.run(["git", *command], cwd=repository, check=True)
    file.write_text("changed")
    assert (check_out("HEAD", tmp_path / "a") / "deepfs" / "__init__.py").read_text() == "committed"
    assert (check_out(str(repository), tmp_path / "b") / "deepfs" / "__init__.py").read_text() == "changed"
    with pytest.raises(CheckoutError, match="neither a commit nor a directory"):
        check_out("no-such-commit", tmp_path / "c")


# --- a run -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path) -> Package:
    """Makes copies of deepfs in which `grep` of a composite also runs the given code."""

    def make(code: str) -> Path:
        directory = tmp_path / str(len(list(tmp_path.iterdir())))
        shutil.copytree(INSTALLED / "deepfs", directory / "deepfs", ignore=shutil.ignore_patterns("__pycache__"))
        with (directory / "deepfs" / "backends" / "composite.py").open("a") as file:
            file.write(f"{CHANGED}{code}\n    return found\n\n\nCompositeBackend.agrep = _changed\n")
        return directory

    return make


CHANGED: Final = """
_as_it_was = CompositeBackend.agrep


async def _changed(self, *args, **options):
    import time
    found = await _as_it_was(self, *args, **options)
    """


def run(tmp_path: Path, before: Path, after: Path) -> tuple[int, str]:
    """Compare two packages by the scenario `mounts`; returns the exit code and the output."""
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path / "pycache"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    options = ("--quick", "--pairs=1", f"--compare={before}", f"--compare={after}")
    command = [sys.executable, "-m", "benchmarks", *options, "mounts"]
    done = subprocess.run(command, cwd=TREE, env=env, capture_output=True, encoding="utf-8", check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.timeout(600)
@pytest.mark.stress
def test_a_large_slowdown_is_found(tmp_path: Path, package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "pycache"))
    given = [str(package("pass")), str(package("time.sleep(0.2)"))]
    plan = Plan(pairs=1, least=10, most=10, quick=True)
    comparison = compare.compare(given, ["mounts"], plan, tell=lambda line: None)
    assert [measurement.verdict for measurement in comparison.measurements] == ["slower"] * 3


@pytest.mark.timeout(600)
def test_different_answers_fail_the_comparison(tmp_path: Path, package: Package) -> None:
    code, printed = run(tmp_path, package("pass"), package("found.matches.pop()"))
    assert code == 1, printed
    assert "3 answers differ" in printed


@pytest.mark.timeout(600)
@pytest.mark.stress
def test_a_scenario_that_the_earlier_commit_cannot_run_is_reported(tmp_path: Path, package: Package) -> None:
    code, printed = run(tmp_path, package("raise LookupError('not in this commit')"), package("pass"))
    assert code == 0, printed
    assert "before: mounts failed" in printed
    assert "LookupError: not in this commit" in printed
