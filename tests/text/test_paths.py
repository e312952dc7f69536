import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepfs.errors import ErrorCode, InvalidPathError
from deepfs.text import paths

segments = st.text(st.sampled_from("ab.~:\\é "), min_size=1, max_size=6).filter(lambda name: name not in (".", ".."))


def valid(path: str) -> bool:
    try:
        paths.normalize(path)
    except InvalidPathError:
        return False
    return True


normal_paths = st.lists(segments, max_size=5).map(lambda names: "/" + "/".join(names)).filter(valid)


NORMAL = [
    ("", "/"),
    (".", "/"),
    ("/./", "/"),
    ("./a", "/a"),
    ("//a///b/./c//", "/a/b/c"),
    ("notes..txt", "/notes..txt"),
    ("/...", "/..."),
    ("/.env", "/.env"),
    ("/~", "/~"),
    ("/a b\n", "/a b\n"),
    ("/a:b", "/a:b"),
    ("/a/C:/b", "/a/C:/b"),
    ("/" + "x" * 255, "/" + "x" * 255),
    ("/" + "a" * 100 + "/" * 5000, "/" + "a" * 100),
]


def test_paths_are_normalized() -> None:
    assert [(given_path, normal) for given_path, normal in NORMAL if paths.normalize(given_path) != normal] == []


REFUSED = [
    ("..", r"'\.\.'"),
    ("../etc/passwd", r"'\.\.'"),
    ("/a/..", r"'\.\.'"),
    ("..\\etc", r"'\.\.'"),
    ("~", "'~'"),
    ("~root/x", "'~'"),
    ("\0", "NUL"),
    ("/\udc80/a", "surrogate"),
    ("c:", "Windows"),
    ("C:/x", "Windows"),
    ("/C:", "Windows"),
    ("/./C:/x", "Windows"),
    ("/C:\\x", "Windows"),
    ("\\x", "Windows"),
    ("/" + "é" * 128, "255 bytes"),
    ("/abcdefg" * 513, "4,104 bytes long, the limit is 4,096"),
]


def test_an_invalid_path_is_refused_with_a_reason(subtests: pytest.Subtests) -> None:
    for path, reason in REFUSED:
        with subtests.test(path=path, reason=reason):
            with pytest.raises(InvalidPathError, match=reason) as caught:
                paths.normalize(path)
            assert caught.value.code is ErrorCode.INVALID_PATH


def test_a_path_that_is_not_a_string_raises_a_type_error(subtests: pytest.Subtests) -> None:
    for thing in [None, 3, b"/a", ["/a"]]:
        with subtests.test(thing=thing), pytest.raises(TypeError):
            paths.normalize(thing)


def reference_normalize(path: str) -> str | None:
    """An independent implementation of the contract: the normal form, or None if the path is refused."""
    kept = [segment for segment in path.split("/") if segment and segment != "."]
    windows = path[1:2] == ":" and path[0].isascii() and path[0].isalpha()
    if kept and kept[0][1:2] == ":" and kept[0][2:3] in ("", "\\") and kept[0][0].isascii() and kept[0][0].isalpha():
        windows = True
    refused = [
        windows,
        path[:1] in ("~", "\\"),
        ".." in path.replace("\\", "/").split("/"),
        "\0" in path,
        any("\ud800" <= character <= "\udfff" for character in path),
        any(len(segment.encode("utf-8", "surrogatepass")) > 255 for segment in kept),
        len("/".join(["", *kept]).encode("utf-8", "surrogatepass")) > 4096,
    ]
    return None if any(refused) else "/" + "/".join(kept)


@given(st.text(st.sampled_from("aCé/.\\~:\0\ud800 "), max_size=10) | st.text(max_size=20))
def test_normalize_agrees_with_the_reference(path: str) -> None:
    expected = reference_normalize(path)
    assert (paths.normalize(path) if valid(path) else None) == expected


@given(
    st.lists(st.tuples(st.sampled_from(["a", "é", "😀", "/", "."]), st.integers(1, 300)), max_size=20).map(
        lambda runs: "/" + "/".join(character * times for character, times in runs)
    )
)
def test_length_limits_agree_with_the_reference(path: str) -> None:
    expected = reference_normalize(path)
    assert (paths.normalize(path) if valid(path) else None) == expected


@given(normal_paths, st.text(st.sampled_from("ab.é"), min_size=1, max_size=4).filter(lambda name: name.strip(".")))
def test_parent_and_name_undo_join(directory: str, name: str) -> None:
    path = paths.join(directory, name)
    assert (paths.parent(path), paths.name(path)) == (directory, name)


@given(normal_paths)
def test_ancestors_are_the_parents_from_the_root_down(path: str) -> None:
    climbed = []
    directory = paths.parent(path)
    while directory != "/":
        climbed.insert(0, directory)
        directory = paths.parent(directory)
    assert paths.ancestors(path) == climbed


@given(normal_paths, normal_paths)
def test_a_path_is_beneath_its_ancestors_and_no_other_directory(path: str, directory: str) -> None:
    assert paths.is_beneath(path, directory) == (path != "/" and directory in ["/", *paths.ancestors(path)])


@given(normal_paths, normal_paths)
def test_join_undoes_relative(path: str, directory: str) -> None:
    if path == directory or paths.is_beneath(path, directory):
        assert paths.join(directory, paths.relative(path, directory)) == path
    else:
        with pytest.raises(ValueError, match="is not beneath"):
            paths.relative(path, directory)


def test_operations_on_the_root() -> None:
    assert (paths.parent("/"), paths.name("/"), paths.ancestors("/")) == ("/", "", [])
    assert (paths.parent("/a"), paths.name("/a"), paths.ancestors("/a")) == ("/", "a", [])
    assert not paths.is_beneath("/", "/")
    assert (paths.join("/", "a"), paths.join("/", ""), paths.relative("/a", "/")) == ("/a", "/", "a")


_letters = st.sampled_from(["a", "b", "/", "\x01", "\ud7ff", "\ue000", "\U0010ffff"])


@given(st.text(_letters, max_size=4), st.text(_letters, max_size=6))
def test_the_end_of_a_prefix_is_behind_all_texts_that_begin_with_it_and_no_others(start: str, text: str) -> None:
    prefix, text = f"/{start}", f"/{text}"
    end = paths.end_of_prefix(prefix)
    assert (prefix.encode() <= text.encode() < end.encode()) == text.startswith(prefix)
