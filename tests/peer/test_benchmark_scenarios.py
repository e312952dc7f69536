"""Scenarios that need no download run in their quick form, and return the results of deepagents where they claim so."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from benchmarks.record import Record
from benchmarks.runs import load

TREE: Final = Path(__file__).parents[2]


def run(tmp_path: Path, scenario: str) -> Record:
    """The record of a quick run of the scenario."""
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path / "pycache"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "benchmarks", "--quick", "--results", str(tmp_path), scenario]
    done = subprocess.run(command, cwd=TREE, env=env, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return load(tmp_path / f"{scenario}.json")[-1]


@pytest.mark.needs("postgresql")
@pytest.mark.timeout(600)
@pytest.mark.stress
def test_sequential_operations_on_every_storage(tmp_path: Path) -> None:
    races = run(tmp_path, "sequential").races
    storages = {race.work.partition(":")[0]: [entry.name for entry in race.entries] for race in races}
    both = ["deepfs", "deepagents"]
    stores = dict.fromkeys(("InMemoryStore", "AsyncSqliteStore", "AsyncPostgresStore"), both)
    assert storages == {"disk": both, "memory": ["deepfs"], **stores}
    assert len(races) == 5 * 6
    assert all(entry.complete for race in races for entry in race.entries)


@pytest.mark.needs("postgresql")
@pytest.mark.timeout(600)
@pytest.mark.stress
def test_listing_large_files_reports_the_bytes_transferred(tmp_path: Path) -> None:
    record = run(tmp_path, "listing")
    assert all(race.entry("deepfs").complete for race in record.races)
    assert [race.entry("deepfs").answer for race in record.races] == ["300 paths"] * 6
    assert len([note for note in record.notes if "MB from the database" in note]) == 3
    assert len(record.bars) == 4
    # The paths are transferred too.
    assert all(bar.typical > 0 for bar in record.bars if "first" in bar.claim)
