"""The commands cp, mv and rm: what arguments mean, beside the tools of the system, and copies between backends."""

import json
import os
import stat
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.copies import HOSTILE, command, contents, fill, tree
from support.disks import Swapping, recorded_modes

if TYPE_CHECKING:
    from support.object_stores import S3Server
    from support.redis_server import RedisServer


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


# --- beside the tools of the system ----------------------------------------------------------------------------------

FILES = {"a": b"A", "b": b"other b", "d/a": b"in d", "d/sub/x": b"X", "e/a": b"old", "e/sub/y": b"Y", "f/d/a": b"older"}

SAME_AS_CP = (
    "a new|a b|a d|a new/|a none/new|a b d|a b none|a b b|a a|a d/../a|none new|d new|-r d new|-r d new/|-r d/ new|"
    "-r d e|-r d/. e|-rT d e|-r d f|-r d a|-T a d|-r d a e|-r none a e|-n a b|-rn d f|-t d a b|-u a b|-u b a|"
    "-- -dash d|d/a e/a f|empty new|-r empty new"
)
SAME_AS_MV = (
    "a new|a b|a d|d new|d e|d f|e f|a b d|a none/new|none x|a a|d d/sub|-n a b|empty d|empty e/sub|-T empty new|"
    "-T a d|-T d a|d/. e|-T d empty|-u b a|-u a b|a new/"
)
SAME_AS_RM = "a|d|-r d|-r d a|-f none|none a|-rf none d|-r .|-- -dash|-r d/.|empty"


def _outcome(root: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[[], tuple[int, str]]) -> Any:
    """What a command does in a tree: its status, whether it says something, and the tree that it leaves."""
    fill(root, {**FILES, "-dash": b"-"})
    (root / "empty").mkdir()
    (root / "a").chmod(0o755)
    os.utime(root / "b", (1, 1))
    monkeypatch.chdir(root)
    status, told = run()
    found = tree(root)
    found.update({name: content for name, content in contents(root).items() if name in FILES})  # Without the mode.
    return status, bool(told), found


def _of_system(*call: str) -> tuple[int, str]:
    done = subprocess.run(call, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    return done.returncode, done.stderr


def _of_deepfs(*call: str) -> tuple[int, str]:
    done = command(*call)
    return done.status, done.err


def _with_address(given: list[str], root: Path) -> list[str]:
    """The arguments of cp, with an address of another backend in place of the target."""
    last = given.index("-t") + 1 if "-t" in given else len(given) - 1
    return [*given[:last], f"file://{root}#/" + given[last].replace("d/../", ""), *given[last + 1 :]]


@pytest.mark.parametrize(("tool", "cases"), [("cp", SAME_AS_CP), ("mv", SAME_AS_MV), ("rm", SAME_AS_RM)])
def test_commands_do_as_the_system_does(tool: str, cases: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    different = []
    for number, arguments in enumerate(cases.split("|")):
        root, given = tmp_path / str(number), arguments.split()
        theirs = _outcome(root / "theirs", monkeypatch, partial(_of_system, tool, *given))
        ours = _outcome(root / "ours", monkeypatch, partial(_of_deepfs, tool, *given))
        if ours != theirs:
            different.append((arguments, ours, theirs))
        if tool == "cp":  # Between two backends.
            call = [tool, *_with_address(given, root / "between")]
            between = _outcome(root / "between", monkeypatch, partial(_of_deepfs, *call))
            if between != theirs:
                different.append((call, between, theirs))
    assert different == []


def test_rm_of_a_root_is_refused_until_it_is_meant(tmp_path: Path) -> None:
    root = fill(tmp_path, {"a": b"A"})
    assert command("rm", "-rf", "--no-preserve-root", "/").status == 1
    assert command("rm", "-rf", f"file://{root}#/").status == 1
    assert contents(root) == {"a": b"A"}
    assert command("rm", "-r", "--no-preserve-root", f"file://{root}#/").status == 0
    assert contents(root) == {}


# --- between backends ------------------------------------------------------------------------------------------------


def test_messages_are_those_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, {"a": b"A", "d/b": b"B", "\x1b[31mred\n/x": b""})
    monkeypatch.chdir(tmp_path)
    assert command("cp", "none", "x").err == "deepfs cp: cannot stat 'none': No such file or directory\n"
    assert command("cp", "d", "x").err == "deepfs cp: -r not specified; omitting directory 'd'\n"
    assert command("cp", "a", "d", "a").err == "deepfs cp: target 'a': Not a directory\n"
    assert command("cp", "-r", "d", "d/x").err == "deepfs cp: cannot copy a directory, 'd', into itself, 'd/x'\n"
    assert command("mv", "a", "./a").err == "deepfs mv: 'a' and './a' are the same file\n"
    assert command("rm", "d").err == "deepfs rm: cannot remove 'd': Is a directory\n"
    assert command("rm", "\x1b[31mred\n").err == r"deepfs rm: cannot remove '\x1b[31mred\n': Is a directory" + "\n"
    assert command("cp", "a").status == 2
    assert command("cp", "-fn", "a", "b").status == 2


def test_rm_asks(tmp_path: Path) -> None:
    root = fill(tmp_path, {"a": b"A", "b": b"B"})
    assert command("rm", "-i", root / "a", root / "b", input="n\ny\n").status == 0
    assert contents(root) == {"a": b"A"}


@pytest.fixture
def places(tmp_path: Path, postgres_files_dsn: str, redis_server: "RedisServer", s3_server: "S3Server") -> list[str]:
    """Addresses of empty directories in each kind of backend."""
    options = "&".join(f"{name}={value}" for name, value in s3_server.options().items())
    s3 = f"s3://bucket/{s3_server.prefix()}?endpoint={s3_server.url}&allow_http=true&{options}"
    return [
        f"sqlite:///{tmp_path}/files.db?namespace=ada",
        f"{postgres_files_dsn}&namespace={tmp_path.name}",
        f"{redis_server.url}&namespace={tmp_path.name}&expires_after=1000",
        s3,
        f"store+sqlite:///{tmp_path}/store.db",
        str(tmp_path / "back"),
    ]


def test_bytes_survive_a_journey_through_all_backends(tmp_path: Path, places: list[str]) -> None:
    source = fill(tmp_path / "files", HOSTILE)
    (source / "a" / "b").chmod(0o750)
    (source / "name with spaces").chmod(0o600)
    here: str | Path = source
    (tmp_path / "back").mkdir()
    for place in places:
        ran = command("cp", "-r", "--json", "-t", place, here)
        summary = json.loads(ran.out)
        assert (ran.status, ran.err, summary["files"], summary["failed"]) == (0, "", len(HOSTILE), 0), place
        assert summary["bytes"] == sum(map(len, HOSTILE.values()))
        again = json.loads(command("cp", "-r", "--json", "-t", place, here).out)
        assert (again["files"], again["skipped"]) == (0, len(HOSTILE))
        here = f"{place.replace('?', '/files?')}" if place.startswith("s3") else f"{place}#/files"
    assert contents(tmp_path / "back" / "files") == HOSTILE
    # Modes are kept where both ends have them.
    assert command("cp", "-r", source, f"file://{tmp_path}#/copy").status == 0
    assert tree(tmp_path / "copy") == tree(source)


def test_a_second_run_stores_exactly_what_differs(tmp_path: Path) -> None:
    source, database = fill(tmp_path / "src", {f"{n:03}": b"%d" % n for n in range(300)}), f"sqlite:///{tmp_path}/x.db"
    assert command("cp", "-r", source, database).status == 0
    changed = source / "007"
    before = changed.stat()
    changed.write_bytes(b"8")  # The same size, and the same time.
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert command("write", "-f", f"{database}#/src/009", "x").status == 0
    (source / "new").write_bytes(b"new")
    summary = json.loads(command("cp", "-r", "--json", source, database).out)
    assert (summary["files"], summary["skipped"]) == (3, 298)
    assert command("cp", "-rT", f"{database}#/src", tmp_path / "back").status == 0
    assert contents(tmp_path / "back") == contents(source)


def test_what_the_options_leave_alone(tmp_path: Path) -> None:
    source, target = fill(tmp_path / "src", {"a": b"new", "b": b"same", "c": b"c"}), tmp_path / "dst"
    fill(target, {"a": b"old", "b": b"same"})
    os.utime(source / "a", (1, 1))
    for option, expected in (("-n", b"old"), ("-u", b"old"), ("--size-only", b"old"), ("--verify=size", b"new")):
        assert command("cp", "-rT", option, source, f"file://{target}#/").status == 0
        assert contents(target)["a"] == expected, option
    assert contents(target) == contents(source)


@pytest.mark.parametrize(("there", "verify"), [(None, "read"), (0o644, "none"), (0o644, "read")])
def test_copies_of_private_files_are_private_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: int | None, verify: str
) -> None:
    files = {"small": b"s", "large": b"l" * 9_000_000}
    source, target = fill(tmp_path / "source", files), tmp_path / "target"
    if there is not None:
        fill(target, {"small": b"old", "large": b"old"})
    for path in [*source.iterdir(), *target.glob("*")]:
        path.chmod(0o600 if path.parent == source else there or 0)
    modes = recorded_modes(monkeypatch, tmp_path)
    assert command("cp", "-rT", "--verify", verify, f"file://{source}", target).status == 0
    assert modes == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in target.iterdir()} == {0o600}


# --- links that others put into the target ---


def plant(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a target in it, whose links lead out of the target, and sources of the same names."""
    root.mkdir()
    monkeypatch.chdir(root)
    fill(root / "source", {"cfg/key": b"new", "missing": b"new", "there": b"new", "z/rest": b"new"})
    fill(root / "home", {"there": b"old", "keys/old": b"old"})
    (root / "target").mkdir()
    for name, leads_to in (("cfg", "keys"), ("missing", "missing"), ("there", "there")):
        (root / "target" / name).symlink_to(Path("..", "home", leads_to))
    command("cp", "-r", "source/.", "sqlite:///files.db#/")
    return root


THROUGH_LINKS = [
    "cp -rT source target",
    "cp -r --verify none source/. target",
    "cp source/missing source/there target",
    "cp source/missing target",
    "cp source/missing target/missing",
    "cp -r source/cfg target",
    "cp -r sqlite:///files.db#/. target",
    "cp -r sqlite:///files.db#/cfg target",
    "cp sqlite:///files.db#/missing target",
    "cp sqlite:///files.db#/there target",
    "cp -r source/. file://{}/target",
    "mv source/cfg source/missing source/there target",
    "mv sqlite:///files.db#/cfg sqlite:///files.db#/there target",
]


def test_nothing_is_written_through_links_in_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, arguments in enumerate(THROUGH_LINKS):
        root = plant(tmp_path / str(number), monkeypatch)
        before, kept = tree(root / "home"), contents(root / "source")
        ran = command(*arguments.format(root).split())
        assert ran.status == 1, arguments
        assert "link" in ran.err or "Permission denied" in ran.err, arguments
        assert tree(root / "home") == before, arguments
        assert contents(root / "source") == kept, arguments
        if "/." in arguments or "-rT" in arguments:
            assert (root / "target" / "z" / "rest").read_bytes() == b"new"


def test_a_target_that_is_named_may_be_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = plant(tmp_path / "root", monkeypatch)
    (root / "link").symlink_to("home")
    assert command("cp", "source/there", "target/there").status == 0
    assert command("cp", "-r", "source/z", "link").status == 0
    assert contents(root / "home") == {"keys/old": b"old", "there": b"new", "z/rest": b"new"}


def test_links_that_appear_in_the_target_meanwhile_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    source = fill(tmp_path / "source", {f"d/{number}": b"x" for number in range(200)})
    (tmp_path / "target" / "d").mkdir(parents=True)
    with Swapping(tmp_path / "target" / "d", outside) as swapping:
        for _ in range(3):
            command("cp", "-rT", source, tmp_path / "target")
    assert swapping.count > 0
    assert list(outside.iterdir()) == []


def test_links_are_told_and_the_rest_is_copied(tmp_path: Path) -> None:
    source = fill(tmp_path / "src", {"a": b"A"})
    (source / "link").symlink_to("a")
    (source / "away").symlink_to("/etc")
    ran = command("cp", "-r", source, f"sqlite:///{tmp_path}/x.db")
    assert ran.status == 1
    assert f"cannot copy '{source}/link': it is a symbolic link, which is not followed" in ran.err
    assert command("ls", f"sqlite:///{tmp_path}/x.db#/src").out == "a\n"
    # A link that is named itself is followed.
    assert command("cp", source / "link", f"sqlite:///{tmp_path}/x.db").status == 0
    assert command("cat", f"sqlite:///{tmp_path}/x.db#/link").out == "A"


def test_a_full_target_ends_the_copy_and_holds_whole_files(tmp_path: Path) -> None:
    source = fill(tmp_path / "src", {f"{n:04}": bytes([65 + n % 26]) * 1000 for n in range(1600)})
    (tmp_path / "tree.toml").write_text(f'url = "{tmp_path}/dst"\n[limits]\nmax_bytes = 1_200_000\n')
    (tmp_path / "dst").mkdir()
    ran = command("--on", tmp_path / "tree.toml", "cp", "-r", "--json", f"file://{source}#/", "/")
    assert (ran.status, json.loads(ran.out)["files"]) == (1, 1200)
    assert "stores nothing more: Quota exceeded. Run the same command again to go on" in ran.err
    copied = contents(tmp_path / "dst")
    assert len(copied) == 1200
    assert copied.items() <= contents(source).items()
    assert command("cp", "-rT", source, f"file://{tmp_path}/dst#/").status == 0
    assert contents(tmp_path / "dst") == contents(source)


def test_mv_between_backends(tmp_path: Path) -> None:
    source, files = tmp_path / "src", {"a": b"A", "d/b": b"B\r\n", "d/e/c": b"\0"}
    fill(source, files)
    assert command("mv", source, f"sqlite:///{tmp_path}/x.db").status == 0
    assert not source.exists()
    assert command("mv", f"sqlite:///{tmp_path}/x.db#/src", source).status == 0
    assert contents(source) == files
    assert command("ls", f"sqlite:///{tmp_path}/x.db").out == ""
    (source / "empty").mkdir()
    refused = command("mv", source, f"sqlite:///{tmp_path}/x.db")
    assert refused.status == 1
    assert "keeps no empty directories" in refused.err
    assert contents(source) == files
    assert command("mv", "-n", source / "a", f"file://{tmp_path}#/new").status == 0
    assert (tmp_path / "new").read_bytes() == b"A"
