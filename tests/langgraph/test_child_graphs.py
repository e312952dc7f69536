"""Adopting the files that nested graphs return, one graph after another within one task."""

from collections.abc import Mapping
from typing import Any

import pytest
from langgraph.graph import START, StateGraph

from deepfs import FilesystemState
from deepfs._langgraph.task_files import adopt_files

GIVEN = {"/a": "one\ntwo\nthree\n", "/b": "b\n"}


def stored(files: Mapping[str, Any]) -> dict[str, Any]:
    return {
        path: text if isinstance(text, dict) else {"content": text, "encoding": "utf-8"} for path, text in files.items()
    }


def adopted(*made: Mapping[str, Any], given: Mapping[str, Any] = GIVEN) -> tuple[dict[str, Any], list[list[str]]]:
    """Adopt each of `made` in turn; return the final contents, and the paths that each time could not be adopted."""
    lost: list[list[str]] = []

    def node(state: FilesystemState) -> None:
        lost.extend(adopt_files(stored(given), stored(each)) for each in made)

    graph = StateGraph(FilesystemState).add_node("node", node).add_edge(START, "node").compile()
    files = graph.invoke({"files": stored(given)})["files"]
    return {path: data["content"] for path, data in files.items()}, lost


def test_created_changed_and_deleted_files_are_adopted() -> None:
    files, lost = adopted({"/a": "ONE\ntwo\nthree\n", "/c": "new"})
    assert (files, lost) == ({"/a": "ONE\ntwo\nthree\n", "/c": "new"}, [[]])


def test_changes_of_different_lines_are_merged() -> None:
    files, lost = adopted({**GIVEN, "/a": "ONE\ntwo\nthree\n"}, {**GIVEN, "/a": "one\ntwo\nTHREE\n"})
    assert (files["/a"], lost) == ("ONE\ntwo\nTHREE\n", [[], []])


@pytest.mark.parametrize(
    "second",
    [{**GIVEN, "/a": "1\ntwo\nthree\n"}, {"/b": "b\n"}, {**GIVEN, "/a": {"content": "AAA=", "encoding": "base64"}}],
)
def test_after_a_collision_the_first_change_stays(second: Mapping[str, Any]) -> None:
    files, lost = adopted({**GIVEN, "/a": "ONE\ntwo\nthree\n"}, second)
    assert (files["/a"], lost) == ("ONE\ntwo\nthree\n", [[], ["/a"]])


def test_the_same_change_twice_is_no_collision() -> None:
    change = {**GIVEN, "/a": "same\n", "/c": "new"}
    assert adopted(change, change) == ({"/a": "same\n", "/b": "b\n", "/c": "new"}, [[], []])


def test_a_file_that_was_deleted_twice_is_gone() -> None:
    assert adopted({"/a": GIVEN["/a"]}, {"/a": GIVEN["/a"]}) == ({"/a": GIVEN["/a"]}, [[], []])


def test_files_in_the_v1_format_stay_in_it() -> None:
    v1 = {"/a": {"content": ["one", "two"], "created_at": "x", "modified_at": "y"}}
    files, _ = adopted({"/a": {**v1["/a"], "content": ["one", "TWO"]}}, given=v1)
    assert files["/a"] == ["one", "TWO"]


def test_values_that_are_not_files_are_adopted_or_reported() -> None:
    foreign: dict[str, Any] = {"/a": {"memory": "tea"}, "/b": {"content": 7}}
    new = {"content": "new", "encoding": "utf-8"}
    lost: list[list[str]] = []

    def node(state: FilesystemState) -> None:
        lost.append(adopt_files(foreign, {"/a": new, "/b": {"content": 8}}))
        lost.append(adopt_files(foreign, {"/a": {"content": "other"}}))

    graph = StateGraph(FilesystemState).add_node("node", node).add_edge(START, "node").compile()
    files = graph.invoke({"files": foreign})["files"]
    assert (files["/a"]["content"], lost) == ("new", [["/b"], ["/a"]])
    assert "/b" not in files
