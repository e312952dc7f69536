"""The demo, run twice in an empty directory as a newcomer runs it: the second run finds the memories of the first."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

import deepfs

DEMO: Final = Path(__file__).parents[1] / "examples" / "demo.py"
WIDTHS: Final = (80, 120)
ENVIRONMENT: Final = {
    **os.environ,
    "PYTHONPATH": str(Path(next(iter(deepfs.__path__))).parent),
    "PYTHONUTF8": "1",
}

pytestmark = pytest.mark.timeout(300)


def run_demo(directory: Path, width: int) -> str:
    environment = {**ENVIRONMENT, "COLUMNS": str(width)}
    command = [sys.executable, str(DEMO)]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_second_run_finds_the_memories_of_the_first(tmp_path: Path) -> None:
    first, second = runs = [run_demo(tmp_path, width) for width in WIDTHS]
    assert "run-002" not in first
    assert "1 run remembered in .demo/memories.db" in first
    assert "first: /memories/run-001.md" in second
    assert "2 runs remembered in .demo/memories.db" in second
    assert [path.name for path in tmp_path.iterdir()] == [".demo"]
    assert (tmp_path / ".demo" / "memories.db").is_file()
    for printed, width in zip(runs, WIDTHS, strict=True):
        found = printed.partition("agrep('get_config')")[2].partition("╰")[0]
        assert all(f"of {mount}, first:" in found for mount in ("/", "/memories/", "/src/"))
        assert "50 succeeded" in printed
        assert "50 lines in 1 file of /memories/, first:" in printed, "an edit was lost"
        assert printed.count("Error: ") == 3
        for condition in ("already exists", "String not found", "'/src/no/such/file.py' not found"):
            assert condition in printed
        assert {len(line) for line in printed.splitlines() if line.startswith("╭")} == {width}
        assert max(map(len, printed.splitlines())) <= width


@pytest.mark.needs("postgresql")
def test_the_demo_on_servers(tmp_path: Path) -> None:
    command = [sys.executable, str(DEMO.with_name("servers.py"))]
    environment = {**ENVIRONMENT, "COLUMNS": "120"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for shown in (
        "/artifacts/report.txt:43  measure 00042",
        "50 succeeded",
        "50 lines in 1 file of /memories/",
        "created: /memories/from-elsewhere.md",
        "Its state holds /plan.md; the rest is on servers.",
    ):
        assert shown in done.stdout
    assert list(tmp_path.iterdir()) == []
