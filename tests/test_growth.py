"""No function that reads texts of others takes more than linear time, which would stop an event loop."""

import base64
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from itertools import product
from typing import Any, Final

import anyio
import pytest
from anyio import DelimiterNotFound, EndOfStream, IncompleteRead
from anyio.streams.buffered import BufferedByteReceiveStream
from langchain_core.messages import AIMessage, ToolMessage

from deepfs import GrepMatch, GrepResult, ReadResult, errors
from deepfs import _brief as brief
from deepfs._langgraph import reducers
from deepfs.backends import foreign as backend_answers
from deepfs.compat import utils
from deepfs.config import urls
from deepfs.mcp import reference, resources
from deepfs.middleware import _messages as messages
from deepfs.middleware import anthropic_memory, arguments, prompts, rendering, skill_files
from deepfs.policy import rules
from deepfs.process import Kept
from deepfs.sandboxes import answers, network, wire
from deepfs.search import gitignore, globs, literals, query
from deepfs.search.request import FileFilter, GlobRequest, GrepRequest, GrepScan
from deepfs.text import arguments as given
from deepfs.text import edits, entries, flat_tree, lines, media, paths, records, visible
from deepfs.text.entries import TreeEntry, TreeListing
from deepfs.threads.deadline import Deadline
from deepfs.types import ExecuteResponse, FileInfo
from support.counts import few_or_many
from support.growth import SIZES, seconds_of, steep_growth

Call = Callable[[], object]

KINDS: Final = ("a", "\n", " ", "/", "\\", "[", "\x1b[", "a\n", "<a>")
"""What adversarial texts repeat, of each kind one."""
SHAPES: Final = (
    *KINDS, "'", "../", "{a,", "- a\n", "**/a/", "(a*)*", "1\ta\n",
    "\r", "\t", "\r\n", "]", "{", "(", "*", "?", "-", '"', "`", "<", ">", "&", "%", "0", ".", ",", ":", "#",
    "~", "@", "é", "e\u0301", "\u2028", "\0", "\U0001f600", "a ", " \n", "\na ", "a/", "/a", "**/", "*a", "[a", "[[:",
    "[a-", "{a,b}", "a|", "(a|b)", "a{9}", "\\[", "\\n", "</", "&lt;", "&#0;", "%41", "a: b\n", "- ", "---\n", "a: [",
    "{{", "!a b ", "     1\t", "1→", "@@ -1 +1 @@\n", "*** ", "+a\n", "```\n", "data:,", "x://", "Error: ", "\\u0041",
    "@deepfs ", "[stderr] ", "a=b&", "::",
)  # fmt: skip
"""All of them, which `nox -s stress` tries."""


def _texts(shapes: Sequence[str]) -> Iterator[Callable[[int], str]]:
    """Texts of any size that repeat a shape, with and without an end at which a pattern of the shape fails."""
    for shape, (begin, end) in product(shapes, (("", ""), ("a", "\x01"))):
        yield lambda size, shape=shape, begin=begin, end=end: begin + (shape * size)[: size - 2] + end  # type: ignore[misc]


async def _head(text: str) -> None:
    class Stream:
        left = text.encode()

        async def receive(self, most: int = 65_536) -> bytes:
            if not self.left:
                raise EndOfStream
            piece, self.left = self.left[:most], self.left[most:]
            return piece

    reader = BufferedByteReceiveStream(Stream())  # type: ignore[arg-type]
    with suppress(EndOfStream, IncompleteRead, DelimiterNotFound):
        await network._http_request(b"G", reader)


def _of_bytes(function: Callable[[bytes], object]) -> Callable[[str], object]:
    return lambda text: function(text.encode())


def _as_data(text: str) -> Any:
    return records.new_file(text)


def _search(pattern: str, text: str, **options: Any) -> object:
    return query.search(query.compile_query(GrepRequest(pattern, **options)), "/a", text)


def _read(text: str) -> ReadResult:
    return records.read_text("/a", text, 0, 100_000, at=_as_data(text))


def _grep_result(text: str) -> GrepResult:
    return GrepResult(matches=[GrepMatch(path="/a", line=1, text=text)])


def _ignores(*given: str, path: str = "a/" * 1000 + "b") -> bool | None:
    return gitignore.compile_rules(given).verdict(path, is_dir=False)


def _ignores_by_long_lines(text: str) -> bool | None:
    lines = (text[at : at + 4_000].replace("\n", "/") for at in range(0, len(text), 4_000))
    return _ignores(*lines, path="a/" * 20 + "b")


# --- the tables ------------------------------------------------------------------------------------------------------

OF_A_TEXT: Final[list[Any]] = [
    lines.check_text, lines.facts, lines.version, paths.is_visible, paths.normalize, visible.escape_controls,
    visible.one_line, visible.output_text, visible.display_name, visible.display_path, visible.visible,
    network.normal_host, wire.printable, resources.uri_of, urls.parse_address, globs.literal_brackets,
    globs.brackets_read_as_name,
    rendering.plain_error, rendering.sentence, anthropic_memory.cut_list, anthropic_memory.lines_of,
    utils.format_content_with_line_numbers, utils.regex_literal_hint, utils.sanitize_tool_call_id,
    utils.truncate_if_too_long, backend_answers.code_from, backend_answers.parse_numbered, errors.quote,
    errors.foreign_text,
]  # fmt: skip
OF_BYTES: Final[list[Any]] = [lines.decode, lines.digest, media.other_encoding, media.sniff, skill_files.instructions]
TEXTS: Final[dict[str, Callable[[str], object]]] = {
    "edits.hint": lambda text: edits.hint(text, "a  a\nb" + text[:1000]),
    "edits.hint of a long text": lambda text: edits.hint("a\nb\n" * 100, text),
    "edits.find_misreading": lambda text: edits.find_misreading(text, "é" + text[:1000]),
    "edits.find_misreading of a long text": lambda text: edits.find_misreading("a\nb\n" * 100, text),
    "edits.replace": lambda text: edits.replace("/a", text, text[:3], "x", True),
    "lines.window": lambda text: lines.window(text, 5, 100_000),
    "paths.ancestors": lambda text: paths.ancestors("/" + text[:4096]),
    "paths.visible_in": lambda text: paths.visible_in("", list(filter(None, text.split("/")))),
    "records.decode_file": lambda text: records.decode_file({"content": text.split("\n")}, "/a"),
    "records.read_data": lambda text: records.read_data("/a", _as_data(text), 3, 100_000, max_binary=1 << 30),
    "records.to_v1": lambda text: records.to_v1(_as_data(text)),
    "visible.fence": lambda text: visible.fence("a", text),
    "visible.without_tags": lambda text: visible.without_tags(text, "a"),
    "arguments.path_list": lambda text: given.path_list(text.split("/")),
    "query.compile_query regex": lambda text: query.compile_query(GrepRequest(text, regex=True)),
    "query.search": lambda text: _search("a", text),
    "query.search for two lines": lambda text: _search("a\na", text, context_lines=2),
    "query.search regex": lambda text: _search(r"(a|b)*c", text, regex=True),
    "query.search ignore_case": lambda text: _search(text[:100], text, ignore_case=True),
    "query.parse_numbered_matches": lambda text: query.parse_numbered_matches("/a", text.encode(), ["a", text[:50]]),
    "gitignore.compile_rules of long lines": _ignores_by_long_lines,
    "gitignore.rules_of_file": lambda text: gitignore.rules_of_file(text.encode()).verdict("a/b", is_dir=False),
    "rules.check_rules": lambda text: rules.FilesystemPermission(["read"], [f"/{text}"], "deny"),
    "wire.failure_of": lambda text: wire.failure_of(text.encode().split(b" "), "/a"),
    "wire.parse_frame": lambda text: wire.parse_frame(text, "ab"),
    "wire.parse_frame begun": lambda text: wire.parse_frame(f"@deepfs ab py 1 - {text}", "ab"),
    "wire.command_text": lambda text: wire.command_text("sh", [text.encode()], text.encode()),
    "resources.path_of": lambda text: resources.path_of(f"file:///{text}"),
    "urls.parse_address of a file": lambda text: urls.parse_address(f"file://{text}"),
    "rendering.command_output": lambda text: rendering.command_output(ExecuteResponse(output=text, exit_code=1)),
    "rendering.render_rows": lambda text: rendering.render_rows(text.split("\n"), 60_000),
    "rendering.number_lines": lambda text: rendering.number_lines("/a", _read(text), 0, 0, 60_000),
    "rendering.matches": lambda text: rendering.matches(_grep_result(text), "content"),
    "rendering.page_entries": lambda text: rendering.page_entries(
        [FileInfo(path=f"/d/{text}", is_dir=False, size=1)], 0, 1, 60_000
    ),
    "rendering.no_file": lambda text: rendering.no_file("/", text),
    "rendering.no_line": lambda text: rendering.no_line(GrepRequest(text, None, text), "/", is_whole=True),
    "rendering.render_error": lambda text: rendering.render_error(errors.NotFoundError(text)),
    "rendering.closest": lambda text: rendering.closest(text, [text[1:], *text.split("/")]),
    "prompts.check_template": lambda text: prompts.check_template(text, ["x"]),
    "skill_files.parse_skill": lambda text: skill_files.parse_skill(text.encode(), "/a/SKILL.md"),
    "skill_files.parse_skill with a text": lambda text: skill_files.parse_skill(
        f"---\na: {text}\n---\n".encode(), "/a/SKILL.md"
    ),
    "skill_files.render_skills": lambda text: skill_files.render_skills(
        [{"path": text, "name": text, "description": text}],  # type: ignore[typeddict-item]
        [text],
    ),
    "anthropic_memory.insert_lines": lambda text: anthropic_memory.insert_lines(text, 1, text),
    "anthropic_memory.page": lambda text: anthropic_memory.page(text.split("\n"), 1, 1000),
    "arguments.canonical_arguments": lambda text: arguments.canonical_arguments("read_file", {text: text}),
    "messages.may_be_json": lambda text: messages.may_be_json(AIMessage(text)),
    "messages.with_parsed_blocks": lambda text: messages.with_parsed_blocks(ToolMessage(text, tool_call_id="a")),
    "utils.grep_matches_from_files": lambda text: utils.grep_matches_from_files({"/a": _as_data(text)}, "a"),
    "backend_answers.unnumbered of numbered lines": lambda text: backend_answers.parse_numbered(f"1\t{text}"),
    "backend_answers.unnumbered of one long line": lambda text: backend_answers.parse_numbered(
        "1\ta\n" + "".join(f"1.1\t{part}\n" for part in text.split())
    ),
    "backend_answers.read_result": lambda text: backend_answers.read_result(text, "/a", 0, 1000),
    "errors.error_about": lambda text: str(errors.error_about("file_not_found", text, text)),
    "process.Kept": lambda text: _kept(text.encode()),
    "reducers.removals_of": lambda text: reducers.removals_of({}, text.split("/")),
    "reducers.fold": lambda text: reducers.fold({"/a": {"content": text}}, [{"/a": {"content": text[1:]}}]),
}
"""By the name of the module and the function: a call with a text of any size."""

PROMPT: Final[dict[str, Callable[[str], object]]] = {
    "globs.compile_glob": lambda text: globs.compile_glob(text).may_enter("a"),
    "globs.compile_tree": lambda text: globs.compile_tree(f"/{text}"),
    "reference._matcher": lambda text: anyio.run(partial(reference._matcher, [text], anywhere=True)),
    "query.compile_query": lambda text: query.compile_query(GrepRequest(text)),
    "literals.required_text": lambda text: literals.required_text(GrepRequest(text, regex=True)),
    "literals.path_needs": lambda text: literals.path_needs(FileFilter(GlobRequest(text))),
    "literals.folds_case": lambda text: literals.folds_case(GrepRequest(text, ignore_case=True)),
    "utils.compile_grep_include_glob": utils.compile_grep_include_glob,
    "gitignore.compile_rules": lambda text: gitignore.compile_rules([text]),
    "network._http_request": lambda text: anyio.run(_head, text),
    "network._http_request header": lambda text: anyio.run(_head, f"ET http://a/ HTTP/1.1\r\na:{text}\r\n\r\n"),
    "network._http_request URL": lambda text: anyio.run(_head, f"ET http://{text} HTTP/1.1\r\n\r\n"),
}
"""As in `TEXTS`: what runs on the event loop in any case, so that it refuses or cuts what is too long."""

_GREP: Final = GrepRequest("a")
_ANSWER_LINES: Final = b"81a4 1 1 f//\n"


def _answer(body: bytes) -> wire.Records:
    text = base64.b64encode(body).decode()
    return wire.Records(text, sha256(text.encode()).hexdigest(), 1 << 30)


def _of_answer(read: Callable[[wire.Records, int], object], line: bytes) -> Callable[[int], Call]:
    def sized(size: int) -> Call:
        count = size // len(line)
        answer = _answer(line * count)
        return lambda: read(answer, count)

    return sized


def _with_rows(function: Callable[[list[int]], object], of: int = 20) -> Callable[[int], Call]:
    """A call with as many rows as a text of that size may have."""
    return lambda size: partial(function, list(range(size // of)))


def _kept(data: bytes) -> str:
    kept = Kept(10_000, "[stderr] ")
    for begin in range(0, len(data), 100):
        kept.add(data[begin : begin + 100])
    return kept.text(20_000)


def _tree(numbers: list[int]) -> list[TreeEntry]:
    return [TreeEntry(f"/d/{number % 9}/{number}", "file", 1) for number in numbers]


SIZED: Final[dict[str, Callable[[int], Call]]] = {
    "wire.outcomes": _of_answer(lambda answer, count: wire.outcomes(answer, ["/a"] * count), b"E denied\n"),
    "answers.infos": _of_answer(lambda answer, _: list(answers.infos(answer, "/", "")), _ANSWER_LINES),
    "answers.glob_files": _of_answer(
        lambda answer, _: answers.glob_files(Deadline(), answer, "", FileFilter(GlobRequest("**"))), _ANSWER_LINES
    ),
    "answers.grep_files": _of_answer(
        lambda answer, _: answers.grep_files(Deadline(), answer, "", GrepScan(_GREP, FileFilter(_GREP))),
        _ANSWER_LINES,
    ),
    "answers.tree_listing": _of_answer(lambda answer, _: answers.tree_listing(answer, "/", ""), _ANSWER_LINES),
    "answers.contents": _of_answer(
        lambda answer, count: list(answers.contents(answer, dict.fromkeys(map(str, range(count))), 1 << 20)),
        b"ok 1 2\nab",
    ),
    "entries.directories_of": _with_rows(lambda rows: entries.directories_of(_tree(rows))),
    "entries.list_implied": _with_rows(
        lambda rows: entries.list_implied("/d", [(f"/d/{row % 9}/{row}", 1) for row in rows])
    ),
    "entries.list_implied deep": _with_rows(
        lambda rows: entries.list_implied("/d", [("/d" * 400 + f"/{row}", 1) for row in rows]), 1000
    ),
    "entries.check_transferable": _with_rows(
        lambda rows: entries.check_transferable(TreeListing(_tree(rows)), "/d", moves=True)
    ),
    "flat_tree.FileTree": _with_rows(
        lambda rows: flat_tree.FileTree({f"/d/{row % 9}/{row}": _as_data("") for row in rows}).entries("/d"), 200
    ),
    "reducers.fold of files": _with_rows(
        lambda rows: reducers.fold({}, [{f"/{row}": {"content": "a"}} for row in rows]), 500
    ),
    "backend_answers.children": _with_rows(
        lambda rows: backend_answers.children([{"path": f"/{row}/a/b"} for row in rows], "/")
    ),
    "rules.decide": _with_rows(
        lambda rows: rules.decide(
            [rules.FilesystemPermission(["read"], [f"/{row % 500}/**"], "deny") for row in rows], "read", "/a"
        )
    ),
    "gitignore.Rules": _with_rows(lambda rows: _ignores(*(f"a{row}*b" for row in rows)), 500),
    "arguments.wrong_arguments": _with_rows(lambda rows: _wrong_arguments({str(row): row for row in rows})),
    "brief.brief of many": _with_rows(lambda rows: brief.brief({row: [rows] for row in rows})),
}
"""Calls whose input is more than one text, made of a size."""


def _wrong_arguments(unknown: dict[str, Any]) -> object:
    try:
        return arguments.ReadArguments(**unknown)
    except ValueError as error:
        return arguments.wrong_arguments(error)


# --- tests -----------------------------------------------------------------------------------------------------------

CALLS: Final = (
    {f"{function.__module__}.{function.__name__}": function for function in OF_A_TEXT}
    | {f"{function.__module__}.{function.__name__}": _of_bytes(function) for function in OF_BYTES}
    | TEXTS
)


_PARTS: Final = 6
"""How many tests share the functions: with coverage each call takes several times longer."""


def _steep_by_text(name: str, shapes: Sequence[str], sizes: Sequence[int]) -> Iterator[str]:
    for text in _texts(shapes):
        if steep := steep_growth(lambda size, text=text: partial(CALLS[name], text(size)), sizes):  # type: ignore[misc]
            yield f"{name}, {text(20)!r}: {steep}"


@pytest.mark.parametrize("part", range(_PARTS))
def test_time_grows_with_the_text(part: int) -> None:
    names = [*CALLS][part::_PARTS]
    assert [steep for name in names for steep in _steep_by_text(name, KINDS, SIZES[:2])] == []


@pytest.mark.stress
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", CALLS)
def test_time_grows_with_each_shape_of_text(name: str) -> None:
    assert list(_steep_by_text(name, SHAPES, SIZES)) == []


def test_time_grows_with_the_number() -> None:
    steep = {name: steep_growth(call, SIZES[:2]) for name, call in SIZED.items()}
    assert {name: growth for name, growth in steep.items() if growth} == {}


@pytest.mark.parametrize("count", few_or_many(len(KINDS), len(SHAPES)))
@pytest.mark.parametrize("part", range(_PARTS))
def test_what_is_too_long_for_the_loop_is_refused_at_once(part: int, count: int) -> None:
    for name, made, size in product([*PROMPT][part::_PARTS], _texts(SHAPES[:count]), (1_000, 2_000, 1_000_000)):
        text, ratios = made(size), list[float]()
        for _ in range(5):
            ratios.append(seconds_of(partial(PROMPT[name], text)) / seconds_of(_count))
            if ratios[-1] < _PROMPT:
                break
        assert min(ratios) < _PROMPT, (name, text[:40], size, ratios)


def _count() -> None:
    """Work of one size, measured beside each call, so that a slow or loaded machine slows both."""
    for _ in range(100_000):
        pass


_PROMPT: Final = 30.0
"""How many times longer than `_count` a call may take. The longest takes four to eleven times, as the machine is; a
text of 1,000,000 characters that is not refused takes hundreds."""
