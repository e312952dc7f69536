"""Commands beside coreutils, findutils, grep, ripgrep and rclone: the same answer, or another one for a reason."""

import json
import os
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from support.command_line import deepfs
from support.copies import contents, fill

FILES: Final = {
    "a.txt": "alpha\nBeta beta\nalphabet\n\nfoo-bar foo_bar foo.bar\nx alpha\n",
    "src/b.py": "def f():\n    return alpha\n\n# café alpha_beta\nend",
    "src/deep/c.txt": "one\n" * 30 + "two alpha\n",
    "src/deep/.hidden": "alpha\n",
    "empty": "",
    "blank": "-a a-a\n\n",
    "large.bin": "x\0" * 5_000,
    "with space/s p.txt": "alpha alpha\n",
    "numbers": "".join(f"{number}\n" for number in range(1, 31)),
}


@pytest.fixture(autouse=True)
def in_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, (name, content) in enumerate(FILES.items()):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        os.utime(file, (1_700_000_000 + number * 86_400,) * 2)
    for number, name in enumerate(("src", "src/deep", "with space")):
        os.utime(tmp_path / name, (1_600_000_000 + number,) * 2)
    monkeypatch.chdir(tmp_path)


def plain(output: str) -> list[str]:
    return output.splitlines()


def in_any_order(output: str) -> list[str]:
    return sorted(output.splitlines())


def words(output: str) -> list[list[str]]:
    """Without the width of columns."""
    return [line.split() for line in output.splitlines()]


def sizes(output: str) -> list[tuple[str, str]]:
    """The size and the name in long rows, without the total above them and the sizes that directories have on disk."""
    rows = [line.split() for line in output.splitlines() if not line.startswith("total ")]
    found = [(row[4] if len(row) > 6 else row[0], row[-1]) for row in rows]
    return [(size, name) for size, name in found if not name.endswith("/")]


Normalize = Callable[[str], object]

# What another program is given, and what deepfs.
SAME: Final[list[tuple[str, str, Normalize]]] = [
    ("ls -p", "ls", plain),
    ("ls -p src 'with space'", "ls src 'with space'", plain),
    ("ls -pA src/deep", "ls -a src/deep", plain),
    ("ls -pR src", "ls -R src", plain),
    ("ls -pt", "ls -t", plain),
    ("ls -pRt src", "ls -Rt src", plain),
    ("ls -pl --time-style=long-iso", "ls -l", sizes),
    ("ls -plht --time-style=long-iso", "ls -lht", sizes),
    ("du -b a.txt numbers", "du -b a.txt numbers", words),
    ("du -h --apparent-size large.bin", "du -h large.bin", words),
    ("cat a.txt numbers", "cat a.txt numbers", plain),
    ("cat -n a.txt", "cat -n a.txt", plain),
    ("head -n3 numbers", "head -n3 numbers", plain),
    ("head -c7 numbers", "head -c7 numbers", plain),
    ("head -n1 a.txt numbers", "head -n1 a.txt numbers", plain),
    ("tail numbers", "tail numbers", plain),
    ("tail -n2 a.txt src/b.py", "tail -n2 a.txt src/b.py", plain),
    ("tail -n +29 numbers", "tail -n +29 numbers", plain),
    ("tail -n0 numbers", "tail -n0 numbers", plain),
    ("tail -n99 src/b.py", "tail -n99 src/b.py", plain),
    ("tail -c5 numbers", "tail -c5 numbers", plain),
    ("tail -c +70 numbers", "tail -c +70 numbers", plain),
    ("find src a.txt", "find src a.txt", in_any_order),
    ("find src -name '*.*' -type f", "find src -name '*.*' -type f", in_any_order),
    ("find src -type d", "find src -type d", in_any_order),
    ("find src -maxdepth 1", "find src -maxdepth 1", in_any_order),
    ("find src empty large.bin -size +1k -type f", "find src empty large.bin -size +1k", in_any_order),
    ("find src numbers empty -size -1k -type f", "find src numbers empty -size -1k", in_any_order),
    ("find src a.txt -size 60c", "find src a.txt -size 60c", in_any_order),
    ("find src -mtime +30 -name c.txt", "find src -mtime +30 -name c.txt", in_any_order),
    ("find src -mtime -1", "find src -mtime -1", in_any_order),
    ("grep -rnHE 'alpha|two' a.txt src/b.py", "grep -rnE 'alpha|two' a.txt src/b.py", plain),
    ("grep -nHw alpha a.txt src/b.py", "grep -w alpha a.txt src/b.py", plain),
    ("grep -nHwo 'fo*' a.txt", "grep -wo 'fo*' a.txt", plain),
    ("grep -nHow '[a-z]*' a.txt src/b.py", "grep -ow '[a-z]*' a.txt src/b.py", plain),
    ("grep -nHow 'a*' blank a.txt", "grep -ow 'a*' blank a.txt", plain),
    ("grep -nHv 'x*' blank", "grep -v 'x*' blank", plain),
    ("grep -nHiwF BETA a.txt", "grep -iwF BETA a.txt", plain),
    ("grep -nHv -C1 a a.txt src/b.py", "grep -v -C1 a a.txt src/b.py", plain),
    ("grep -nHw caf src/b.py", "grep -w caf src/b.py", plain),
    ("grep -cHv alpha a.txt src/b.py", "grep -cv alpha a.txt src/b.py", plain),
    ("rg -n alpha ./", "grep -n alpha ./", plain),
    ("rg -nw alpha ./", "grep -nw alpha ./", plain),
    ("rg -no '[a-z]+' ./", "grep -no '[a-z]+' ./", plain),
    ("rg -nv '^$' a.txt src/", "grep -nv '^$' a.txt src/", plain),
    ("rg -n -A1 -B2 beta ./", "grep -A1 -B2 beta ./", plain),
    ("rg -n -C1 alpha ./", "grep -C1 alpha ./", plain),
    ("rg -lv a ./", "grep -lv a ./", plain),
    ("rg -lF foo.bar ./", "grep -lF foo.bar ./", plain),
    ("rg -n -g '*.py' alpha ./", "grep -g '*.py' alpha ./", plain),
    ("rg -n alpha none", "grep alpha none", plain),
]  # fmt: skip

DIFFERENT: Final[dict[str, tuple[str, str]]] = {
    "directories are marked as by ls -p": ("ls", "ls"),
    "paths have no ./ before them": ("find .", "find ."),
    "directories have no size in most storages": ("find . -size +0c", "find . -size +0c"),
    "rows can be read by programs alike for one file and for several": ("grep alpha a.txt", "grep alpha a.txt"),
    "dot files are left out, as by ripgrep": ("grep -rn alpha src", "grep -rn alpha src"),
    "files without a match are not counted, as by ripgrep": ("grep -c Beta a.txt empty", "grep -c Beta a.txt empty"),
    "the most matches of all files together": ("rg -n -m1 alpha ./", "grep -m1 alpha ./"),
    "lines around are not shown with parts": ("rg -no -C1 beta a.txt", "grep -o -C1 beta a.txt"),
}


# What rclone is given, and what deepfs.
COPIED: Final = [
    ("copy src new", "cp -rT src new"),
    ("copy src other", "cp -rT src other"),
    ("copy src/b.py other/in", "cp -t other/in src/b.py"),
    ("copy --ignore-existing src other", "cp -rTn src other"),
    ("move src new", "mv -T src new"),
    ("sync src other", "sync --delete src other"),
    ("sync --dry-run src other", "sync --dry-run --delete src other"),
    ("sync --exclude 'deep/**' src other", "sync --delete --exclude 'deep/**' src other"),
    ("sync --exclude 'gone/' src other", "sync --delete --exclude 'gone/' src other"),
    ("sync --exclude '*.py' src other", "sync --delete --exclude '*.py' src other"),
    ("sync --exclude '*' src other", "sync --delete --exclude '*' src other"),
    ("sync --include '*.py' src other", "sync --delete --include '*.py' src other"),
    ("sync --include 'deep/**' src other", "sync --delete --include 'deep/**' src other"),
]


def theirs(command: str) -> tuple[int, str]:
    program, *given = shlex.split(command)
    if program == "rg":
        given = ["--no-config", "--no-heading", "-H", "--sort=path", *given]
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])  # That of the wheel.
    env = {**os.environ, "LC_ALL": "C.UTF-8", "PATH": path, "RCLONE_CONFIG": os.devnull}
    done = subprocess.run(
        [shutil.which(program, path=path) or program, *given], capture_output=True, env=env, check=False
    )
    return done.returncode, done.stdout.decode()


@pytest.mark.parametrize(("other", "ours", "normalize"), [pytest.param(*row, id=row[1]) for row in SAME])
def test_answers_are_the_same(other: str, ours: str, normalize: Normalize) -> None:
    outcome = deepfs(*shlex.split(ours))
    status, output = theirs(other)
    assert normalize(outcome.out) == normalize(output)
    assert outcome.status == status


def test_answers_differ_for_the_reasons_that_are_known() -> None:
    for reason, (other, ours) in DIFFERENT.items():
        assert deepfs(*shlex.split(ours)).out != theirs(other)[1], reason


@pytest.mark.needs("rclone")
@pytest.mark.parametrize(("other", "ours"), COPIED)
def test_trees_become_what_rclone_makes_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str, ours: str
) -> None:
    made: list[dict[str, bytes]] = []
    for name in ("theirs", "ours"):
        root = fill(tmp_path / name, {path: content.encode() for path, content in FILES.items()})
        fill(root / "other", {"b.py": b"old", "in/x": b"", "gone/.x": b"", "deep/.kept": b"", "numbers.py": b""})
        monkeypatch.chdir(root)
        assert (theirs(f"rclone {other}")[0] if name == "theirs" else deepfs(*shlex.split(ours)).status) == 0
        made.append(contents(root))
    assert made[0] == made[1]
    for one, two in (("theirs", "ours"), ("theirs/src", "ours/other"), ("ours/src/deep", "theirs/other")):
        first, second = tmp_path / one, tmp_path / two
        if first.exists():
            status, told = theirs(f"rclone check --combined - {first} {second}")
            outcome = deepfs("diff", "-q", first, second)
            assert outcome.status == status
            assert len(outcome.lines) == sum(not line.startswith("= ") for line in told.splitlines())


@pytest.mark.needs("rclone")
def test_sizes_are_those_that_rclone_counts() -> None:
    assert json.loads(theirs("rclone size --json src")[1])["bytes"] == int(deepfs("du", "src").out.split()[0])
    rows = [line.split(maxsplit=1) for line in theirs("rclone ls src")[1].splitlines()]
    found = [json.loads(line) for line in deepfs("find", "src", "-type", "f", "--json").lines]
    assert sorted((f"src/{name}", int(size)) for size, name in rows) == sorted(
        (row["path"], row["size"]) for row in found
    )
