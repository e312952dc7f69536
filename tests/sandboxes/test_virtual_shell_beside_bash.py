"""Scripts run by VirtualShell and by GNU bash: equal output, exit code and files, or refused with a reason."""

import os
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from deepfs import FilesystemBackend
from deepfs.sandboxes import VirtualShell
from support.counts import few_or_many, telling
from support.shell_scripts import TREE, known_difference, scripts, some_scripts

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
MISSING = 127
Outcome = tuple[str, bool, int | None, dict[str, bytes | None]]
"""What was printed, whether something went to stderr, the exit code, and the files and directories."""


def fill(root: Path) -> None:
    for name, content in TREE.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def files_in(root: Path) -> dict[str, bytes | None]:
    found = {path.relative_to(root).as_posix(): path for path in root.rglob("*")}
    return {
        name: None if path.is_symlink() or not path.is_file() else path.read_bytes() for name, path in found.items()
    }


def by_bash(script: str, root: Path) -> Outcome:
    fill(root)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=root,
        env={**ENVIRONMENT, "HOME": os.fspath(root)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    )
    return done.stdout.decode(errors="replace"), bool(done.stderr), done.returncode, files_in(root)


def by_interpreter(script: str, root: Path) -> Outcome:
    fill(root)
    done = VirtualShell(FilesystemBackend(root), timeout=30).execute(script)
    lines = done.output.splitlines(keepends=True)
    shown = "".join(line for line in lines if not line.startswith("[stderr] "))
    return shown, "[stderr] " in done.output, done.exit_code, files_in(root)


def is_refused(outcome: Outcome, before: dict[str, bytes | None]) -> bool:
    shown, _, code, files = outcome
    says_why = shown.startswith("Error: ") or shown.endswith("[The command was ended, and nothing was changed]\n")
    return says_why and bool(code) and files == before


def is_equal(ours: Outcome, theirs: Outcome) -> bool:
    # Between stdout and stderr there is a newline more, if stdout has none at its end.
    shown = ours[0].removesuffix("\n") == theirs[0].removesuffix("\n") if ours[1] else ours[0] == theirs[0]
    return shown and ours[1:] == theirs[1:]


@pytest.mark.needs("bash", "dircolors")
@pytest.mark.parametrize("count", few_or_many(150, len(scripts())))
def test_each_script_gives_the_same_or_is_refused(
    count: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    tell = telling(record_property)
    differences: list[tuple[str, Outcome, Outcome]] = []
    figures: Counter[str] = Counter()
    for number, script in enumerate(some_scripts(count)):
        ours = by_interpreter(script, tmp_path / f"ours{number}")
        theirs = by_bash(script, tmp_path / f"bash{number}")
        before = {**dict.fromkeys(("src", "src/deep")), **TREE}
        if is_equal(ours, theirs):
            figures["equal"] += 1
        elif theirs[2] == MISSING:
            figures["not installed beside bash"] += 1
        elif is_refused(ours, before):
            figures["refused"] += 1
        elif reason := known_difference(script):
            figures[f"different: {reason}"] += 1
        else:
            differences.append((script, ours, theirs))
    for what, found in figures.most_common():
        tell(f"{found} of {count} scripts: {what}")
    assert not differences, differences[:3]
    assert figures["equal"] >= 0.9 * count
