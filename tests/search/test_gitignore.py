"""Gitignore rules: agreement with git, and details that only a search needs."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepfs.disk import Disk
from deepfs.search.disk import LocalSearch
from deepfs.search.gitignore import Ignoring, compile_rules, rules_of_file
from deepfs.search.request import GlobRequest
from support.promises import keeps
from support.searches import run_alone

# --- rules -----------------------------------------------------------------------------------------------------------

VERDICTS = [
    # The lines; a path, which is a directory if it ends in `/`; whether it is ignored, or None if no rule matches.
    (["a"], "b/a", True),
    (["a/"], "b/a/", True),
    (["/a"], "b/a", None),
    (["a/b/"], "a/b", None),
    (["!keep.log", "*.log"], "keep.log", True),
    (["*", "!*/", "!*.py"], "a.txt", True),
    (["*", "!/a/"], "a/b", True),
    (["a/**", "!a/b"], "a/b", False),
    (["**/a"], "b/c/a", True),
    (["a/**/b"], "a/b/c", None),
    (["**/"], "a", None),
    (["[!ab]"], "a", None),
    (["\\#a"], "#a", True),
    (["!#a"], "#a", False),
    (["a  "], "a", True),
    (["a\t"], "a\t", True),
    (["core.[[:digit:]]", "*.py[cod]"], "core.1", True),
    (["[![:alpha:]_]*"], "1a", True),
    (["[[:digit:]x]*"], "xa", True),
    (["a/x[+-9]y"], "a/x/y", None),
    (["[\\]a]"], "]", True),
    (["[z-a]"], "a", None),
    (["c/a**b"], "c/a/b", None),
    (["", "/", "!", "   "], "a", None),
    (["é"], "b/é", True),
]


def test_the_last_matching_rule_decides(subtests: pytest.Subtests) -> None:
    for lines, path, expected in VERDICTS:
        with subtests.test(lines=lines, path=path, expected=expected):
            verdict = compile_rules(lines).verdict(path.removesuffix("/"), is_dir=path.endswith("/"))
            assert verdict is expected
            assert (
                rules_of_file("\n".join(lines).encode()).verdict(path.removesuffix("/"), is_dir=path.endswith("/"))
                is expected
            )


def test_a_file_of_rules_may_have_any_bytes() -> None:
    rules = rules_of_file(b"\xef\xbb\xbffirst\r\nsecond\r\n\xff\xfe\n[z-a]\nx\0y\n\\\nlast")
    ignored = [name for name in ("first", "second", "third", "last") if rules.verdict(name, is_dir=False)]
    assert ignored == ["first", "second", "last"]


def test_an_invalid_given_pattern_is_an_error(subtests: pytest.Subtests) -> None:
    for line in ["[a", "[[:foo:]]", "a[]", "a\nb", "a\0b", "\ud800", "a\\"]:
        with subtests.test(line=line), pytest.raises(ValueError, match="ignore="):
            compile_rules(["fine", line])


@keeps("does not backtrack")
@pytest.mark.timeout(60)
def test_hostile_patterns_are_matched_fast() -> None:
    """A match that tries all ways would take years."""
    rules = compile_rules(["*a" * 100 + "b", "/x" + "*a" * 100 + "b", "**/*a" * 40 + "*b"])
    assert rules.verdict("a" * 250, is_dir=False) is None
    assert rules.verdict("/".join(["x" + "a" * 200] * 10), is_dir=False) is None


# --- directories -----------------------------------------------------------------------------------------------------


def _ignoring(root: str, files: dict[str, str], base: str = "/") -> Ignoring:
    contents = {path: text.encode() for path, text in files.items()}
    ignored = Ignoring(base, root, compile_rules(()), contents.get)
    ignored.prepare()
    return ignored


def test_the_nearest_rules_come_first() -> None:
    ignored = _ignoring("/", {"/.gitignore": "*.log\n/x\n", "/a/.gitignore": "!*.log\n/x\n"})
    asked = ["/1.log", "/a/1.log", "/a/b/1.log", "/b/1.log", "/x", "/a/x", "/b/x"]
    assert [path for path in asked if ignored(path, is_dir=False)] == ["/1.log", "/b/1.log", "/x", "/a/x"]


def test_files_in_an_ignored_directory_are_ignored() -> None:
    ignored = _ignoring("/", {"/.gitignore": "a/\n!a/b/c\n", "/a/.gitignore": "!*\n"})
    assert ignored("/a", is_dir=True)
    assert ignored("/a/b", is_dir=True)
    assert ignored("/a/b/c", is_dir=False)
    assert not ignored("/b/c", is_dir=False)


def test_rules_above_the_root_apply_unless_they_ignore_the_root() -> None:
    files = {"/.gitignore": "*.log\nclosed/\n", "/closed/.gitignore": "*.tmp"}
    inside = _ignoring("/open/deep", files)
    assert inside("/open/deep/1.log", is_dir=False)
    for root in ("/closed", "/closed/deep"):
        closed = _ignoring(root, files)
        assert not closed(f"{root}/1.log", is_dir=False)
        assert closed(f"{root}/1.tmp", is_dir=False)
        assert not closed(f"{root}/closed/1", is_dir=False)


# --- against git -----------------------------------------------------------------------------------------------------

# In git `?` matches a byte, in deepfs a character, so all names are ASCII.
_NAME = st.sampled_from(
    ["a", "b", "ab", "a.py", "b.txt", "x y", "#a", "!a", "a ", "a\t", "[a]", "a]", "\\a", "1", "core.1", "-", "_", "A"]
)
_GLOB = st.sampled_from(
    [
        *("a", "b", "*", "**", "***", "a*", "*b", "**b", "?", "[ab]", "[!a]", "*.py", "x y", "\\a", "#a", "!a", "a.p?"),
        *(
            *("[[:digit:]]", "[[:alpha:]]*", "[^[:upper:]]", "[[:digit:]x]*", "[[:punct:]]", "[[:foo:]]", "[[:"),
            *("[[]", "[]]"),
        ),
        *("[]a]", "[a\\]]", "[!\\]]", "[\\a]", "[a-]", "[a-z-_]", "[z-a]", "[--a]", "[+-9]", "[a/b]", "[^]]*", "[!-~]"),
        *("[a", "a]", "\\[a\\]", "\\", "a\\", "\\\\a", "a\\ ", "core.[[:digit:]]", "*.py[cod]"),
    ]
)
_LINE = st.builds(
    "{}{}{}{}{}".format,
    st.sampled_from(["", "", "", "!", "!", "#", "\\#", "\\!"]),
    st.sampled_from(["", "", "/", "**/"]),
    st.lists(_GLOB, min_size=1, max_size=3).map("/".join),
    st.sampled_from(["", "", "/", "/**"]),
    st.sampled_from(["", "", "", " ", "\r", "\t", " \t", " \r", "\\ ", "\\  "]),
)
_PATH = st.lists(_NAME, min_size=1, max_size=4).map("/".join)


def test_a_path_may_be_very_deep() -> None:
    ignored = _ignoring("/", {"/.gitignore": "x"})
    assert not ignored("/a" * 2000, is_dir=False)
    assert ignored("/a" * 1000 + "/x" + "/a" * 1000, is_dir=False)


@pytest.mark.needs("git")
@settings(max_examples=100)
@given(
    paths=st.sets(_PATH, min_size=1, max_size=12),
    rules=st.dictionaries(st.sampled_from(["", "a/", "b/", "a/b/", "ab/"]), st.lists(_LINE, max_size=5), max_size=3),
    begin=st.sampled_from(["", "", "\ufeff"]),
)
def test_git_agrees(
    paths: set[str], rules: dict[str, list[str]], begin: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("repository")
    texts = {f"{place}.gitignore": begin + "\n".join(lines) for place, lines in rules.items()}
    _write(root, dict.fromkeys(paths, "") | texts)
    result = run_alone(LocalSearch(Disk(str(root)), ignore="git"), GlobRequest("**"))
    assert [info.path[1:] for info in result.matches or ()] == sorted(_shown_by_git(root))


def _write(root: Path, files: dict[str, str]) -> None:
    """Write the files, except those whose path is blocked by another file."""
    for name, text in files.items():
        target = root / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text.encode())
        except OSError:
            continue


def _shown_by_git(root: Path) -> list[str]:
    def git(*arguments: str) -> bytes:
        command = ["git", "-c", "core.excludesFile=/dev/null", *arguments]
        return subprocess.run(command, cwd=root, check=True, capture_output=True).stdout

    git("init", "--quiet", "--template=")
    listed = git("ls-files", "--others", "--exclude-per-directory=.gitignore", "-z")
    return [name for name in listed.decode().split("\0") if name and "/." not in f"/{name}"]
