"""The helpers have the signatures of deepagents, and results of the same form."""

import inspect
from typing import Any, Final

import pytest
from deepagents.backends import utils as peer

from deepfs.compat import utils

HELPERS: Final = [
    "create_file_data",
    "file_data_to_string",
    "grep_matches_from_files",
    "perform_string_replacement",
    "slice_read_response",
    "update_file_data",
]

FILES: Final[dict[str, Any]] = {
    "/a.txt": {"content": "one\ntwo\nthree\n", "encoding": "utf-8"},
    "/old.txt": {"content": ["one", "two", ""], "created_at": "2020-01-01T00:00:00+00:00", "modified_at": ""},
}


@pytest.mark.parametrize("name", HELPERS)
def test_parameters_are_those_of_deepagents(name: str) -> None:
    ours, theirs = (inspect.signature(getattr(module, name)).parameters for module in (utils, peer))
    described = [[(each.name, each.kind, each.default) for each in some.values()] for some in (ours, theirs)]
    assert described[0] == described[1]


def test_created_file_data_has_the_same_form() -> None:
    ours, theirs = (module.create_file_data("text", "2020", "base64") for module in (utils, peer))
    assert ours.keys() == theirs.keys()
    assert {**ours, "modified_at": ""} == {**theirs, "modified_at": ""}
    updated = utils.update_file_data({"content": "a", "encoding": "utf-8", "created_at": "2020"}, "b")
    assert (updated["content"], updated["created_at"], updated["encoding"]) == ("b", "2020", "utf-8")


@pytest.mark.parametrize("path", FILES)
def test_content_and_windows_are_the_same(path: str) -> None:
    data = FILES[path]
    assert utils.file_data_to_string(data) == peer.file_data_to_string(data)
    for offset, limit in [(0, 2), (1, 1), (2, 10), (9, 1)]:
        ours, theirs = (module.slice_read_response(data, offset, limit) for module in (utils, peer))
        assert (ours.error is None) == (theirs.error is None)
        if theirs.file_data is not None:
            assert ours.file_data["content"] == theirs.file_data["content"]
            assert (ours.start_line, ours.end_line) == (theirs.start_line, theirs.end_line)


@pytest.mark.parametrize(
    ("old", "new", "every"), [("one", "1", False), ("o", "0", True), ("o", "0", False), ("", "", True)]
)
def test_replacements_are_the_same(old: str, new: str, every: bool) -> None:
    ours, theirs = (module.perform_string_replacement("one two", old, new, every) for module in (utils, peer))
    assert isinstance(ours, str) == isinstance(theirs, str)
    assert isinstance(ours, str) or ours == theirs


def test_matches_are_the_same() -> None:
    ours = utils.grep_matches_from_files(FILES, "two", max_count=1)
    theirs = peer.grep_matches_from_files(FILES, "two", max_count=1)
    assert ours.matches == theirs.matches
    assert ours.truncated is theirs.truncated is True
    with pytest.raises(TypeError):
        utils.file_data_to_string({"content": 3})
