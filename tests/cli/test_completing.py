"""What shells offer for an address."""

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from deepfs import SqliteBackend
from deepfs.cli.app import app
from support.command_line import COMMAND, deepfs


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs/.git").mkdir(parents=True)
    (tmp_path / "docs/a b.md").write_text("")
    (tmp_path / "docs/empty").write_text("")
    (tmp_path / "docs/50% of #1?.md").write_text("")
    (tmp_path / "docs/forged\nname").write_text("")
    with SqliteBackend(tmp_path / "files.db") as backend:
        assert backend.write("/notes/plan.md", "").ok
        assert backend.write("/notes/it's;$(x) é.md", "").ok
    (tmp_path / "tree.toml").write_text('url = "docs"\n[mounts]\n"/m" = "sqlite:///files.db"\n')
    (tmp_path / "far.toml").write_text('url = "docs"\n[mounts]\n"/m" = "s3://bucket"\n')
    (tmp_path / "new.toml").write_text('url = "docs"\n[mounts]\n"/m" = "sqlite:///new.db"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("deepfs.cli.session._COMPLETION_SECONDS", 600.0)


def asked(*words: str) -> dict[str, str]:
    """The variables by which bash asks for the last word; it has split the words at `:` and `=`."""
    return {
        "_DEEPFS_COMPLETE": "bash_complete",
        "COMP_WORDS": "\n".join(["deepfs", *words]),
        "COMP_CWORD": str(len(words)),
    }


def offered(*words: str, **variables: str) -> list[str]:
    """What the command offers to bash."""
    result = CliRunner().invoke(app, prog_name="deepfs", env={**asked(*words), **variables})
    assert (result.exit_code, result.stderr) == (0, ""), result
    return [line for line in result.stdout.splitlines() if line]


OFFERED: list[tuple[list[str], list[str]]] = [
    (["gr"], ["plain,grep"]),
    (["cat", "do"], ["file,do"]),
    (["cp", "a", "do"], ["file,do"]),
    (["cat", "sqlite", ":", "///"], ["plain,///docs/", *(f"plain,///{name}#/" for name in
     ("far.toml", "files.db", "new.toml", "tree.toml"))]),
    (["cat", "sqlite", ":", "///files.db#/no"], ["plain,///files.db#/notes/"]),
    (["cat", "sqlite", ":", "///files.db/notes/p"], ["plain,///files.db/notes/plan.md"]),
    (["cat", "sqlite", ":", "///files.db?namespace", "=", "files#/notes/p"], ["plain,files#/notes/plan.md"]),
    (["cat", "'sqlite:///files.db#/notes/i"], ["plain,sqlite:///files.db#/notes/it's;$(x) é.md"]),
    (["ls", "file", ":", "//{here}/docs/"], ["plain,//{here}/docs/a b.md", "plain,//{here}/docs/empty"]),
    (["ls", "file", ":", "///{here}#/docs/.g"], ["plain,///{here}#/docs/.git/"]),
    (["--on", "tree.toml", "cat", "/"], ["plain,/50% of #1?.md", "plain,/a b.md", "plain,/empty", "plain,/m/"]),
    (["cat", "--on", "tree.toml", "m/notes/p"], ["plain,m/notes/plan.md"]),
    (["cat", "tree", ":", "//tree.toml#/m/no"], ["plain,//tree.toml#/m/notes/"]),
    (["cat", "tree", ":", "//far.toml#/"], []),
    (["cat", "tree", ":", "//new.toml#/"], []),
    (["cat", "tree", ":", "//none.toml#/"], []),
    (["cat", "sqlite", ":", "///none.db#/"], []),
    (["cat", "sqlite", ":", "///docs/empty/"], []),
    (["cat", "sqlite", ":", "///docs/empty#/"], []),
    (["cat", "s3", ":", "//bucket/"], []),
    (["cat", "postgresql", ":", "//host/db#/"], []),
    (["cat", "store+sqlite", ":", "///files.db#/"], []),
]  # fmt: skip


def test_a_shell_gets_a_script() -> None:
    for shell in ("bash", "zsh", "fish"):
        assert f"_DEEPFS_COMPLETE={shell}_complete" in deepfs("completion", shell).out
    assert "compopt -o filenames" in deepfs("completion", "bash").out, "names must be quoted for the shell"


def test_addresses_on_this_machine_are_offered_and_nothing_is_made(tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for words, expected in OFFERED:
        here = str(tmp_path)[1:] if "///{here}" in "".join(words) else str(tmp_path)
        found = offered(*(word.replace("{here}", here) for word in words))
        assert sorted(found) == sorted(each.replace("{here}", here) for each in expected), words
    assert offered("cat", "/m/", DEEPFS_ON="tree.toml") == ["plain,/m/notes/"]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_shell_does_not_wait_for_what_hangs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tree")
    env = {**os.environ, **asked("cat", "tree", ":", "//tree#/")}
    done = subprocess.run(COMMAND, env=env, capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")
