"""What a model is told: pages, suggestions, matches in long lines, and the tools that it is offered."""

import re
from functools import partial
from itertools import product
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool
from langsmith import Client, tracing_context

from deepfs import (
    CompositeBackend,
    FilesystemBackend,
    FilesystemMiddleware,
    FilesystemPermission,
    MemoryBackend,
    PermissionedBackend,
    create_deep_agent,
    run_sync,
)
from deepfs.backends.local_shell import LocalShellBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.utils import create_file_data
from deepfs.backends.wrapper import WrapperBackend
from deepfs.errors import BackendError
from deepfs.middleware import apply_patch_tool
from deepfs.middleware.arguments import TOOL_NAMES
from deepfs.middleware.offloading import Evictor
from deepfs.middleware.rendering import command_output
from deepfs.middleware.tools import filesystem_tools
from deepfs.operations import Operation
from deepfs.policy import ReadOnlyBackend
from deepfs.testing import FaultyBackend
from deepfs.types import ExecuteResponse, GrepMatch, GrepResult
from support.agents import Invoke, Sandbox, results
from support.chat import ScriptedModel, call, calls


def stored(**files: str) -> MemoryBackend:
    backend = MemoryBackend()
    for path, content in files.items():
        backend.write(path, content)
    return backend


def tools(backend: Any, **options: Any) -> dict[str, BaseTool]:
    return {tool.name: tool for tool in filesystem_tools(backend, **options)}


def says(backend: Any, name: str, /, **arguments: Any) -> str:
    return run_sync(tools(backend)[name].ainvoke, arguments)


# --- pages -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments", "options"),
    [("ls", {"path": "/d"}, {"max_result_chars": 3_000}), ("glob", {"pattern": "d/*"}, {})],
)
def test_a_long_list_is_read_in_pages_in_a_fixed_order(name: str, arguments: Any, options: Any) -> None:
    names = [f"/d/{number:04}" for number in range(2_500)]
    tool = tools(stored(**dict.fromkeys(reversed(names), "")), **options)[name]
    seen, offset = [], 0
    for _ in range(100):
        *rows, note = tool.invoke({**arguments, "offset": offset}).split("\n")
        following = re.fullmatch(r"\[[\d,]+ to [\d,]+ of 2,500. Go on with offset=(\d+)\]", note)
        shown = rows if following else [*rows, note]
        if name == "ls":
            assert shown.pop(0) == "/d:"
            shown = ["/d/" + row.partition("\t")[0] for row in shown]
        seen += shown
        if not following:
            break
        offset = int(following[1])
    assert seen == names
    assert tool.invoke({**arguments, "offset": 9_000}) == "[There are only 2,500. Begin with offset=0]"


def test_a_listing_names_its_directory_once() -> None:
    path = f"/{'d' * 150}/a"
    backend = stored(**{"/a": "", "/b/c d/e": "", "/b/[1 to 1 of 9]": "", "/b/Error: no": "1", path: ""})
    assert says(backend, "ls") == "/a\t0\n/b/\n/" + "d" * 150 + "/"
    for asked in ("/b", "b", "/b/"):
        assert says(backend, "ls", path=asked) == '/b:\n"Error: no"\t1\n"[1 to 1 of 9]"\t0\nc d/'
    assert says(backend, "ls", path="/b/c d") == "/b/c d:\ne\t0"
    assert says(backend, "ls", path=path[:-2], limit=1, offset=1) == "[There are only 1. Begin with offset=0]"
    assert says(backend, "ls", path=path[:-2]) == f"{path[:-2]}:\na\t0"
    tool = tools(backend, max_result_chars=400)["ls"]
    assert tool.invoke({"path": path[:-2]}) == f"{path}\t0", "a path that takes too much room"


def test_numbers_of_any_size_are_taken() -> None:
    backend = stored(**{"/a": "", "/b": "", "/c": ""})
    for number in (2**31, 2**63 - 1, 2**63, 10**23):
        assert says(backend, "ls", offset=number) == "[There are only 3. Begin with offset=0]"
        assert says(backend, "ls", limit=number) == "/a\t0\n/b\t0\n/c\t0"
        assert says(backend, "glob", pattern="*", offset=number) == "[There are only 3. Begin with offset=0]"
    assert says(backend, "ls", offset=1, limit=1) == "/b\t0\n[2 to 2 of 3. Go on with offset=2]"


def test_a_negative_offset_reads_the_last_lines() -> None:
    backend = stored(**{"/a": "1\n2\n3\n4\n"})
    assert says(backend, "read_file", file_path="/a", offset=-2) == "3\t3\n4\t4"
    assert says(backend, "read_file", file_path="/a", offset=-9, limit=1).startswith("1\t1\n")


# --- matches in long lines -------------------------------------------------------------------------------------------

DEEP = "é" * 20_000 + "needle" + "z" * 20_000


SEARCHES: list[dict[str, Any]] = [
    {"pattern": "needle"},
    {"pattern": "NEEDLE", "ignore_case": True},
    {"pattern": "ne+dle", "regex": True},
    {"pattern": "(?i)NEE..E", "regex": True},
]


def test_a_match_deep_in_a_line_is_shown_with_its_place() -> None:
    for search, before in product(SEARCHES, [0, 1_500, 4_990, 4_998, 20_000]):
        backend = stored(**{"/a": f"one\n{DEEP[20_000 - before :]}\nthree\n"})
        found = says(backend, "grep", output_mode="content", **search)
        assert len(found) < 900
        shown = re.fullmatch(r"/a:\n  2: …?(.*?)… \[cut; offset=1, column=(\d+); the match is at column=(\d+)\]", found)
        assert shown, found
        assert "needle" in shown[1]
        assert int(shown[3]) == before
        read = says(backend, "read_file", file_path="/a", offset=1, column=int(shown[2]), limit=1)
        assert read.removeprefix("2\t").startswith(shown[1])
        assert says(backend, "read_file", file_path="/a", offset=1, column=before).startswith("2\tneedle")


def test_a_backend_may_read_patterns_in_its_own_way() -> None:
    class Own(WrapperBackend):
        async def agrep(self, *_: Any, **options: Any) -> GrepResult:
            return GrepResult(matches=[GrepMatch("/a", 1, DEEP[:5_000])])

    found = says(Own(stored(**{"/a": DEEP})), "grep", pattern="(?=needle)", regex=True, output_mode="content")
    assert "the match may be further on" in found


def test_few_long_lines_are_read_again() -> None:
    counted = Counted(stored(**{"/a": f"{DEEP}\n" * 50}))
    assert says(counted, "grep", pattern="needle", output_mode="content").count("at column=20000") == 20
    assert counted.made.count("read") == 20


# --- searches that find nothing --------------------------------------------------------------------------------------


def test_a_literal_pattern_that_looks_like_an_expression_is_told() -> None:
    backend = stored(**{"/a": "text"})
    expressions = [r"def \w+\(", "mean|median", "a.*b", "^^x", "f$", r"a\.b", "[a-z]+", "(a|b)"]
    plain = ["price: $5", "f(x)", "a || b", "C:/x", "what?", "[x]", "1.5", "Begin"]
    told = [pattern for pattern in (*expressions, *plain) if "regex=true" in says(backend, "grep", pattern=pattern)]
    assert told == expressions


def test_a_search_that_found_nothing_says_what_the_pattern_means() -> None:
    dots = "Case matters, and names that start with a dot need a part of the pattern that does, as in .github/READ*"
    backend = stored(**{"/a.py": "text", "/readme.md": ""})
    for name, pattern, told in [
        ("grep", "-rn total", "Give options as arguments of their own, not in the pattern"),
        ("grep", '"total"', "Leave out the quotes unless the text has them"),
        ("grep", "-> total", "Case matters unless ignore_case is set"),
        ("glob", "*.py,*.ts", "Write several patterns as {*.py,*.ts}"),
        ("glob", "*.py|*.ts", "Write several patterns as {*.py,*.ts}"),
        ("glob", "src\\*.py", "Use / between names; a backslash only goes before a special character"),
        ("glob", "READ*", dots),
        ("glob", "src", "Only files are found: try **/src/** for a directory, *src* for a part of a name"),
        ("glob", "src/lib/READ*", "The pattern READ* alone matches at any depth"),
    ]:
        text = says(backend, name, pattern=pattern)
        assert text.startswith("[No ")
        assert text.endswith(f". {told}]"), text
    assert says(backend, "glob", pattern="{*.js,*.rs}").endswith(", as in .github/{*.js,*.rs}]")


def test_a_glob_with_brackets_is_told_how_to_write_names_with_brackets() -> None:
    backend = stored(**{"/app/[slug]/page.tsx": "", "/app/[[...sign-in]]/page.js": ""})
    for pattern, told in [
        ("app/[slug]/*", r"app/\[slug\]/*]"),
        ("**/[[...sign-in]]/*", r"**/\[\[...sign-in\]\]/*."),
        (r"app/\[id\]/[slug]", r"app/\[id\]/\[slug\]]"),
    ]:
        for text in (says(backend, "glob", pattern=pattern), says(backend, "grep", pattern="x", glob=pattern)):
            assert text.endswith(f". If the brackets are part of a name, write {told}"), text
    assert says(backend, "glob", pattern=r"app/\[slug\]/*") == "/app/[slug]/page.tsx"
    assert says(backend, "read_file", file_path=r"/app/\[slug\]/page.tsx").endswith("Did you mean /app/[slug]/?")


# --- paths that do not exist -----------------------------------------------------------------------------------------

PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)
TREE = {"/src/main.py": "", "/src/util.py": "", "/notes/Caf\u00e9.txt": "", "/notes/a b.txt": "", "/README.md": ""}


MISSING = [
    ("read_file", "/src/mian.py", "File '/src/mian.py' not found. Did you mean /src/main.py?"),
    ("read_file", "src/main.txt", "Did you mean /src/main.py?"),
    ("read_file", "/readme.md", "Did you mean /README.md?"),
    ("read_file", "/scr/deep/main.py", "Did you mean /src/?"),
    ("read_file", "/home/me/src/main.py", "Paths start at the root of this filesystem: list it with ls."),
    ("read_file", "/home/me/x", "Paths start at the root of this filesystem: list it with ls."),
    ("read_file", "/src/lib/x", "The nearest directory that exists is /src."),
    ("read_file", "/README.md/x", "/README.md is a file: use its own path."),
    ("read_file", "/notes/cafe\u0301.txt", 'Did you mean "/notes/Caf\\u00e9.txt"?'),
    ("read_file", "/src/zzz.rs", "Find the right path with ls or glob."),
    ("ls", "/srcs", "Directory '/srcs' not found. Did you mean /src/?"),
    ("read_file", '"/src/main.py"', "Paths start at the root of this filesystem: list it with ls."),
    ("read_file", "/notes/a\\ b.txt", "Did you mean /notes/a b.txt?"),
    ("read_file", "/src/*.py", "Wildcards are not expanded in a path: find the paths with glob."),
    ("delete", "/src/*", "Wildcards are not expanded in a path: find the paths with glob."),
    ("delete", "/src/utils.py", "not found. It may be deleted already. Did you mean /src/util.py?"),
]
EDIT = {"old_string": "one", "new_string": "1"}
ADVICE: list[tuple[str, dict[str, Any], str]] = [
    ("ls", {"path": "~/src"}, "start the path with '/'. Give another absolute path."),
    ("ls", {"path": "../"}, "name the path from '/'. Give another absolute path."),
    ("ls", {"path": "/README.md"}, "is not a directory. Use read_file for a file."),
    ("ls", {"path": "/README.md/x"}, "/README.md is a file: read it with read_file."),
    ("read_file", {"file_path": "C:\\src\\main.py"}, "separate names with '/'. Give another absolute path."),
    ("read_file", {"file_path": "/src"}, "List it with ls, or name a file."),
    ("read_file", {"file_path": "/README.md", "offset": 9}, "2 lines"),
    ("read_file", {"file_path": "/README.md", "column": 9}, "has 3 characters"),
    ("read_file", {"file_path": "/README.md", "limit": 0}, "limit: it must be at least 1, not 0."),
    ("read_file", {}, "file_path is missing. read_file takes"),
    ("read_file", {"file_path": "/a\0"}, "it holds a NUL character. Give another absolute path."),
    ("read_file", {"file_path": "/set overwrite.md"}, "not found. Find the right path with ls or glob."),
    ("read_file", {"file_path": ["/a", "/b"]}, "file_path must be a string, not a list: make one call for each."),
    ("write_file", {"file_path": "/new/", "content": ""}, "its directories are made with it."),
    ("write_file", {"file_path": "/README.md", "content": ""}, "To change a part of it, use edit_file."),
    ("write_file", {"file_path": "/src", "content": ""}, "is a directory. Add the name of a file to the path."),
    ("write_file", {"file_path": "/README.md/x", "content": ""}, "Choose a path that is not below a file."),
    ("write_file", {"file_path": "/a", "content": {"a": 1}}, "content must be a string, not an object."),
    ("write_file", {"file_path": "/a", "content": ["a", "b"]}, "content must be a string, not a list."),
    ("write_file", {"file_path": "/a", "content": 5}, "content must be a string, not a number."),
    ("edit_file", {"file_path": "/a.bin", "old_string": "a", "new_string": "b"}, "Leave it as it is, and say so."),
    ("edit_file", {"file_path": "/README.md", "old_string": "1\tone", "new_string": "b"}, "Leave them out."),
    ("edit_file", {"file_path": "/README.md", "old_string": "x", "new_string": "b"}, "without line numbers."),
    ("edit_file", {"file_path": "/README.md", "old_string": "tow", "new_string": "b"}, "or read the file again."),
    ("edit_file", {"file_path": "/README.md", "old_string": "o", "new_string": "b"}, "replace_all"),
    ("edit_file", {"file_path": "/README.md"}, "old_string and new_string are missing. edit_file takes"),
    ("edit_file", {"file_path": "/README.md", "new_string": "b", "edits": [EDIT]}, "but not both"),
    ("edit_file", {"file_path": "/README.md", "edits": [EDIT, {"old": "b"}]}, "edits.1.old_string is missing"),
    ("edit_file", {"file_path": "/README.md", "edits": [EDIT, EDIT]}, "This was edit 2 of 2; nothing was changed."),
    ("edit_file", {"file_path": "/a.bin", "edits": [EDIT]}, "Leave it as it is, and say so."),
    ("edit_file", {"file_path": "/none.md", "edits": [EDIT]}, "Did you mean /notes/?"),
    ("move", {"source": "/README.md", "destination": "/new/"}, "give /new/README.md."),
    ("move", {"source": "/README.md", "destination": "../a.md"}, "from '/'. Give another absolute path."),
    ("move", {"source": "/src", "destination": "/README.md", "overwrite": True}, "Choose another destination."),
    ("move", {"source": "/README.md", "destination": "/src", "overwrite": True}, "give /src/README.md."),
    ("move", {"source": "/README.md", "destination": "/src"}, "To move it into the directory, give /src/README.md."),
    ("move", {"source": "/src", "destination": "/src/x"}, "it lies inside /src. Give another absolute path."),
    ("move", {"source": "/src/main.py", "destination": "/README.md"}, "new path, or set overwrite to replace it."),
    ("glob", {"pattern": "../*"}, "Correct the pattern, or set path."),
    ("grep", {"pattern": "(", "regex": True}, "or set regex=false to find plain text."),
    ("grep", {"pattern": "x", "output_mode": "json"}, "output_mode: "),
    ("delete", {"file_path": "/zzz"}, "It may be deleted already; if not, find the right path with ls or glob."),
    ("delete", {"file_path": "/"}, "choose a path"),
]


def test_errors_say_what_to_do_next_with_the_tool_that_was_called() -> None:
    backend = stored(**TREE)
    backend.write("/README.md", "one\ntwo\n", overwrite=True)
    backend.upload_files([("/a.bin", b"\xff\0")])
    for name, path, told in MISSING:
        text = says(backend, name, **{"path" if name == "ls" else "file_path": path})
        assert text.startswith("Error: ")
        assert text.endswith(told), text
    for name, arguments, told in ADVICE:
        text = says(backend, name, **arguments)
        assert text.startswith(("Error: ", "Invalid regex pattern: ")), text
        assert told in text, text
        assert len(text) < 400


def test_a_place_in_a_file_may_be_read_as_searches_name_it() -> None:
    backend = stored(**{"/a.py": "".join(f"{number}\n" for number in range(1, 100)), "/b:7": "b"})
    around = "50\t50\n51\t51\n[Lines 50 to 51 of 99. Read on with offset=51]"
    assert says(backend, "read_file", file_path="/a.py:51", limit=2) == around
    assert says(backend, "read_file", file_path="/a.py:51:3", limit=2) == around
    assert says(backend, "read_file", file_path="/b:7") == "1\tb"
    assert says(backend, "read_file", file_path="/a.py:900", limit=2).endswith("not found. Did you mean /a.py?")


def test_advice_names_only_tools_that_are_offered(tmp_path: Any) -> None:
    few = tools(stored(**TREE), tools=["read_file", "write_file"])
    assert few["read_file"].invoke({"file_path": "/zzz"}) == "Error: File '/zzz' not found. Check the path."
    assert few["read_file"].invoke({"file_path": "/src"}) == "Error: '/src' is a directory. Name a file."
    assert "edit_file" not in few["write_file"].invoke({"file_path": "/README.md", "content": ""})
    (tmp_path / "a.bin").write_bytes(b"\xff\0")
    shell = LocalShellBackend(tmp_path)
    edit = {"file_path": "/a.bin", "old_string": "a", "new_string": "b"}
    assert says(shell, "edit_file", **edit).endswith("Change it with execute.")
    assert "execute" not in tools(shell, execute=False)["edit_file"].invoke(edit)


class Counted(WrapperBackend):
    """Notes the names of the operations."""

    def __init__(self, inner: BackendProtocol) -> None:
        super().__init__(inner)
        self.made: list[str] = []

    async def run(self, operation: Operation) -> Any:
        self.made += operation.known_as
        return await super().run(operation)


def test_a_suggestion_takes_few_listings_and_shows_nothing_that_rules_hide() -> None:
    counted = Counted(stored(**{"/src/secret.py": "", "/src/open.py": ""}))
    hidden = FilesystemPermission(operations=["read"], paths=["/src/secret.py"], mode="deny")
    assert "secret.py?" not in says(PermissionedBackend(counted, [hidden]), "read_file", file_path="/src/secrets.py")
    assert counted.made.count("ls") == 1
    counted.made.clear()
    says(counted, "read_file", file_path="/x" * 500)
    assert counted.made.count("ls") <= 8
    broken = FaultyBackend(counted, {"ls": BackendError("Error: gone")})
    assert says(broken, "read_file", file_path="/a/b/c").endswith("Find the right path with ls or glob.")


# --- files that are not shown -----------------------------------------------------------------------------------------


def test_a_file_that_is_not_shown_is_told_what_it_is() -> None:
    backend = MemoryBackend()
    for name, content, told in [
        ("/a.txt", "d\xe9j\xe0 vu\n".encode("latin-1"), "is not UTF-8 but likely Latin-1 text (8 bytes)"),
        ("/a.txt", "d\xe9j\xe0 vu\n".encode("utf-16"), "is not UTF-8 but likely UTF-16 text (18 bytes)"),
        ("/a.txt", "\u65e5\u672c\u8a9e".encode("shift-jis"), "is a binary file (application/octet-stream, 6 bytes)"),
        ("/a.txt", b"text\0\xff", "is a binary file (application/octet-stream, 6 bytes)"),
        ("/a.png", b"no picture", "does not hold the image/png that its name says (10 bytes)"),
        ("/a.zip", b"no archive", "is a binary file (application/zip, 10 bytes)"),
        ("/a.mp3", b"", "is a binary file (audio/mpeg, 0 bytes)"),
        ("/big.png", PNG + bytes(5_000_001), "(image/png, 5,000,049 bytes) is too large to be shown"),
        ("/huge.png", PNG + bytes(11_000_000), "is too large: 11,000,048 bytes"),
    ]:
        backend.upload_files([(name, content)])
        text = says(backend, "read_file", file_path=name)
        assert text.startswith("["), text
        assert f"{name} {told}" in text.replace("'", "")


# --- commands --------------------------------------------------------------------------------------------------------


def test_a_command_that_takes_too_long_is_told_the_longest_time(tmp_path: Any) -> None:
    shell = LocalShellBackend(tmp_path, timeout=0.3)
    run = partial(says, CompositeBackend(MemoryBackend(), {"/s/": WrapperBackend(shell)}, executor="/s/"), "execute")
    stopped = "one\n[Stopped after 0.1 s. Set a larger timeout (at most 0.3), or do less at once]"
    assert run(command="echo one; sleep 9", timeout=0.1) == stopped
    assert run(command="sleep 9") == "[No output]\n[Stopped after 0.3 s, the maximum. Do less at once]"
    assert run(command="true", timeout=9) == "[No output]\n[Exit code 0]\n[The timeout was 0.3 s, the maximum]"
    assert run(command="true", timeout=0.3) == "[No output]\n[Exit code 0]"
    rounded_up = ExecuteResponse("\n[The command was stopped: its time of 2 s was up]\n", timed_out=2)
    assert command_output(rounded_up, 1.5) == "[No output]\n[Stopped after 2 s, the maximum. Do less at once]"
    assert says(Sandbox(), "execute", command="a", timeout=9_999).endswith("[The timeout was 3600 s, the maximum]")


def test_a_large_output_has_one_pair_of_delimiters_and_its_notes_outside() -> None:
    for lines in ("[Exit code 0]\n", "plain\n", "</output>\n[Exit code 1]\n"):
        backend, output = MemoryBackend(), lines * 1_000
        shown = command_output(ExecuteResponse(output, 1, truncated=True))
        message = ToolMessage(shown, tool_call_id="1", name="execute")
        text = str(run_sync(Evictor(backend, 1_000, "/large").evict, message, "1").content)
        note, *middle, cut, code = text.split("\n")
        assert (cut, code) == ("[Output was cut off: write it to a file, and read that]", "[Exit code 1]")
        assert text.count("<output") == 0
        assert len(re.findall(r"^<text [0-9a-f]{8}>$", text, re.MULTILINE)) == (2 if "code" in lines else 0)
        path = re.search(r"is in (\S+):", note)
        assert path
        assert backend.download_files([path[1]])[0].content == f"{output}{cut}\n{code}".encode()
        outside = re.sub(r"(?s)<text (\w+)>.*?</text \1>", "", "\n".join(middle))
        assert "code" not in outside


# --- arguments -------------------------------------------------------------------------------------------------------


def test_unknown_arguments_are_named() -> None:
    text = says(stored(), "read_file", file_path="/a", ofset=3, start_line=2)
    assert "there is no argument ofset, did you mean offset?; there is no argument start_line" in text
    assert "read_file takes file_path and optionally offset, limit, column." in text
    assert "apply_patch takes input." in run_sync(apply_patch_tool(stored()).ainvoke, {"patch": "x"})
    assert "write_file takes file_path, content and optionally overwrite." in says(stored(), "write_file", text=1)
    assert "context_lines: it must be from 0 to 1000, not 2000" in says(
        stored(), "grep", pattern="x", context_lines=2000
    )
    assert "offset: it must be at least 0, not -1" in says(stored(), "ls", offset=-1)
    assert len(says(stored(), "ls", **{f"{number}{'x' * 5_000}": 1 for number in range(500)})) < 1_000


ALIASES: list[tuple[str, dict[str, Any], str]] = [
    ("read_file", {"path": "/a"}, "1\tone"),
    ("edit_file", {"path": "/a", "old_str": "one", "new_str": "two"}, "Replaced 1 occurrence in /a"),
    ("write_file", {"filename": "b", "file_text": ""}, "Wrote /b"),
    ("ls", {"directory": "/"}, "/a\t4"),
    ("grep", {"query": "ONE", "-i": True, "-n": True, "head_limit": 3}, "/a"),
    ("move", {"src": "/a", "dst": "b"}, "Moved /a to /b"),
    ("glob", {"pattern": "*", "directory": "/"}, "/a"),
    ("grep", {"pattern": "one", "-A": 1, "-B": 1, "output_mode": "content"}, "/a:\n  1: one"),
    ("read_file", {"path": None, "file": "/a"}, "1\tone"),
]


def test_names_of_arguments_of_other_tools_are_understood(invoke: Invoke) -> None:
    for name, arguments, told in ALIASES:
        backend = stored(**{"/a": "one\n"})
        model = ScriptedModel(script=[calls(call(name, **arguments)), AIMessage("Done.")])
        agent = create_agent(model, middleware=[FilesystemMiddleware(backend)])
        assert [message.content for message in results(invoke(agent, {"messages": [("user", "go")]}))] == [told]
        # Without the middleware, an approval would not see the names, so the tool refuses them.
        assert "did you mean" in says(backend, name, **arguments)


# --- the tools that are offered --------------------------------------------------------------------------------------

READING = {"ls", "read_file", "glob", "grep"}
NO_WRITES = FilesystemPermission(operations=["write"], mode="deny")
SOME_WRITES = FilesystemPermission(operations=["write"], paths=["/out/**"])


def test_tools_that_the_backend_would_refuse_are_not_offered(invoke: Invoke) -> None:
    memory, refusing = MemoryBackend, lambda: ReadOnlyBackend(MemoryBackend())
    all_but_commands = set(TOOL_NAMES) - {"execute"}
    given: list[tuple[Any, set[str]]] = [
        (ReadOnlyBackend(Sandbox()), READING),
        (WrapperBackend(refusing()), READING),
        (CompositeBackend(refusing(), {"/m/": refusing()}), READING),
        (CompositeBackend(refusing(), {"/m/": memory()}), all_but_commands),
        (PermissionedBackend(memory(), [NO_WRITES]), READING),
        (PermissionedBackend(memory(), [SOME_WRITES, NO_WRITES]), all_but_commands),
        (Sandbox(), set(TOOL_NAMES)),
    ]
    for backend, offered in given:
        assert set(tools(backend)) == offered
        model = ScriptedModel(script=[AIMessage("Done.")])
        invoke(create_deep_agent(model, middleware=[FilesystemMiddleware(backend)]), {"messages": [("user", "go")]})
        assert set(model.offered) & set(TOOL_NAMES) == offered


def test_the_tools_of_the_middleware_can_be_chosen() -> None:
    names: Any = ["read_file", "grep", "execute"]
    chosen = FilesystemMiddleware(stored(), tools=names)
    names.append("write_file")
    assert [tool.name for tool in chosen.tools] == ["read_file", "grep", "execute"]
    assert [tool.name for tool in chosen.with_backend(stored()).tools] == ["read_file", "grep", "execute"]
    assert [tool.name for tool in FilesystemMiddleware(stored(), tools="all").tools] == list(TOOL_NAMES)
    assert list(tools(stored(), tools=["grep", "execute"])) == ["grep"]
    for wrong in (["ls"], ["read_file", "cat"], "read_file"):
        with pytest.raises(ValueError, match=r"read_file|no such tool: cat"):
            FilesystemMiddleware(stored(), tools=wrong)


def test_the_number_of_matches_can_be_limited() -> None:
    backend = stored(**{"/a": "x\n" * 1_500})
    for most, expected in ((3, 3), (1_000, 1_000), (None, 1_500)):
        middleware = FilesystemMiddleware(backend, grep_max_count=most)
        grep = next(tool for tool in middleware.tools if tool.name == "grep")
        assert grep.invoke({"pattern": "x", "output_mode": "count"}).splitlines()[0] == f"/a: {expected}"
        assert grep.invoke({"pattern": "x", "output_mode": "count", "max_count": 2}).startswith("/a: 2")
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="grep_max_count"):
            FilesystemMiddleware(backend, grep_max_count=wrong)


def test_execute_says_where_commands_start_and_what_they_do_not_see(tmp_path: Any) -> None:
    shell = LocalShellBackend(tmp_path)
    assert "call `/`: its `/a/b` is `a/b` there." in tools(WrapperBackend(shell))["execute"].description
    mounted = CompositeBackend(shell, {"/memories/": MemoryBackend()})
    assert tools(mounted)["execute"].description.endswith("They do not see `/memories/`.")
    notes, shared = FilesystemBackend(tmp_path / "notes"), ReadOnlyBackend(FilesystemBackend(tmp_path / "shared"))
    on_disk = CompositeBackend(shell, {"/m/": MemoryBackend(), "/notes/": notes, "/shared/": shared})
    told = tools(on_disk)["execute"].description
    assert told.endswith(f" `/notes/` is {tmp_path}/notes for them. They do not see `/m/`, `/shared/`.")
    assert f"{tmp_path}" not in tools(PermissionedBackend(on_disk, [NO_WRITES]))["execute"].description
    boxed = CompositeBackend(MemoryBackend(), {"/box/": shell}, executor="/box/")
    assert "call `/box`: its `/box/a/b` is `a/b` there." in tools(boxed)["execute"].description
    on_host = LocalShellBackend(tmp_path, virtual_mode=False)
    assert tools(on_host)["execute"].description.endswith(f"Commands start in {tmp_path}.")
    assert "Commands start" not in tools(Sandbox())["execute"].description


# --- traces ----------------------------------------------------------------------------------------------------------


class Recorder(Client):
    """Keeps the runs that would be sent, by the name of the run."""

    def __init__(self) -> None:
        super().__init__(api_url="http://127.0.0.1:9", api_key="none", auto_batch_tracing=False)
        self.seen: list[tuple[str, str]] = []

    def create_run(self, name: str, inputs: Any, run_type: str, **kwargs: Any) -> None:
        self.seen.append((name, f"{inputs!r}{kwargs.get('outputs')!r}"))

    def update_run(self, run_id: Any, **kwargs: Any) -> None:
        self.seen.append((kwargs.get("name", ""), f"{kwargs.get('inputs')!r}{kwargs.get('outputs')!r}"))


def test_no_span_of_middleware_holds_the_content_of_a_file() -> None:
    client = Recorder()
    model = ScriptedModel(script=[calls(call("read_file", file_path="/a")), AIMessage("Done.")])
    files = {"/a": create_file_data("secret\n")}
    with tracing_context(enabled=True, client=client):
        create_deep_agent(model).invoke({"messages": [("user", "go")], "files": files})
    spans = [(name, text) for name, text in client.seen if "Middleware." in name]
    assert len(spans) > 5
    assert [name for name, text in spans if "secret" in text] == []
    assert any("secret" in text for _, text in client.seen)
