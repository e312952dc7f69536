"""`.gitignore` files of a tree are bounded, compiled under the deadline of the search, and never end it."""

from pathlib import Path

import pytest

from deepfs.disk import Disk
from deepfs.search import gitignore
from deepfs.search.disk import LocalSearch
from deepfs.search.request import GlobRequest, GrepRequest
from deepfs.threads.deadline import Deadline
from support.promises import keeps
from support.searches import run_alone

DEPTH, LINES = 20, 100


class Passing(Deadline):
    """Passes after it was asked some times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._left = times

    @property
    def has_passed(self) -> bool:
        self._left -= 1
        return self._left < 0


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines of ignore files that are compiled."""
    seen: list[str] = []
    rules = gitignore._rules
    monkeypatch.setattr(gitignore, "_rules", lambda line: seen.append(line) or rules(line))
    return seen


def deep(root: Path) -> str:
    """Make a tree with an ignore file in every directory; returns the path of the last directory."""
    directory = root
    for level in range(DEPTH):
        directory = directory / "d"
        directory.mkdir()
        (directory / ".gitignore").write_text("\n".join(f"{root}/{level}/{line}" for line in range(LINES)))
    (directory / "file").write_text("needle")
    return "/" + str(directory.relative_to(root))


@keeps("compiling them counts towards its time")
@pytest.mark.parametrize("starts_deep", [True, False])
@pytest.mark.parametrize("limit", [0, 10, 1000])
def test_rules_are_compiled_under_the_deadline(tmp_path: Path, lines: list[str], starts_deep: bool, limit: int) -> None:
    path = deep(tmp_path)
    path = path if starts_deep else "/"
    search = LocalSearch(Disk(str(tmp_path)), ignore="git")
    result = run_alone(search, GrepRequest("needle", path), Passing(limit), path)
    assert result.truncated
    assert not result.matches
    assert len(lines) <= limit
    assert run_alone(search, GlobRequest("**", path), Passing(limit), path).truncation_reason == "budget"
    assert len(run_alone(search, GrepRequest("needle", path), None, path).matches) == 1
    assert len(lines) >= DEPTH * LINES


def test_a_file_that_cannot_be_compiled_is_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pattern: str) -> str:
        raise RecursionError(pattern)

    (tmp_path / ".gitignore").write_text(f"{tmp_path}\n*.txt")
    (tmp_path / "file.txt").write_text("needle")
    monkeypatch.setattr(gitignore, "_expression", refuse)
    result = run_alone(LocalSearch(Disk(str(tmp_path)), ignore="git"), GrepRequest("needle"))
    assert [match.path for match in result.matches] == ["/file.txt"]
    assert (result.error, result.skipped) == (None, 1)


@keeps("and 2 MiB a search")
def test_all_ignore_files_of_a_search_together_are_bounded(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"d{number:02}").mkdir()
        (tmp_path / f"d{number:02}" / "file").write_text("needle")
        (tmp_path / f"d{number:02}" / ".gitignore").write_text(f"file\n#{number}{'x' * 125_000}")
    result = run_alone(LocalSearch(Disk(str(tmp_path)), ignore="git"), GrepRequest("needle"))
    assert [match.path for match in result.matches] == [f"/d{number:02}/file" for number in range(16, 20)]
    assert result.skipped == 4
