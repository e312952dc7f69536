"""Adopting the files that nested graphs return, one graph after another within one task."""

from collections.abc import Mapping
from typing import Any

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


A, ONE, THREE = GIVEN["/a"], "ONE\ntwo\nthree\n", "one\ntwo\nTHREE\n"
CHANGED, SAME = {**GIVEN, "/a": ONE}, {**GIVEN, "/a": "same\n", "/c": "new"}
BINARY = {"content": "AAA=", "encoding": "base64"}


def test_changes_are_adopted_and_the_first_of_two_that_collide_stays() -> None:
    cases: list[tuple[list[Any], dict[str, str], list[list[str]]]] = [
        ([{"/a": ONE, "/c": "new"}], {"/a": ONE, "/c": "new"}, [[]]),
        ([CHANGED, {**GIVEN, "/a": THREE}], {**GIVEN, "/a": "ONE\ntwo\nTHREE\n"}, [[], []]),
        ([CHANGED, {**GIVEN, "/a": "1\ntwo\nthree\n"}], CHANGED, [[], ["/a"]]),
        ([CHANGED, {"/b": "b\n"}], CHANGED, [[], ["/a"]]),
        ([CHANGED, {**GIVEN, "/a": BINARY}], CHANGED, [[], ["/a"]]),
        ([SAME, SAME], SAME, [[], []]),
        ([{"/a": A}, {"/a": A}], {"/a": A}, [[], []]),
    ]
    for made, files, lost in cases:
        assert adopted(*made) == (files, lost)


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
