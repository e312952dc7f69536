"""Makes programs with a backend of one's own, in the style of deepagents' documentation, for either library."""

from random import Random
from textwrap import dedent, indent
from typing import Any, NamedTuple

__all__ = ["Case", "made_case"]


class Case(NamedTuple):
    """A program that makes a backend, and the calls that a model makes of its tools."""

    kind: str
    code: str
    """Defines `make(directory)`, which returns the backend; `{package}` stands for the library."""
    calls: list[tuple[str, dict[str, Any]]]
    in_graph: bool
    """Whether the backend needs a running graph."""
    is_async: bool


HEAD = """
import fnmatch
from langgraph.store.memory import InMemoryStore
from {package}.backends import CompositeBackend, FilesystemBackend, StateBackend, StoreBackend
from {package}.backends.protocol import (
    BackendProtocol, DeleteResult, EditResult, ExecuteResponse, FileDownloadResponse, FileInfo, FileUploadResponse,
    GlobResult, GrepMatch, GrepResult, LsResult, ReadResult, SandboxBackendProtocol, WriteResult,
)

FILES = {
    "/a.md": "one\\ntwo\\nthree\\nfour\\n",
    "/a.md.bak": "old two\\n",
    "/empty.md": "",
    "/docs/b.md": "two words\\n",
    "/docs/c.txt": "no end\\nof line",
    "/docs/deep/d.md": "two\\ntwo\\n",
    "/long.md": "".join(f"line {number}\\n" for number in range(30)),
}


def globbed(files, pattern, path):
    root = (path or "/").rstrip("/") + "/"
    inside = [each for each in sorted(files) if each.startswith(root)]
    name = pattern.rpartition("/")[2]
    return [each for each in inside if fnmatch.fnmatchcase(each.rpartition("/")[2], name)]
"""

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("read_file", {"file_path": "/a.md"}),
    ("read_file", {"file_path": "/a.md", "offset": 1, "limit": 2}),
    ("read_file", {"file_path": "/a.md", "offset": 2, "limit": 2}),
    ("read_file", {"file_path": "/long.md", "offset": 5, "limit": 3}),
    ("read_file", {"file_path": "/docs/b.md"}),
    ("read_file", {"file_path": "/docs/c.txt"}),
    ("read_file", {"file_path": "/empty.md"}),
    ("read_file", {"file_path": "/none.md"}),
    ("ls", {"path": "/"}),
    ("ls", {"path": "/docs"}),
    ("ls", {"path": "/a.md"}),
    ("ls", {"path": "/none"}),
    ("glob", {"pattern": "*.md"}),
    ("glob", {"pattern": "*.md", "path": "/docs"}),
    ("glob", {"pattern": "*.none"}),
    ("grep", {"pattern": "two"}),
    ("grep", {"pattern": "two", "output_mode": "content"}),
    ("grep", {"pattern": "two", "output_mode": "count", "path": "/docs"}),
    ("grep", {"pattern": "two", "glob": "*.md", "output_mode": "content"}),
    ("grep", {"pattern": "nowhere"}),
    ("edit_file", {"file_path": "/a.md", "old_string": "one", "new_string": "uno"}),
    ("edit_file", {"file_path": "/docs/deep/d.md", "old_string": "two", "new_string": "2", "replace_all": True}),
    ("edit_file", {"file_path": "/a.md", "old_string": "nowhere", "new_string": "x"}),
    ("edit_file", {"file_path": "/none.md", "old_string": "a", "new_string": "b"}),
    ("write_file", {"file_path": "/new.md", "content": "new\n"}),
    ("write_file", {"file_path": "/docs/deep/new.md", "content": "new\nlines\n"}),
    ("write_file", {"file_path": "/a.md", "content": "replaced\n", "overwrite": True}),
    ("write_file", {"file_path": "/docs/x.md", "content": "guarded\n"}),
    ("read_file", {"file_path": "/new.md"}),
    ("read_file", {"file_path": "/a.md"}),
    ("delete", {"file_path": "/docs/b.md"}),
    ("ls", {"path": "/docs/"}),
]


def made_case(seed: int) -> Case:
    """The case of a seed."""
    chance = Random(f"custom classes {seed}")
    kind = chance.choices(["protocol", "subclass", "sandbox"], [6, 6, 1])[0]
    if kind == "sandbox":
        return _sandbox(chance)
    calls = [call for call in CALLS if chance.random() < 0.6]
    is_async = chance.random() < 0.4
    code, in_graph = (
        _protocol(chance, is_async=is_async) if kind == "protocol" else _subclass(chance, is_async=is_async)
    )
    if kind == "protocol" and "read(self" not in code:
        # What cannot be read is not replaced unless the call says so.
        calls = [(name, {**given, "overwrite": True} if name == "write_file" else given) for name, given in calls]
    if kind == "protocol" and "read(self" in code and not is_async and chance.random() < 0.15:
        kind, code = "duck", code.replace("class Mine(BackendProtocol):", "class Mine:")
    elif not in_graph and chance.random() < 0.25:
        code = f"{code}\n\n{_MOUNTED}"
        kind = f"mounted {kind}"
        calls = [(name, {key: _mounted(value) for key, value in arguments.items()}) for name, arguments in calls]
    return Case(kind, code, calls, in_graph, is_async)


_MOUNTED = """
bare = make

def make(directory):
    (directory / "none").mkdir()
    return CompositeBackend(default=FilesystemBackend(root_dir=directory / "none", virtual_mode=True),
                            routes={"/m/": bare(directory / "files")})
"""


def _mounted(value: Any) -> Any:
    return f"/m{value}" if isinstance(value, str) and value.startswith("/") and value != "/" else value


# --- a class of its own ---------------------------------------------------------------------------------------------


def _protocol(chance: Random, *, is_async: bool) -> tuple[str, bool]:
    methods = {
        "ls": _ls(chance),
        "read": _read(chance),
        "grep": _grep(chance),
        "glob": _glob(chance),
        "write": _write(chance),
        "edit": _edit(chance),
    }
    if chance.random() < 0.3:
        for name in chance.sample(sorted(methods), chance.randint(1, 3)):
            del methods[name]
    elif chance.random() < 0.2:
        name = chance.choice(["write", "edit", "grep"])
        methods[name] = f"def {name}(self, *args, **options):\n    raise NotImplementedError"
    if chance.random() < 0.5:
        methods["delete"] = (
            "def delete(self, file_path):\n"
            "    if self.files.pop(file_path, None) is None:\n"
            '        return DeleteResult(error=f"File {file_path} not found")\n'
            f"    return {chance.choice(['DeleteResult()', 'DeleteResult(path=file_path)'])}"
        )
    if chance.random() < 0.5:
        methods["download_files"] = (
            "def download_files(self, paths):\n"
            "    return [FileDownloadResponse(path=path, content=self.files[path].encode()) if path in self.files\n"
            '            else FileDownloadResponse(path=path, error="file_not_found") for path in paths]'
        )
    body = "def __init__(self):\n    self.files = dict(FILES)\n\n" + "\n\n".join(methods.values())
    if is_async:
        body = _asynchronous(body, methods)
    return (
        _class("BackendProtocol", body),
        False,
    )


def _class(base: str, body: str) -> str:
    return f"{HEAD}\n\nclass Mine({base}):\n{indent(body, '    ')}\n\n\ndef make(directory):\n    return Mine()\n"


def _asynchronous(body: str, methods: dict[str, str]) -> str:
    for name in methods:
        body = body.replace(f"def {name}(", f"async def a{name}(")
    return body


def _missing(chance: Random, result: str) -> str:
    """What a method does where there is no such file."""
    return chance.choice(
        [
            f"return {result}(error=f\"Error: File '{{file_path}}' not found\")",
            f"return {result}(error=f\"File '{{file_path}}' not found\")",
            f'return {result}(error="file_not_found")',
            f'return {result}(error=f"no such document: {{file_path}}")',
            "raise FileNotFoundError(file_path)",
            "raise KeyError(file_path)",
        ]
    )


def _entry(chance: Random, path: str, *, is_dir: str) -> str:
    """An expression for an entry."""
    fields = [f'"path": {path}']
    if chance.random() < 0.5:
        fields.append(f'"is_dir": {is_dir}')
    if chance.random() < 0.3:
        fields.append(f'"size": len(self.files.get({path}, ""))')
    if chance.random() < 0.2:
        fields.append(
            f'"modified_at": {chance.choice(["1700000000.5", chr(34) + "2026-01-01T00:00:00+00:00" + chr(34), "None"])}'
        )
    if chance.random() < 0.3:
        return f"FileInfo({', '.join(each.replace(chr(34), '', 2).replace(': ', '=', 1) for each in fields)})"
    return "{" + ", ".join(fields) + "}"


def _ls(chance: Random) -> str:
    form = chance.choice(["children", "children", "children with slash", "prefix", "everything", "relative"])
    if form == "prefix":
        found = "[each for each in sorted(self.files) if each.startswith(path)]"
    elif form == "everything":
        found = "sorted(self.files)"
    else:
        found = (
            'sorted({root + each[len(root):].split("/")[0] + (SLASH if "/" in each[len(root):] else "")\n'
            "                     for each in self.files if each.startswith(root)})"
        ).replace("SLASH", '"/"' if form == "children with slash" else '""')
    entry = _entry(chance, "each", is_dir="each not in self.files")
    if form == "relative":
        entry = entry.replace("each", "each[len(root):]", 1)
    lines = [
        "def ls(self, path):",
        '    root = path.rstrip("/") + "/"',
        f"    found = {found}",
        f"    return LsResult(entries=[{entry} for each in found])",
    ]
    return "\n".join(lines)


def _read(chance: Random) -> str:
    data = ['"content": text']
    if chance.random() < 0.8:
        data.append('"encoding": "utf-8"')
    if chance.random() < 0.2:
        data.append('"created_at": "2026-01-01T00:00:00+00:00", "modified_at": None')
    fields = ["file_data={" + ", ".join(data) + "}"]
    if chance.random() < 0.2:
        fields.append(
            "start_line=(offset + 1 if text else None), end_line=(offset + text.count(chr(10)) + "
            "(not text.endswith(chr(10))) if text else None)"
        )
    window = chance.choice(["[offset : offset + limit]"] * 9 + ["[offset:]", ""])
    return "\n".join(
        [
            "def read(self, file_path, offset=0, limit=2000):",
            "    if file_path not in self.files:",
            f"        {_missing(chance, 'ReadResult')}",
            f'    text = "".join(self.files[file_path].splitlines(keepends=True){window})',
            f"    return ReadResult({', '.join(fields)})",
        ]
    )


def _grep(chance: Random) -> str:
    ends = chance.choice(["", "", "keepends=True"])
    match = chance.choice(
        ['{"path": each, "line": number, "text": line}', "GrepMatch(path=each, line=number, text=line)"]
    )
    options = chance.choice(["", ", *, max_count=None"])
    return "\n".join(
        [
            f"def grep(self, pattern, path=None, glob=None{options}):",
            f"    matches = [{match}",
            '               for each in globbed(self.files, glob or "*", path)',
            f"               for number, line in enumerate(self.files[each].splitlines({ends}), 1) if pattern in line]",
            "    return GrepResult(matches=matches)",
        ]
    )


def _glob(chance: Random) -> str:
    entry = _entry(chance, "each", is_dir="False")
    return "\n".join(
        [
            f"def glob(self, pattern, path={chance.choice(['None', chr(34) + '/' + chr(34)])}):",
            f"    return GlobResult(matches=[{entry} for each in globbed(self.files, pattern, path)])",
        ]
    )


def _write(chance: Random) -> str:
    result = chance.choice(["WriteResult(path=file_path)", "WriteResult(path=file_path)", "WriteResult()"])
    lines = ["def write(self, file_path, content):"]
    if chance.random() < 0.3:
        refuse = chance.choice(
            ['return WriteResult(error="Writes are not allowed here")', "raise PermissionError(file_path)"]
        )
        lines += ['    if file_path.startswith("/docs/x"):', f"        {refuse}"]
    return "\n".join([*lines, "    self.files[file_path] = content", f"    return {result}"])


def _edit(chance: Random) -> str:
    result = chance.choice(
        [
            "EditResult(path=file_path, occurrences=count)",
            "EditResult(path=file_path, occurrences=count)",
            "EditResult()",
        ]
    )
    return "\n".join(
        [
            "def edit(self, file_path, old_string, new_string, replace_all=False):",
            "    if file_path not in self.files:",
            f"        {_missing(chance, 'EditResult')}",
            "    count = self.files[file_path].count(old_string)",
            "    if not count:",
            f"        return EditResult(error={chance.choice(['f_', 'plain'])})".replace(
                "f_", "f\"Error: String not found in file: '{old_string}'\""
            ).replace("plain", '"nothing to replace"'),
            "    self.files[file_path] = self.files[file_path].replace(old_string, new_string)",
            f"    return {result}",
        ]
    )


# --- subclasses of the backends --------------------------------------------------------------------------------------

_BASES = {
    "StateBackend": "def make(directory):\n    return Mine()\n",
    "StoreBackend": """
        def make(directory):
            store = InMemoryStore()
            plain = StoreBackend(store=store, namespace=lambda runtime: ("files",))
            for path, content in FILES.items():
                plain.write(path, content)
            return Mine(store=store, namespace=lambda runtime: ("files",))
        """,
    "FilesystemBackend": """
        def make(directory):
            for path, content in FILES.items():
                (directory / path[1:]).parent.mkdir(parents=True, exist_ok=True)
                (directory / path[1:]).write_text(content)
            return Mine(root_dir=directory, virtual_mode=True)
        """,
    "CompositeBackend": """
        def make(directory):
            for path, content in FILES.items():
                (directory / path[1:]).parent.mkdir(parents=True, exist_ok=True)
                (directory / path[1:]).write_text(content)
            return Mine(default=FilesystemBackend(root_dir=directory, virtual_mode=True), routes={})
        """,
}

_OVERRIDES = {
    "read": """
        def read(self, file_path, offset=0, limit=2000):
            result = super().read(file_path, offset, limit)
            if result.error or result.file_data is None:
                return result
            text = result.file_data["content"]
            REDACTED
        """,
    "write": """
        def write(self, file_path, content):
            if file_path.startswith("/docs/x"):
                REFUSED
            return super().write(file_path, content)
        """,
    "edit": """
        def edit(self, file_path, old_string, new_string, replace_all=False):
            if file_path.startswith("/docs/deep"):
                return EditResult(error=f"Edits are not allowed under {file_path}")
            return super().edit(file_path, old_string, new_string, replace_all)
        """,
    "ls": """
        def ls(self, path):
            result = super().ls(path)
            kept = [ENTRY for each in result.entries or [] if "empty" not in each["path"]]
            return LsResult(error=result.error, entries=kept)
        """,
    "glob": """
        def glob(self, pattern, path=None):
            result = super().glob(pattern, path or "/")
            return GlobResult(matches=[ENTRY for each in result.matches or [] if "empty" not in each["path"]])
        """,
    "grep": """
        def grep(self, pattern, path=None, glob=None):
            result = super().grep(pattern, path, glob)
            if result.error:
                return result
            hidden = [{**each, "text": each["text"].replace("words", "***")} for each in result.matches]
            return GrepResult(matches=hidden)
        """,
}


def _subclass(chance: Random, *, is_async: bool) -> tuple[str, bool]:
    base = chance.choice(sorted(_BASES))
    redacted = chance.choice(
        [
            'return ReadResult(file_data={"content": text.replace("two", "***"), "encoding": "utf-8"})',
            'return ReadResult(file_data={**result.file_data, "content": text.replace("two", "***")})',
            'result.file_data = {**result.file_data, "content": text.upper()}\n            return result',
        ]
    )
    refused = chance.choice(
        [
            'return WriteResult(error="Writes are not allowed")',
            "raise PermissionError(file_path)",
            "raise ValueError('no')",
        ]
    )
    entry = chance.choice(["each", '{"path": each["path"]}', "FileInfo(path=each['path'])"])
    names = chance.sample(sorted(_OVERRIDES), chance.randint(1, 4))
    methods = {
        name: dedent(_OVERRIDES[name].replace("REDACTED", redacted).replace("REFUSED", refused).replace("ENTRY", entry))
        for name in names
    }
    body = "\n".join(methods.values())
    if is_async:
        body = _asynchronous(body, methods)
        for name in methods:
            body = body.replace(f"super().{name}(", f"await super().a{name}(")
    code = f"{HEAD}\n\nclass Mine({base}):\n{indent(body, '    ')}\n\n{dedent(_BASES[base])}"
    return code, base == "StateBackend"


# --- sandboxes -------------------------------------------------------------------------------------------------------


def _sandbox(chance: Random) -> Case:
    is_async = chance.random() < 0.4
    timeout = chance.choice([", *, timeout=None", ", *, timeout=None", "", ", **options"])
    fields = ['output=f"ran {command}\\n"', *chance.sample(["exit_code=0", "exit_code=3", "truncated=False"], 1)]
    failing = chance.choice(["", "", '    if command == "no": raise NotImplementedError("no commands")\n'])
    body = (
        "@property\ndef id(self):\n    return 'mine'\n\n"
        f"def execute(self, command{timeout}):\n{failing}    return ExecuteResponse({', '.join(fields)})\n"
    )
    if chance.random() < 0.5:
        body += "\n" + _read(chance).replace("self.files", "FILES")
    if is_async:
        body = _asynchronous(body, {"execute": "", "read": ""})
        # deepagents offers commands by the sync method alone.
    code = _class("SandboxBackendProtocol", body)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("execute", {"command": "x"}),
        ("execute", {"command": "no"}),
        ("execute", {"command": "x", "timeout": chance.choice([0, 5])}),
        ("read_file", {"file_path": "/a.md"}),
        ("ls", {"path": "/"}),
    ]
    return Case("sandbox", code, calls, in_graph=False, is_async=is_async)
