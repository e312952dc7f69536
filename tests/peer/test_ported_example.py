"""The ported program in examples/ prints the same in deepagents, with the imports and the one option as they were."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import deepfs

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
PORTED: Final = (EXAMPLES / "ported_from_deepagents.py").read_text(encoding="utf-8")
BEFORE: Final = {
    "from deepfs import SubAgent": "from deepagents import SubAgent",
    "from deepfs.backends import": "from deepagents.backends import",
    "from deepfs.backends.utils import": "from deepagents.backends.utils import",
    ", overwrite=True)": ")",
}
"""What stood in the program for deepagents, by what stands in its place."""


def started(program: Path) -> "subprocess.Popen[str]":
    paths = [str(EXAMPLES), str(Path(next(iter(deepfs.__path__))).parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUTF8": "1"}
    options = {"env": environment, "cwd": program.parent, "encoding": "utf-8"}
    return subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def test_the_program_does_the_same_in_both_libraries(tmp_path: Path) -> None:
    original = PORTED
    for ported, before in BEFORE.items():
        assert original.count(ported) == 1
        original = original.replace(ported, before)
    programs = {"here.py": PORTED, "there.py": original}
    for name, code in programs.items():
        (tmp_path / name).write_text(code, encoding="utf-8")
    running = [started(tmp_path / name) for name in programs]
    outputs = [process.communicate(timeout=120) for process in running]
    for process, (printed, failed) in zip(running, outputs, strict=True):
        assert process.returncode == 0, failed[-3000:]
        assert printed.splitlines() == [
            "march: The report is in /report.md.",
            *("taxi 36.0", "hotel 80.0", "sum 116.0", ""),
            "march: I will list tips apart.",
            "april: You want tips apart.",
        ]
