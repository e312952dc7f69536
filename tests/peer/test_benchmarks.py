"""The benchmarks: equal answers are demanded, a quick run works, the documents have the stored figures."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks import report
from benchmarks.bench import Bench, Contender
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


def race(bench: Bench, *answers: Any) -> Any:
    """A race of contenders that give these answers."""
    names = [*map(str, range(1, len(answers))), "last"]
    contenders = [
        Contender(name, "", lambda answer=answer: answer, list) for name, answer in zip(names, answers, strict=True)
    ]
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


# --- stored runs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", report.DOCUMENTS, ids=lambda document: document.name)
def test_documents_have_the_figures_of_the_stored_runs(document: Path) -> None:
    written = document.read_text(encoding="utf-8")
    assert written == report.replaced(document, stored()), "nox -s bench -- --write writes them anew"


def test_stored_runs_lie_in_the_directories_of_their_machines_and_name_no_other_place() -> None:
    for path in RESULTS.glob("*/*.json"):
        assert {record.directory for record in load(path)} == {path.parent.name}
        assert not re.search(r"/(home|root|tmp|work|Users)/", path.read_text(encoding="utf-8")), path
