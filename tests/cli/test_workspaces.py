"""The commands of workspaces and snapshots, and workspaces by address."""

import json
from pathlib import Path

import pytest

from deepfs import SqliteBackend
from deepfs.config import open_backend
from deepfs.config.workspaces import make_workspace
from support.command_line import deepfs


@pytest.fixture(autouse=True)
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory, which is in the current one, and a directory of this test for what the user's state has."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "src"
    (root / "sub").mkdir(parents=True)
    (root / "a.md").write_text("one\ntwo\nthree\n")
    (root / "b.md").write_text("b\n")
    (root / "sub/c.md").write_text("c\n")
    return root


def fork(tree: str = "src", workspace: str = "work.db") -> str:
    outcome = deepfs("fork", tree, workspace)
    assert (outcome.status, outcome.err) == (0, "")
    return outcome.out.rstrip("\n")


def test_a_fork_is_changed_looked_at_and_merged(tree: Path, tmp_path: Path) -> None:
    work = fork()
    assert work == f"workspace+sqlite:///{tmp_path}/work.db"
    assert deepfs("diff", "work.db") == (0, "", "")
    assert deepfs("edit", "/a.md", "one", "1", on=work).status == 0
    assert deepfs("write", "/new.md", "new\n", on=work).status == 0
    assert deepfs("rm", f"{work}/sub/c.md").status == 0
    assert deepfs("grep", "-l", "1|new", on=work).lines == ["/a.md", "/new.md"]
    assert deepfs("ls", on=work).lines == ["a.md", "b.md", "new.md"]
    assert (tree / "a.md").read_text() == "one\ntwo\nthree\n"

    shown = deepfs("diff", "work.db")
    assert shown.status == 1
    assert [line for line in shown.lines if line.startswith("diff")] == [
        "diff --git a/a.md b/a.md",
        "diff --git a/new.md b/new.md",
        "diff --git a/sub/c.md b/sub/c.md",
    ]
    assert deepfs("diff", "-q", "/sub", on=work) == (1, "deleted  /sub/c.md\n", "")
    records = [json.loads(line) for line in deepfs("diff", "--json", work).lines]
    assert [(each["path"], each["kind"]) for each in records] == [
        ("/a.md", "edited"),
        ("/new.md", "created"),
        ("/sub/c.md", "deleted"),
    ]

    (tree / "a.md").write_text("one\ntwo\n3\n")
    assert deepfs("merge", "work.db", "a.md") == (0, "/a.md: merged\n", "")
    assert (tree / "a.md").read_text() == "1\ntwo\n3\n"
    assert not (tree / "new.md").exists()
    assert deepfs("merge", "work.db", "a.md") == (1, "", "deepfs merge: nothing was changed there\n")
    assert deepfs("discard", "work.db", "/sub") == (0, "/sub/c.md: discarded\n", "")
    assert deepfs("merge", f"{work}#/").out == "/new.md: merged\n"
    assert (tree / "sub/c.md").exists()
    assert deepfs("diff", "work.db").status == 0


def test_conflicts_are_told_and_kept(tree: Path) -> None:
    work = fork()
    deepfs("edit", "/a.md", "two", "2", on=work)
    deepfs("write", "/new.md", "", on=work)
    (tree / "a.md").write_text("one\nTWO\nthree\n")
    assert deepfs("merge", "work.db", "--strategy", "refuse").status == 1
    assert not (tree / "new.md").exists()
    outcome = deepfs("merge", "work.db", "--conflicts", "/both")
    assert (outcome.status, outcome.out) == (1, "/new.md: merged\n")
    assert outcome.err.startswith("deepfs merge: '/a.md': both sides changed it; both sides are in '/both/a.md.mine-")
    assert (tree / "a.md").read_text() == "one\nTWO\nthree\n"
    assert sorted(path.read_text() for path in (tree / "both").iterdir()) == ["one\n2\nthree\n", "one\nTWO\nthree\n"]
    outcome = deepfs("merge", "work.db", "--json", "--conflicts", "")
    assert json.loads(outcome.out)["conflicts"][0]["kept"] == []
    assert deepfs("merge", "work.db", "--strategy", "mine").status == 0
    assert (tree / "a.md").read_text() == "one\n2\nthree\n"


def test_what_the_tree_refuses_stays(tree: Path, tmp_path: Path) -> None:
    rule = '[[permissions]]\noperations = ["write"]\npaths = ["/sub/**"]\n'
    (tmp_path / "deepfs.toml").write_text(f'url = "src"\n{rule}')
    work = fork("tree://deepfs.toml")
    assert deepfs("write", "-f", f"{work}#/sub/c.md", "mine").status == 0
    assert deepfs("merge", "work.db") == (1, "", "deepfs merge: '/sub/c.md': Permission denied\n")
    assert (tree / "sub/c.md").read_text() == "c\n"
    assert deepfs("merge", "work.db", "--into", "src").status == 0
    assert (tree / "sub/c.md").read_text() == "mine"


def test_forks_of_forks_and_of_databases(tmp_path: Path) -> None:
    with SqliteBackend(tmp_path / "files.db") as files:
        assert files.write("/a", "one").ok
    first = fork("sqlite:///files.db", "first.db")
    second = fork("workspace+sqlite:///first.db", f"workspace+file://{tmp_path}/second")
    assert deepfs("edit", "/a", "one", "two", on=second).status == 0
    assert deepfs("merge", "/", on=second).status == 0
    assert deepfs("cat", "/a", on=first).out == "two"
    assert deepfs("cat", "sqlite:///files.db#/a").out == "one"
    (tmp_path / "deepfs.toml").write_text(f'[mounts]\n"/work" = "{first}"\n')
    assert deepfs("cat", "/work/a", on="deepfs.toml").out == "two"


def test_wrong_use(tree: Path, tmp_path: Path) -> None:
    outcome = deepfs("fork", "none", "work.db")
    assert outcome == (1, "", "deepfs fork: File 'none' not found\n")
    assert not (tmp_path / "work.db").exists()
    assert "no database" in deepfs("merge", "work.db").err
    assert "part of" in deepfs("fork", f"file://{tree}#/sub", "work.db").err
    assert "no address of a workspace" in deepfs("fork", "src", "sqlite:///work.db").err
    deepfs("write", "sqlite:///plain.db#/a", "a")
    assert "there is no workspace" in deepfs("diff", "plain.db").err
    assert "in no workspace" in deepfs("diff", "sqlite:///plain.db").err
    fork()
    assert f"a workspace of file://{tree} already" in deepfs("fork", "src/sub", "work.db").err
    assert deepfs("fork", "src", "work.db").status == 0


# --- records of others -----------------------------------------------------------------------------------------------


def test_a_workspace_of_another_account_opens_nothing(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = fork()
    deepfs("write", "/.bashrc", "evil", on=work)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    (tmp_path / "deepfs.toml").write_text(f'[mounts]\n"/work" = "{work}"\n')
    for command in (["diff", "work.db"], ["merge", "work.db"], ["ls", work], ["--on", "deepfs.toml", "ls", "/work"]):
        outcome = deepfs(*command)
        assert (outcome.status > 0, outcome.out) == (True, "")
        assert f"one of file://{tree}, but this account did not make it" in outcome.err
    assert not (tree / ".bashrc").exists()
    assert "already" in deepfs("fork", "src/sub", "work.db").err
    assert "did not make it" in deepfs("diff", "work.db").err
    fork()
    assert deepfs("diff", "-q", "work.db").out == "created  /.bashrc\n"


@pytest.mark.parametrize(
    "record", ['{"lower": "file:///", "id": "0"}', '{"lower": 1}', "[" * 100_000, "", '{"lower": "x"}\n{}', "\x01"]
)
def test_forged_records_are_refused(record: str) -> None:
    deepfs("write", "sqlite:///work.db#/workspace.json", record)
    outcome = deepfs("merge", "work.db")
    assert (outcome.status, outcome.out) == (1, "")
    assert "no record" in outcome.err or "did not make it" in outcome.err


@pytest.mark.anyio
async def test_no_secret_and_no_variable_is_in_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", "src")
    async with open_backend("sqlite:///work.db") as storage:
        for url in ("postgresql://ada:pw@host/db", "s3://bucket?secret_access_key=pw"):
            with pytest.raises(ValueError, match="has a secret"):
                await make_workspace(storage, url)
        await make_workspace(storage, f"file://{tmp_path}/${{PLACE}}")
    async with open_backend("workspace+sqlite:///work.db", variables=["PLACE"]) as workspace:
        assert not (await workspace.aread("/a.md")).ok


# --- snapshots -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", ["sqlite:///kept.db", "kept", "src/.snapshots"])
def test_snapshots(tree: Path, storage: str) -> None:
    assert deepfs("snapshot", "src", "first", "--in", storage) == (0, "first: 3 files, 18\n", "")
    (tree / "b.md").write_text("changed\n")
    (tree / "sub/c.md").unlink()
    assert deepfs("snapshot", "src", "first", "--in", storage).status == 1
    shown = deepfs("diff", "src", "first", "--in", storage)
    assert (shown.status, "-b\n+changed\n" in shown.out) == (1, True)
    restored = deepfs("restore", "src", "first", "--in", storage, "--only", "/sub")
    assert restored == (0, "/sub/c.md: restored\n", "")
    assert deepfs("restore", "src", "first", "--in", storage, "--json").out.startswith('{"changed":["/b.md"],')
    assert deepfs("diff", "src", "first", "--in", storage) == (0, "", "")
    assert (tree / "b.md").read_text() == "b\n"
    listed = [json.loads(line) for line in deepfs("snapshots", "--in", storage, "--json").lines]
    assert [each["name"].partition("-")[0] for each in listed] == ["first", "before", "before"]
    assert deepfs("snapshots", "--in", storage, "--delete", "first").status == 0
    assert "not found" in deepfs("restore", "src", "first", "--in", storage).err
    assert deepfs("snapshot", "src", "--in", storage, "--keep", "1").status == 0
    assert len(deepfs("snapshots", "--in", storage).lines) == 1


def test_snapshots_need_a_storage() -> None:
    assert "--in STORAGE" in deepfs("snapshot", "src", "first").err
    assert "--in STORAGE" in deepfs("restore", "src", "first").err
    assert "--in goes with" in deepfs("diff", "src", "--in", "kept").err
