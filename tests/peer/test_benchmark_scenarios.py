"""Scenarios that need no download run in their quick form, and return the results of deepagents where they claim so."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from benchmarks import inputs
from benchmarks.eviction import evicting, pages_evicted
from benchmarks.record import Record
from benchmarks.runs import load
from benchmarks.scenarios import filesystems
from benchmarks.scenarios import sequential as sequential_operations

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
    assert len(races) == 5 * 8
    assert all(entry.complete for race in races for entry in race.entries)


@pytest.mark.timeout(600)
@pytest.mark.stress
def test_concurrent_reads_of_large_files_report_the_memory_besides_the_results(tmp_path: Path) -> None:
    record = run(tmp_path, "memory")
    assert [race.entry("deepfs").answer for race in record.races] == ["200 results"] * 2
    assert len(record.bars) == 2
    # Each of the 200 results of the first race has 1 MB.
    assert all(0 < bar.typical < 200 for bar in record.bars)


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


# --- parts of scenarios ----------------------------------------------------------------------------------------------


def test_evicted_files_are_not_in_memory_until_they_are_read(tmp_path: Path) -> None:
    file = tmp_path / "directory" / "file"
    file.parent.mkdir()
    file.write_bytes(b"content")
    (tmp_path / "link").symlink_to(file)
    # None where the file system does not tell, as tmpfs.
    assert pages_evicted(file) in (False, None)
    with evicting(tmp_path)():
        assert pages_evicted(file) in (True, None)
    assert file.read_bytes() == b"content"
    assert pages_evicted(file) in (False, None)


def test_an_overlay_is_mounted_for_the_command_only_or_the_refusal_is_told(tmp_path: Path) -> None:
    lower, layers = tmp_path / "lower", tmp_path / "layers"
    for directory in (lower, *(layers / name for name in ("upper", "work", "merged"))):
        directory.mkdir(parents=True)
    (lower / "file").write_text("below")
    refusal = filesystems._refusal(lower, layers)
    done = filesystems._on_overlay(lower, layers, ["cat", str(layers / "merged" / "file")])
    assert (done.returncode, done.stdout) == ((0, b"below") if not refusal else (done.returncode or 77, b""))
    assert not list((layers / "merged").iterdir())


def test_a_machine_without_unshare_has_no_overlay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert filesystems._refusal(tmp_path, tmp_path) == "unshare is not installed"


def test_the_copy_on_tmpfs_has_all_files_and_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "python_files", lambda: {"/a/b.py": "import a\n"})
    with filesystems._in_memory() as copy:
        assert copy is None or (copy / "a" / "b.py").read_text() == "import a\n"
    assert copy is None or not copy.exists()
    monkeypatch.setattr(filesystems, "_SHARED_MEMORY", Path("/proc"))
    with filesystems._in_memory() as copy:
        assert copy is None


EQUAL_TEXTS: Final = """
import asyncio, sys
from pathlib import Path
from benchmarks import harness, inputs
from benchmarks.readers import concurrent, readers, sequential
root, paths = sys.argv[1], list(inputs.flat_files(20))
inputs.write_tree(Path(root), inputs.flat_files(20))
for contenders in (concurrent, sequential):
    race = harness.race("reads", contenders(readers(root), root, paths), noun="files", rounds=1, seconds=1)
    print(*(entry.answer for entry in asyncio.run(race).entries), sep=", ")
"""


def test_all_ways_to_read_give_equal_texts(tmp_path: Path) -> None:
    command = [sys.executable, "-c", EQUAL_TEXTS, str(tmp_path)]  # They may block their event loop.
    done = subprocess.run(command, cwd=TREE, capture_output=True, encoding="utf-8", check=False)
    assert done.stdout.splitlines() == [", ".join(["20 files"] * 6)] * 2, done.stderr


@pytest.mark.anyio
async def test_what_restores_the_files_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    async def restore(backend: object, paths: list[str]) -> list[object]:
        clock[0] += 60
        return []

    async def delete(backend: object, paths: list[str]) -> list[str]:
        clock[0] += 1
        return paths

    operation = sequential_operations._Operation("deletes", "adelete(path)", delete, before=restore)
    assert await sequential_operations._timed(operation, None, ["/a"]) == (1.0, ["/a"])
