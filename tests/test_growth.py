"""No function that reads texts of others takes more than linear time, which would stop an event loop.

Every function of the modules below is in one of the tables, so a new one has to be put into one of them.
"""

import base64
import inspect
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from hashlib import sha256
from importlib import import_module
from typing import Any, Final

import anyio
import pytest
from anyio import DelimiterNotFound, EndOfStream, IncompleteRead
from anyio.streams.buffered import BufferedByteReceiveStream
from langchain_core.messages import AIMessage, SystemMessage, ToolMessage

from deepfs import GrepMatch, GrepResult, ReadResult, errors
from deepfs import _brief as brief
from deepfs._langgraph import reducers
from deepfs.backends import answers as backend_answers
from deepfs.compat import utils
from deepfs.config import urls
from deepfs.mcp import calls, reference, resources
from deepfs.middleware import _messages as messages
from deepfs.middleware import anthropic_memory, arguments, prompts, rendering, skill_files
from deepfs.policy import rules
from deepfs.process import Kept
from deepfs.sandboxes import answers, network, wire
from deepfs.search import gitignore, globs, literals, query
from deepfs.search.request import FileFilter, GlobRequest, GrepRequest, GrepScan, glob_result, query_of
from deepfs.text import arguments as given
from deepfs.text import edits, entries, flat_tree, lines, media, paths, records, visible
from deepfs.text.entries import TreeEntry, TreeListing
from deepfs.threads.deadline import Deadline
from deepfs.types import ExecuteResponse, FileInfo, FileUploadResponse, LsResult
from support.counts import few_or_many
from support.growth import seconds_of, steep_growth

Call = Callable[[], object]

KINDS: Final = (
    "a", "\n", " ", "/", "\\", "[", "'", "\x1b[", "a\n", "../", "**/a/", "{a,", "(a*)*", "<a>", "- a\n", "1\ta\n",
)  # fmt: skip
"""What adversarial texts repeat, of each kind one."""
SHAPES: Final = (
    *KINDS, "\r", "\t", "\r\n", "]", "{", "(", "*", "?", "-", '"', "`", "<", ">", "&", "%", "0", ".", ",", ":", "#",
    "~", "@", "é", "e\u0301", "\u2028", "\0", "\U0001f600", "a ", " \n", "\na ", "a/", "/a", "**/", "*a", "[a", "[[:",
    "[a-", "{a,b}", "a|", "(a|b)", "a{9}", "\\[", "\\n", "</", "&lt;", "&#0;", "%41", "a: b\n", "- ", "---\n", "a: [",
    "{{", "!a b ", "     1\t", "1→", "@@ -1 +1 @@\n", "*** ", "+a\n", "```\n", "data:,", "x://", "Error: ", "\\u0041",
    "@deepfs ", "[stderr] ", "a=b&", "::",
)  # fmt: skip
"""All of them, which `nox -s stress` tries."""
ENDS: Final = (("", ""), ("a", "\x01"), ("---\na: ", "\n---\n"))
"""What such a text begins and ends with."""


def _text(number: int, size: int) -> str:
    shape, (begin, end) = SHAPES[number], ENDS[number % len(ENDS)]
    return begin + (shape * (size // len(shape) + 1))[: size - len(begin) - len(end)] + end


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


def _as_data(text: str) -> Any:
    return records.new_file(text)


def _search(pattern: str, text: str, **options: Any) -> object:
    return query.search(query.compile_query(pattern, **options), "/a", text)


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

TEXTS: Final[dict[str, Callable[[str], object]]] = {
    # deepfs/text
    "edits.hint": lambda text: edits.hint(text, "a  a\nb" + text[:1000]),
    "edits.hint of a long text": lambda text: edits.hint("a\nb\n" * 100, text),
    "edits.find_misreading": lambda text: edits.find_misreading(text, "é" + text[:1000]),
    "edits.find_misreading of a long text": lambda text: edits.find_misreading("a\nb\n" * 100, text),
    "edits.replace": lambda text: edits.replace("/a", text, text[:3], "x", True),
    "edits.replace once": lambda text: edits.replace("/a", text, text[: len(text) // 2], "x"),
    "lines.check_text": lines.check_text,
    "lines.decode": lambda text: lines.decode(text.encode()),
    "lines.digest": lambda text: lines.digest(text.encode()),
    "lines.facts": lines.facts,
    "lines.has_plain_lines": lambda text: lines.has_plain_lines(text.encode()),
    "lines.is_text": lines.is_text,
    "lines.line_count": lines.line_count,
    "lines.utf8_size": lines.utf8_size,
    "lines.version": lines.version,
    "lines.window": lambda text: lines.window(text, 5, 100_000),
    "media.extension": media.extension,
    "media.is_binary_name": media.is_binary_name,
    "media.is_binary_type": media.is_binary_type,
    "media.mime_type": media.mime_type,
    "media.other_encoding": lambda text: media.other_encoding(text.encode()),
    "media.sniff": lambda text: media.sniff(text.encode()),
    "paths.ancestors": lambda text: paths.ancestors("/" + text[:4096]),
    "paths.are_plainly_normal": lambda text: paths.are_plainly_normal([text]),
    "paths.end_of_prefix": paths.end_of_prefix,
    "paths.host_path": lambda text: paths.host_path(text, "/"),
    "paths.is_beneath": lambda text: paths.is_beneath(text, "/a"),
    "paths.is_normal": paths.is_normal,
    "paths.is_visible": paths.is_visible,
    "paths.join": lambda text: paths.join("/a", text),
    "paths.name": paths.name,
    "paths.normalize": paths.normalize,
    "paths.parent": paths.parent,
    "paths.relative": lambda text: paths.relative(text, "/a"),
    "paths.visible_in": lambda text: paths.visible_in("", list(filter(None, text.split("/")))),
    "records.content_bytes": lambda text: records.content_bytes(_as_data(text)),
    "records.decode_file": lambda text: records.decode_file({"content": text.split("\n")}, "/a"),
    "records.encode_file": lambda text: records.encode_file(_as_data(text), "v1"),
    "records.new_file": records.new_file,
    "records.read_binary": lambda text: records.read_binary(
        "/a", text.encode(), at=_as_data(""), content_version="", limit=1 << 30
    ),
    "records.read_data": lambda text: records.read_data("/a", _as_data(text), 3, 100_000, max_binary=1 << 30),
    "records.read_text": _read,
    "records.read_window": lambda text: records.read_window(_as_data(text), lines.window(text, 0, 10), ""),
    "records.searchable_content": lambda text: records.searchable_content(_as_data(text)),
    "records.size_of": lambda text: records.size_of(_as_data(text)),
    "records.text_of": lambda text: records.text_of(_as_data(text), "/a"),
    "records.to_v1": lambda text: records.to_v1(_as_data(text)),
    "visible.escape_controls": visible.escape_controls,
    "visible.fence": lambda text: visible.fence("a", text),
    "visible.one_line": visible.one_line,
    "visible.output_text": visible.output_text,
    "visible.display_path": visible.display_path,
    "visible.visible": visible.visible,
    "visible.without_tags": lambda text: visible.without_tags(text, "a"),
    "arguments.check_bytes": lambda text: given.check_bytes("a", bytearray(text.encode())),
    "arguments.check_directory": lambda text: given.check_directory("a", text),
    "arguments.check_env": lambda text: given.check_env({text: text}),
    "arguments.path_list": lambda text: given.path_list(text.split("/")),
    "arguments.upload_list": lambda text: given.upload_list([(each, b"") for each in text.split("/")]),
    "entries.omission_of_name": entries.omission_of_name,
    # deepfs/search
    "query.compile_query regex": lambda text: query.compile_query(text, regex=True),
    "query.search": lambda text: _search("a", text),
    "query.search for two lines": lambda text: _search("a\na", text, context_lines=2),
    "query.search regex": lambda text: _search(r"(a|b)*c", text, regex=True),
    "query.search ignore_case": lambda text: _search(text[:100], text, ignore_case=True),
    "query.parse_numbered_matches": lambda text: query.parse_numbered_matches("/a", text.encode(), ["a", text[:50]]),
    "gitignore.compile_rules of long lines": _ignores_by_long_lines,
    "gitignore.rules_of_file": lambda text: gitignore.rules_of_file(text.encode()).verdict("a/b", is_dir=False),
    # deepfs/sandboxes
    "network.normal_host": network.normal_host,
    "rules.check_rules": lambda text: rules.FilesystemPermission(["read"], [f"/{text}"], "deny"),
    "wire.printable": wire.printable,
    "wire.failure_of": lambda text: wire.failure_of(text.encode().split(b" "), "/a"),
    "wire.parse_frame": lambda text: wire.parse_frame(text, "ab"),
    "wire.parse_frame begun": lambda text: wire.parse_frame(f"@deepfs ab py 1 - {text}", "ab"),
    "wire.command_text": lambda text: wire.command_text("sh", [text.encode()], text.encode()),
    # deepfs/mcp
    "resources.path_of": lambda text: resources.path_of(f"file:///{text}"),
    "resources.uri_of": resources.uri_of,
    "calls.failure_of": lambda text: calls.failure_of(ValueError(text)),
    # deepfs/config
    "urls.parse_address": urls.parse_address,
    "urls.parse_address of a file": lambda text: urls.parse_address(f"file://{text}"),
    "urls.with_options": lambda text: urls.with_options("a", {text: text}),
    # deepfs/middleware
    "rendering.command_output": lambda text: rendering.command_output(ExecuteResponse(output=text, exit_code=1)),
    "rendering.output_and_notes": rendering.output_and_notes,
    "rendering.render_rows": lambda text: rendering.render_rows(text.split("\n"), 60_000),
    "rendering.page_rows": lambda text: rendering.page_rows(text.split("\n"), 0, 1000, 60_000, text),
    "rendering.number_lines": lambda text: rendering.number_lines("/a", _read(text), 0, 0, 60_000),
    "rendering.matches": lambda text: rendering.matches(_grep_result(text), "content"),
    "rendering.entries": lambda text: rendering.entries([FileInfo(path=f"/{text}", is_dir=False, size=1)]),
    "rendering.no_file": lambda text: rendering.no_file("/", text),
    "rendering.no_line": lambda text: rendering.no_line(text, "/", text, is_whole=True, regex=False, ignore_case=False),
    "rendering.literal_brackets": rendering.literal_brackets,
    "rendering.render_error": lambda text: rendering.render_error(errors.NotFoundError(text)),
    "rendering.plain_error": rendering.plain_error,
    "rendering.sentence": rendering.sentence,
    "rendering.closest": lambda text: rendering.closest(text, [text[1:], *text.split("/")]),
    "rendering.into_directory": lambda text: rendering.into_directory(f"/{text}", "/a"),
    "prompts.check_template": lambda text: prompts.check_template(text, ["x"]),
    "skill_files.parse_skill": lambda text: skill_files.parse_skill(text.encode(), "/a/SKILL.md"),
    "skill_files.instructions": lambda text: skill_files.instructions(text.encode()),
    "skill_files.limit_warnings": lambda text: skill_files.limit_warnings(text.split("\n")),
    "skill_files.render_warnings": lambda text: skill_files.render_warnings([text]),
    "skill_files.parse_skills": lambda text: skill_files.parse_skills({"skills_metadata": [text]}),
    "skill_files.render_skills": lambda text: skill_files.render_skills(
        [{"path": text, "name": text, "description": text}],  # type: ignore[typeddict-item]
        [text],
    ),
    "skill_files.render_pinned": lambda text: skill_files.render_pinned(
        {"path": text, "name": text},  # type: ignore[typeddict-item]
        text.encode(),
    ),
    "anthropic_memory.cut_list": anthropic_memory.cut_list,
    "anthropic_memory.insert_lines": lambda text: anthropic_memory.insert_lines(text, 1, text),
    "anthropic_memory.lines_of": anthropic_memory.lines_of,
    "anthropic_memory.lines_with": lambda text: list(anthropic_memory.lines_with(text, "a")),
    "anthropic_memory.page": lambda text: anthropic_memory.page(text.split("\n"), 1, 1000),
    "arguments.canonical_arguments": lambda text: arguments.canonical_arguments("read_file", {text: text}),
    "messages.inline": lambda text: messages.inline({"type": "image", "base64": text, "mime_type": "a/b"}),
    "messages.inline url": lambda text: messages.inline(
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text}"}}
    ),
    "messages.document_text": lambda text: messages.document_text(
        {"type": "document", "source": {"type": "text", "data": text}}
    ),
    "messages.encode": lambda text: messages.encode(text.encode()),
    "messages.may_be_json": lambda text: messages.may_be_json(AIMessage(text)),
    "messages.with_parsed_blocks": lambda text: messages.with_parsed_blocks(ToolMessage(text, tool_call_id="a")),
    "messages.media_type": lambda text: messages.media_type({"type": "image", "mime_type": text}),
    "messages.is_digest": messages.is_digest,
    "messages.is_blank": messages.is_blank,
    "messages.text_block": messages.text_block,
    "messages.media_block": lambda text: messages.media_block("/a.png", _as_data(text.encode()), 1 << 30),
    "messages.with_prompt": lambda text: messages.with_prompt(SystemMessage(text), text),
    # deepfs/compat
    "utils.check_empty_content": utils.check_empty_content,
    "utils.create_file_data": utils.create_file_data,
    "utils.file_data_to_string": lambda text: utils.file_data_to_string({"content": text.split("\n")}),
    "utils.format_content_with_line_numbers": utils.format_content_with_line_numbers,
    "utils.format_grep_matches": lambda text: utils.format_grep_matches(
        [{"path": "/a", "line": number, "text": line} for number, line in enumerate(text.split("\n"))], "content"
    ),
    "utils.grep_matches_from_files": lambda text: utils.grep_matches_from_files({"/a": _as_data(text)}, "a"),
    "utils.perform_string_replacement": lambda text: utils.perform_string_replacement(text, "a", "b"),
    "utils.regex_literal_hint": utils.regex_literal_hint,
    "utils.sanitize_tool_call_id": utils.sanitize_tool_call_id,
    "utils.slice_read_response": lambda text: utils.slice_read_response({"content": text.split("\n")}, 0, 1000),
    "utils.to_posix_path": utils.to_posix_path,
    "utils.truncate_if_too_long": utils.truncate_if_too_long,
    "utils.update_file_data": lambda text: utils.update_file_data({"content": text}, text),
    "utils.validate_path": utils.validate_path,
    "backend_answers.code_from": backend_answers.code_from,
    "backend_answers.parse_numbered": backend_answers.parse_numbered,
    "backend_answers.unnumbered of numbered lines": lambda text: backend_answers.parse_numbered(f"1\t{text}"),
    "backend_answers.unnumbered of one long line": lambda text: backend_answers.parse_numbered(
        "1\ta\n" + "".join(f"1.1\t{part}\n" for part in text.split())
    ),
    "backend_answers.complete_answer": lambda text: backend_answers.complete_answer(
        "read", _read(text), {"path": "/a", "offset": 0, "limit": 1000}
    ),
    "backend_answers.read_result": lambda text: backend_answers.read_result(text, "/a", 0, 1000),
    "backend_answers.change_result": lambda text: backend_answers.change_result(text, ReadResult, "/a"),
    # others
    "errors.clip": errors.clip,
    "errors.quote": errors.quote,
    "errors.error_about": lambda text: str(errors.error_about("file_not_found", text, text)),
    "errors.error_of": lambda text: str(errors.error_of("file_not_found", text)),
    "errors.foreign_text": errors.foreign_text,
    "brief.address": brief.address,
    "brief.arguments": brief.arguments,
    "brief.brief": lambda text: brief.brief([text, {text: text}]),
    "process.Kept": lambda text: _kept(text.encode()),
    "reducers.is_header": reducers.is_header,
    "reducers.operation_in": lambda text: reducers.operation_in(text.split("/")),
    "reducers.removals_in": lambda text: reducers.removals_in(text.split("/")),
    "reducers.digest_of": lambda text: reducers.digest_of({"/a": {"content": text}}),
    "reducers.removals_of": lambda text: reducers.removals_of({}, text.split("/")),
    "reducers.stored_version": lambda text: reducers.stored_version({"content": text}, "/a"),
    "reducers.stored_file": lambda text: reducers.stored_file({"content": text}, "/a"),
    "reducers.version_of": lambda text: reducers.version_of(_as_data(text)),
    "reducers.fold": lambda text: reducers.fold({"/a": {"content": text}}, [{"/a": {"content": text[1:]}}]),
}
"""By the name of the module and the function: a call with a text of any size."""

PROMPT: Final[dict[str, Callable[[str], object]]] = {
    "globs.compile_glob": lambda text: globs.compile_glob(text).may_enter("a"),
    "globs.compile_tree": lambda text: globs.compile_tree(f"/{text}"),
    "reference._matcher": lambda text: anyio.run(partial(reference._matcher, [text], anywhere=True)),
    "query.compile_query": query.compile_query,
    "request.query_of": lambda text: query_of(GrepRequest(text)),
    "literals.required_text": lambda text: literals.required_text(GrepRequest(text, regex=True)),
    "literals.path_needs": lambda text: literals.path_needs(FileFilter(GlobRequest(text))),
    "literals.folds_case": lambda text: literals.folds_case(GrepRequest(text, ignore_case=True)),
    "utils.compile_grep_include_glob": utils.compile_grep_include_glob,
    "gitignore.compile_rules": lambda text: gitignore.compile_rules([text]),
    "network._http_request": lambda text: anyio.run(_head, text),
    "network._http_request header": lambda text: anyio.run(_head, f"ET http://a/ HTTP/1.1\r\na:{text}\r\n\r\n"),
    "network._http_request URL": lambda text: anyio.run(_head, f"ET http://{text} HTTP/1.1\r\n\r\n"),
    "visible.one_line at once": visible.one_line,
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
    "answers.parse_resolved_paths": _of_answer(answers.parse_resolved_paths, b"ok /a//\n"),
    "answers.infos": _of_answer(lambda answer, _: list(answers.infos(answer, "/", "")), _ANSWER_LINES),
    "answers.list_directory": _of_answer(lambda answer, _: answers.list_directory(answer, "/", ""), _ANSWER_LINES),
    "answers.glob_files": _of_answer(
        lambda answer, _: answers.glob_files(Deadline(), answer, "", FileFilter(GlobRequest("**"))), _ANSWER_LINES
    ),
    "answers.grep_files": _of_answer(
        lambda answer, _: answers.grep_files(Deadline(), answer, "", GrepScan(_GREP, FileFilter(_GREP))),
        _ANSWER_LINES,
    ),
    "answers.tree_listing": _of_answer(lambda answer, _: answers.tree_listing(answer, "/", ""), _ANSWER_LINES),
    "answers.contents": _of_answer(
        lambda answer, count: list(answers.contents(answer, ["/a"] * count, 1 << 20)), b"ok 1 2\nab"
    ),
    "wire.check": _of_answer(lambda answer, _: wire.check(answer, "/"), b"E "),
    "entries.directories_of": _with_rows(lambda rows: entries.directories_of(_tree(rows))),
    "entries.empty_directories": _with_rows(lambda rows: entries.empty_directories(_tree(rows))),
    "entries.files_of": _with_rows(lambda rows: entries.files_of(_tree(rows))),
    "entries.list_implied": _with_rows(
        lambda rows: entries.list_implied("/d", [(f"/d/{row % 9}/{row}", 1) for row in rows])
    ),
    "entries.list_implied deep": _with_rows(
        lambda rows: entries.list_implied("/d", [("/d" * 400 + f"/{row}", 1) for row in rows]), 1000
    ),
    "entries.check_transferable": _with_rows(
        lambda rows: entries.check_transferable(TreeListing(_tree(rows)), "/d", moves=True)
    ),
    "entries.join_omissions": _with_rows(
        lambda rows: entries.join_omissions(*(entries.omission_of_name(str(row)) for row in rows))
    ),
    "flat_tree.file_paths": _with_rows(lambda rows: flat_tree.file_paths([f"/d/{row}" for row in rows])),
    "flat_tree.relocation": _with_rows(lambda rows: flat_tree.relocation("/d", "/e", [f"/d/{row}" for row in rows])),
    "flat_tree.FileTree": _with_rows(
        lambda rows: flat_tree.FileTree({f"/d/{row % 9}/{row}": _as_data("") for row in rows}).entries("/d"), 200
    ),
    "records.decode_files": _with_rows(
        lambda rows: records.decode_files({f"/{row}": {"content": ["a"]} for row in rows}), 50
    ),
    "request.glob_result": _with_rows(
        lambda rows: glob_result([FileInfo(path=f"/{-row}", is_dir=False) for row in rows])
    ),
    "reducers.fold_conflicts": _with_rows(lambda rows: reducers.fold_conflicts([], [[{"a": row}] for row in rows])),
    "reducers.fold of files": _with_rows(
        lambda rows: reducers.fold({}, [{f"/{row}": {"content": "a"}} for row in rows]), 500
    ),
    "utils.build_grep_results_dict": _with_rows(
        lambda rows: utils.build_grep_results_dict([{"path": f"/{row % 9}", "line": row, "text": ""} for row in rows])
    ),
    "backend_answers.infos": _with_rows(
        lambda rows: backend_answers.infos([{"path": f"/{row}"} for row in rows], "entries", "/")
    ),
    "backend_answers.match_list": _with_rows(
        lambda rows: backend_answers.match_list([{"path": "/a", "line": row, "text": "a"} for row in rows], "/")
    ),
    "backend_answers.children": _with_rows(
        lambda rows: backend_answers.children([{"path": f"/{row}/a/b"} for row in rows], "/")
    ),
    "backend_answers.outcome_list": _with_rows(
        lambda rows: backend_answers.outcome_list([], [str(row) for row in rows], FileUploadResponse)
    ),
    "backend_answers.completed of many": _with_rows(
        lambda rows: backend_answers.complete_answer(
            "ls", LsResult(entries=[FileInfo(f"/{row}", is_dir=False) for row in rows]), {"path": "/"}
        )
    ),
    "rules.decide": _with_rows(
        lambda rows: rules.decide(
            [rules.FilesystemPermission(["read"], [f"/{row % 500}/**"], "deny") for row in rows], "read", "/a"
        )
    ),
    "gitignore.Rules": _with_rows(lambda rows: _ignores(*(f"a{row}*b" for row in rows)), 500),
    "arguments.wrong_arguments": _with_rows(lambda rows: _wrong_arguments({str(row): row for row in rows})),
    "arguments.canonical_arguments of many": _with_rows(
        lambda rows: arguments.canonical_arguments("read_file", {str(row): row for row in rows})
    ),
    "brief.brief of many": _with_rows(lambda rows: brief.brief({row: [rows] for row in rows})),
}
"""Calls whose input is more than one text, made of a size."""


def _wrong_arguments(unknown: dict[str, Any]) -> object:
    try:
        return arguments.ReadArguments(**unknown)
    except ValueError as error:
        return arguments.wrong_arguments(error)


ELSEWHERE: Final = {
    "diff": "tests/text/test_patch_growth.py",
    "patches": "tests/text/test_patch_growth.py",
}
"""Modules whose functions are measured in other files."""

FIXED: Final = {
    *("arguments." + name for name in (
        "argument_of", "bytes_from_mb", "check_bool", "check_callable", "check_callables", "check_installed",
        "check_integer",
        "check_number", "check_string", "chunk_bytes", "seconds_of", "file_tool_name",
    )),
    *("entries." + name for name in (
        "check_target", "flat_place", "use_file_mode", "relation", "unnamed_omission", "unreadable_omission",
    )),
    *("flat_tree." + name for name in (
        "as_copy", "change_of", "check_parents", "check_replaceable", "check_version",
        "created_at", "file_info", "is_about_one_file", "change_of_move", "readable", "stat_of", "stats_of",
    )),
    *("lines.check_window", "records.text_file", "records.time_text", "records.timestamp", "gitignore._go_on"),
    *("urls.inert_serializer", "urls.open_url"),
    *("wire.bound_of", "wire.off_loop"),
    *("network.is_public", "network.listen_beside", "network.serve_proxy", "calls.output_schema", "calls.make_tool"),
    "resources.fetch",
    *("skill_files." + name for name in ("normal_path", "path_and_label", "too_large")),
    *("anthropic_memory." + name for name in (
        "async_memory_tool_of_sdk", "line_range", "memory_function", "memory_tool", "memory_tool_of_sdk", "size_text",
    )),
    *("messages." + name for name in (
        "blocks_of", "digest_of", "family", "fill_references", "form_of", "has_content", "has_media", "has_references",
        "has_url",
        "inline_size", "is_reference", "label", "refer", "correct_type", "standard",
    )),
    *("messages.map_messages", "messages.messages_of", "messages.retype_block", "errors.error_class"),
    *("brief.format_attributes", "brief.struct_repr", "utils.normalize_read_bounds"),
    *("backend_answers.failure_in", "backend_answers.shows_file"),
    *("rules.decide_beneath", "rules.decisions_beneath", "reducers.conflicts_of"),
    *("reducers.header_of", "reducers.next_change"),
}  # fmt: skip
"""What takes no text of others, or only looks at the kind of what it gets."""

MODULES: Final = (
    *("arguments", "diff", "edits", "entries", "flat_tree", "lines", "media", "patches", "paths", "records", "visible"),
    *("deepfs.search." + name for name in ("globs", "gitignore", "literals", "query", "request")),
    *("deepfs.sandboxes." + name for name in ("answers", "network", "wire")),
    *("deepfs.mcp.calls", "deepfs.mcp.resources", "deepfs.config.urls"),
    *("deepfs.middleware." + name for name in ("arguments", "anthropic_memory", "rendering", "skill_files")),
    *(
        "deepfs.middleware._messages",
        "deepfs.compat.utils",
        "deepfs.backends.answers",
    ),
    *("deepfs._langgraph.reducers", "deepfs.errors", "deepfs._brief", "deepfs.policy.rules"),
)


def functions() -> Iterable[str]:
    """The functions without a leading underscore that the modules define."""
    for name in MODULES:
        module = import_module(name if "." in name else f"deepfs.text.{name}")
        # Not only sandboxes have a module `answers`.
        short = "backend_answers" if module is backend_answers else module.__name__.rpartition(".")[2].lstrip("_")
        for key, value in vars(module).items():
            plain = inspect.unwrap(value) if callable(value) else None
            if inspect.isfunction(plain) and plain.__module__ == module.__name__ and key[0] != "_":
                yield f"{short}.{key}"


# --- tests -----------------------------------------------------------------------------------------------------------


def test_every_function_is_listed() -> None:
    listed = {name.split(" ")[0] for name in [*TEXTS, *PROMPT, *SIZED, *FIXED]}
    found = {name for name in functions() if name.partition(".")[0] not in ELSEWHERE}
    assert found - listed == set(), "measure it, or say that it takes nothing that grows"
    assert {name for name in FIXED if "._" not in name} - found == set(), "it is no more"


@pytest.mark.parametrize("count", few_or_many(len(KINDS), len(SHAPES)))
@pytest.mark.parametrize("name", TEXTS)
def test_time_grows_with_the_text(name: str, count: int) -> None:
    for number, shape in enumerate(SHAPES[:count]):
        steep = steep_growth(lambda size, number=number: partial(TEXTS[name], _text(number, size)))  # type: ignore[misc]
        assert not steep, (shape, steep)


@pytest.mark.parametrize("name", SIZED)
def test_time_grows_with_the_number(name: str) -> None:
    assert not steep_growth(SIZED[name])


@pytest.mark.parametrize("count", few_or_many(len(KINDS), len(SHAPES)))
@pytest.mark.parametrize("name", PROMPT)
def test_what_is_too_long_for_the_loop_is_refused_at_once(name: str, count: int) -> None:
    for number in range(count):
        for size in (1_000, 2_000, 1_000_000):
            text, ratios = _text(number, size), list[float]()
            for _ in range(5):
                ratios.append(seconds_of(partial(PROMPT[name], text)) / seconds_of(_count))
                if ratios[-1] < _PROMPT:
                    break
            assert min(ratios) < _PROMPT, (text[:40], size, ratios)


def _count() -> None:
    """Work of one size, measured beside each call, so that a slow or loaded machine slows both."""
    for _ in range(100_000):
        pass


_PROMPT: Final = 30.0
"""How many times longer than `_count` a call may take. The longest takes four to eleven times, as the machine is; a
text of 1,000,000 characters that is not refused takes hundreds."""
