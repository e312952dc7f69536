"""The reducers of `files` and `file_conflicts`, applied to the writes of tasks in supersteps."""

import copy
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count, pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from deepfs._langgraph.reducers import (
    Places,
    RecordedChange,
    WriteOperation,
    fold,
    fold_conflicts,
    header_of,
    is_header,
    next_change,
    version_of,
)
from deepfs.text.diff import Place, compose
from deepfs.text.edits import replace
from deepfs.text.records import decode_file, encode_file, new_file

Files = Mapping[str, Any]
Write = dict[str, Any]

# --- tasks that write as StateBackend does ---------------------------------------------------------------------------


numbers = count()


class Task:
    """One task of a superstep: the files that it sees, and the writes, with headers, that it sends."""

    def __init__(self, files: Files, step: int = 1, *, file_format: str = "v2", minute: int = 0) -> None:
        self.files = dict(files)
        self.name = f"task {next(numbers)}"
        self.step = step
        self.file_format = file_format
        self.now = f"2026-01-01T00:{minute:02}:00.000000+00:00"
        self.changes: dict[str, RecordedChange] = {}
        self.writes: list[Write] = []

    def text(self, path: str) -> str:
        return decode_file(self.files[path], path).content

    def send(self, written: Mapping[str, tuple[str | bytes | None, Places]]) -> "Task":
        changes, write = {}, {}
        for path, (content, places) in written.items():
            before = decode_file(self.files[path], path) if path in self.files else None
            after = None if content is None else new_file(content, created_at="2025", now=self.now)
            base, result = (data and version_of(data) for data in (before, after))
            changes[path] = next_change(self.changes.get(path), base, result, places)
            write[path] = after and encode_file(after, self.file_format)
        self.changes |= changes
        self.files = plain(self.files, [write])
        self.writes.append({header_of(WriteOperation(changes, self.name, self.step, "node")): None, **write})
        return self

    def write(self, path: str, content: str | bytes | None) -> "Task":
        return self.send({path: (content, None)})

    def delete(self, path: str) -> "Task":
        return self.write(path, None)

    def edit(self, path: str, old: str, new: str, *, replace_all: bool = False) -> "Task":
        done = replace(path, self.text(path), old, new, replace_all)
        return self.send({path: (done.content, [(span.start, span.end, len(span.text)) for span in done.spans])})

    def splice(self, path: str, start: int, end: int, new: str) -> "Task":
        text = self.text(path)
        return self.send({path: (text[:start] + new + text[end:], [(start, end, len(new))])})

    def move(self, src: str, dst: str) -> "Task":
        return self.send({dst: (self.text(src), None), src: (None, None)})


def plain(files: Files, writes: Iterable[Write]) -> dict[str, Any]:
    """Apply the writes as a plain reducer does: merge dicts, delete at None, and ignore operations."""
    result = dict(files)
    for write in writes:
        for key, value in write.items():
            if value is None:
                result.pop(key, None)
            else:
                result[key] = value
    return result


def files_of(**texts: str) -> dict[str, Any]:
    return {f"/{name}": encode_file(new_file(text, now="2025")) for name, text in texts.items()}


def texts(files: Files) -> dict[str, str]:
    return {path: decode_file(data, path).content for path, data in files.items()}


def headers(writes: Iterable[Write]) -> list[str]:
    return [key for write in writes for key in write if is_header(key)]


def in_order(*tasks: Task) -> list[Write]:
    return [write for task in tasks for write in task.writes]


def outcome(files: Files, *tasks: Task) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """The texts after a superstep, and the path and operation of each conflict."""
    writes = in_order(*tasks)
    return texts(fold(files, writes)), [
        (conflict["path"], conflict["operation"]) for conflict in fold_conflicts([], headers(writes))
    ]


# --- edits in parallel -----------------------------------------------------------------------------------------------


def test_disjoint_edits_are_merged_by_place() -> None:
    cases: list[tuple[str, list[tuple[str, str]], str]] = [
        ("0123", [("0", "aa"), ("1", ""), ("2", "b"), ("3", "0123")], "aab0123"),
        ("import a\nimport b\nimport c\n", [("import a\n", ""), ("import b\n", ""), ("c", "see")], "import see\n"),
        ("x = 1\ny = 2\n", [("x = 1", "x = 1  # see y = 2"), ("y = 2", "y = 3")], "x = 1  # see y = 2\ny = 3\n"),
        ("xyxz", [("xy", ""), ("xz", "q")], "q"),
        ("a.b.c", [("b", "a"), ("a", "b"), ("c", "a")], "b.a.a"),
        ("one\r\ntwo\r\n", [("two\n", "2\n"), ("one", "1")], "1\r\n2\r\n"),
    ]
    for before, edits, merged in cases:
        start = files_of(a=before)
        tasks = [Task(start).edit("/a", old, new) for old, new in edits]
        assert outcome(start, *tasks) == ({"/a": merged}, [])
        assert outcome(start, *reversed(tasks)) == ({"/a": merged}, [])


def test_of_two_edits_in_one_place_the_first_wins_and_the_other_is_a_conflict() -> None:
    start = files_of(a="count = 1\nend")
    for (old, new), (of_other, by_other) in [
        (("count = 1", "count = 10"), ("count = 1", "count = 12")),
        (("count = 1", "count = 2"), ("count = 1", "count = 2")),
        (("count", "total"), ("count", "number")),
        (("= 1\n", "= 1 "), ("= 1\n", "")),
        (("count", "x"), ("t = 1", "y")),
    ]:
        first, second = Task(start).edit("/a", old, new), Task(start).edit("/a", of_other, by_other)
        assert outcome(start, first, second) == (texts(first.files), [("/a", "edit")])
        assert outcome(start, second, first) == (texts(second.files), [("/a", "edit")])


def test_merged_edits_keep_the_latest_time_and_the_format_of_the_last_write() -> None:
    start = files_of(a="one\ntwo\n")
    early = Task(start, minute=1, file_format="v1").edit("/a", "two", "2")
    late = Task(start, minute=2).edit("/a", "one", "1")
    merged = fold(start, in_order(late, early))["/a"]
    assert merged == {"content": ["1", "2", ""], "created_at": "2025", "modified_at": late.now}
    assert fold(start, in_order(early, late))["/a"]["content"] == "1\n2\n"


# --- whole files in parallel -----------------------------------------------------------------------------------------


def test_a_move_takes_effect_at_both_ends_or_at_neither() -> None:
    start = files_of(a="content")
    taken, move = Task(start).write("/b", "other"), Task(start).move("/a", "/b")
    assert outcome(start, taken, move) == ({"/a": "content", "/b": "other"}, [("/b", "create"), ("/a", "delete")])
    assert outcome(start, move, taken) == ({"/b": "content"}, [("/b", "create")])
    assert outcome(start, Task(start).edit("/a", "content", "edited"), move)[0] == {"/a": "edited"}
    assert outcome(start, move, Task(start).move("/a", "/c"))[0] == {"/b": "content"}


def test_a_file_collides_with_a_directory_that_another_task_needs() -> None:
    directory, file = Task({}).write("/a/b/c", "1"), Task({}).write("/a/b", "2")
    assert outcome({}, directory, file) == ({"/a/b/c": "1"}, [("/a/b", "create")])
    assert outcome({}, file, directory) == ({"/a/b": "2"}, [("/a/b/c", "create")])
    gone = Task({}).write("/a/b/c", "1").delete("/a/b/c")
    assert outcome({}, gone, file) == ({"/a/b": "2"}, [])
    assert outcome({}, directory, Task({}).write("/a/b2", "3")) == ({"/a/b/c": "1", "/a/b2": "3"}, [])


# --- writes without an operation -------------------------------------------------------------------------------------


def test_plain_writes_are_applied_unchanged() -> None:
    start = files_of(a="old", b="old")
    written = {"/a": None, "/c": {"content": ["v1"]}}
    assert fold(start, [written, None]) == {"/b": start["/b"], "/c": {"content": ["v1"]}}
    assert type(fold(start, [written])) is dict
    assert texts(start) == {"/a": "old", "/b": "old"}


def test_repeating_the_write_of_an_operation_changes_nothing() -> None:
    start = files_of(a="one two")
    tasks = [Task(start).edit("/a", "one", "1"), Task(start).edit("/a", "two", "2").edit("/a", "2", "II")]
    repeated = [{"/a": write["/a"]} for write in in_order(*tasks)]
    assert texts(fold(start, in_order(*tasks) + repeated)) == {"/a": "1 II"}
    lost = Task(start).edit("/a", "one", "uno")
    assert texts(fold(start, [*in_order(*tasks, lost), *lost.writes, {"/a": lost.files["/a"]}])) == {"/a": "1 II"}


def test_an_earlier_version_of_a_file_can_be_restored() -> None:
    start = files_of(a="one")
    task = Task(start).edit("/a", "one", "two")
    back = [*task.writes, {"/a": start["/a"]}]
    assert texts(fold(start, back)) == {"/a": "one"}
    assert texts(fold(start, [*back, {"/a": task.files["/a"]}])) == {"/a": "two"}
    assert fold(start, [*task.writes, {"/a": None}]) == {}


def test_a_write_with_an_unreadable_operation_is_a_plain_write() -> None:
    assert fold({}, [{"deepfs:{new format}": None, "/a": {"content": "x"}}]) == {"/a": {"content": "x"}}


# --- conflicts -------------------------------------------------------------------------------------------------------


def test_a_conflict_names_the_lost_operation() -> None:
    start = files_of(a="old")
    writes = in_order(Task(start, 7).edit("/a", "old", "x"), Task(start, 7).edit("/a", "old", "y"))
    [conflict] = fold_conflicts([], headers(writes))
    assert conflict.pop("reason")
    assert conflict == {"path": "/a", "operation": "edit", "node": "node", "step": 7}


def test_conflicts_written_by_hand_are_merged_and_can_be_cleared() -> None:
    conflict = {"path": "/x"}
    assert fold_conflicts([conflict], [[conflict, {"path": "/y"}]]) == [conflict, {"path": "/y"}]
    assert fold_conflicts([conflict], [None]) == []
    assert fold_conflicts(None, ["deepfs:unreadable"]) == []


# --- properties ------------------------------------------------------------------------------------------------------

PATHS = ["/a", "/b", "/a/c"]
content = st.text(alphabet="ab\n", max_size=6)


@st.composite
def supersteps(draw: st.DrawFn) -> tuple[dict[str, Any], list[list[Task]]]:
    """Initial files, and the tasks of consecutive steps; each step starts with the files of the step before."""
    files = start = files_of(**draw(st.dictionaries(st.sampled_from(["a", "b"]), content, max_size=2)))
    steps = []
    for step in range(draw(st.integers(1, 3))):
        tasks = [Task(files, step, minute=draw(st.integers(0, 59))) for _ in range(draw(st.integers(1, 4)))]
        for task in tasks:
            for _ in range(draw(st.integers(1, 3))):
                operate(draw, task)
        steps.append(tasks)
        files = fold(files, in_order(*tasks))
    return start, steps


def operate(draw: st.DrawFn, task: Task) -> None:
    """Carry out a random operation on a random file, if the backend would allow it."""
    path = draw(st.sampled_from(PATHS))
    if any(other.startswith(f"{path}/") or path.startswith(f"{other}/") for other in task.files):
        return
    if path not in task.files:
        task.write(path, draw(content))
        return
    match draw(st.sampled_from(["edit", "edit", "edit", "edit", "write", "delete", "move"])):
        case "edit" if text := task.text(path):
            start = draw(st.integers(0, len(text) - 1))
            task.splice(path, start, draw(st.integers(start + 1, len(text))), draw(content))
        case "write":
            task.write(path, draw(content))
        case "delete":
            task.delete(path)
        case "move" if "/b" not in task.files:
            task.move(path, "/b")


def in_batches(writes: Sequence[Any], cuts: Iterable[int]) -> Iterator[Sequence[Any]]:
    edges = sorted({0, len(writes), *(cut % (len(writes) + 1) for cut in cuts)})
    return (writes[start:end] for start, end in pairwise(edges))


@given(supersteps(), st.lists(st.integers(0, 99)))
def test_every_division_into_batches_gives_the_same_result_and_changes_nothing_given(
    run: tuple[dict[str, Any], list[list[Task]]], cuts: list[int]
) -> None:
    start, steps = run
    writes = in_order(*(task for tasks in steps for task in tasks))
    before = copy.deepcopy((start, writes))
    whole = fold(start, writes)
    files: Files = start
    for batch in in_batches(writes, cuts):
        given_files = copy.deepcopy(files)
        folded = fold(files, batch)
        assert (files, fold(files, batch)) == (given_files, folded)
        files = folded
    assert files == whole
    conflicts: list[Any] = []
    for header_batch in in_batches(headers(writes), cuts):
        conflicts = fold_conflicts(conflicts, header_batch)
    assert conflicts == fold_conflicts([], headers(writes))
    assert (start, writes) == before


@given(supersteps())
def test_every_loss_is_reported_and_a_plain_reducer_agrees_unless_tasks_changed_the_same_file(
    run: tuple[dict[str, Any], list[list[Task]]],
) -> None:
    start, steps = run
    files: Files = start
    for tasks in steps:
        writes = in_order(*tasks)
        touched = [path for task in tasks for path in task.changes]
        folded, merged = fold(files, writes), plain(files, writes)
        if not any(is_related(one, other) for i, one in enumerate(touched) for other in touched[:i]):
            assert folded == merged
        assert not any(map(is_header, merged))
        assert fold_conflicts([], headers(writes)) or merges_all(files, tasks, folded)
        files = folded


def is_related(one: str, other: str) -> bool:
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def merges_all(files: Files, tasks: Sequence[Task], folded: Files) -> bool:
    """Whether `folded` contains the final change of each task, computed from its places in the initial text."""
    return all(
        shows(path, texts(files).get(path), [task for task in tasks if path in task.changes], texts(folded).get(path))
        for path in PATHS
    )


def shows(path: str, before: str | None, tasks: Sequence[Task], after: str | None) -> bool:
    made = [task for task in tasks if texts(task.files).get(path) != before]
    if len(made) < 2 or before is None or any(path not in task.files for task in made):
        return after in [texts(task.files).get(path) for task in made or tasks] or not tasks
    places = (spelled(task.changes[path].places or [], task.text(path)) for task in made)
    return after == rebuilt(before, sorted(chain.from_iterable(places)))


def spelled(places: Iterable[Place], after: str) -> Iterator[tuple[int, int, str]]:
    grown = 0
    for start, end, length in places:
        yield start, end, after[start + grown : start + grown + length]
        grown += length - (end - start)


def rebuilt(before: str, places: Iterable[tuple[int, int, str]]) -> str:
    for start, end, text in reversed(list(places)):
        before = before[:start] + text + before[end:]
    return before


@given(st.data(), st.text("ab\n", min_size=2, max_size=20))
def test_all_disjoint_edits_survive(data: st.DataObject, before: str) -> None:
    start = files_of(a=before)
    edges = sorted(data.draw(st.sets(st.integers(0, len(before)), min_size=2)))
    places = [(first, last, data.draw(content)) for first, last in pairwise(edges)]
    tasks = [Task(start) for _ in range(3)]
    for first, last, new in reversed(places):  # From the end, so that an edit does not shift the next ones.
        data.draw(st.sampled_from(tasks)).splice("/a", first, last, new)
    assert outcome(start, *data.draw(st.permutations(tasks))) == ({"/a": rebuilt(before, places)}, [])


@given(st.data(), st.text("ab", min_size=1, max_size=12))
def test_composed_places_cover_exactly_the_changed_characters(data: st.DataObject, before: str) -> None:
    """Compare with a list of characters: an int is the position of a character in `before`, a str is a new one."""
    characters: list[int | str] = list(range(len(before)))
    places: list[Place] = []
    for _ in range(data.draw(st.integers(1, 5))):
        if not characters:
            break
        spots = sorted(data.draw(st.sets(st.integers(0, len(characters)), min_size=2, max_size=6)))
        step = [(*pair, data.draw(st.integers(0, 3))) for pair in list(pairwise(spots))[::2]]
        for start, end, length in reversed(step):
            characters[start:end] = ["n"] * length
        places = compose(places, step)
    kept = [-1, *(origin for origin in characters if isinstance(origin, int)), len(before)]
    assert [(start, end) for start, end, _ in places] == [(a + 1, b) for a, b in pairwise(kept) if b > a + 1]
    assert sum(length for *_, length in places) == characters.count("n")


# --- stored values ---------------------------------------------------------------------------------------------------


def test_a_checkpoint_holds_a_plain_dict_and_a_plain_list() -> None:
    start, serde = files_of(a="one"), JsonPlusSerializer()
    writes = in_order(Task(start).edit("/a", "one", "x"), Task(start).edit("/a", "one", "y"))
    for value in (fold(start, writes), fold_conflicts([], headers(writes))):
        kind, data = serde.dumps_typed(value)
        assert kind == "msgpack"
        assert type(serde.loads_typed((kind, data))) in (dict, list)
        assert serde.loads_typed((kind, data)) == value
        assert type(pickle.loads(pickle.dumps(value))) in (dict, list)


def test_the_size_of_a_write_depends_on_the_change() -> None:
    start = files_of(a="x" * 100_000)
    [write] = Task(start).splice("/a", 5, 6, "y").writes
    assert len(next(iter(write))) < 400
