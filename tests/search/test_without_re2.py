"""Where RE2 is not installed, everything works but regular expressions, and these say what to install."""

import ast
import sys
from typing import Final

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from deepfs.backends.memory import MemoryBackend
from deepfs.middleware.tools import filesystem_tools
from deepfs.search import query
from support.scripts import run_script

_SCRIPT: Final = """
import sys, tempfile
sys.modules["re2"] = None
import anyio
from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.memory import MemoryBackend

async def main():
    for backend in FilesystemBackend(tempfile.mkdtemp(), ignore="git"), MemoryBackend():
        for path, content in {
            "/.gitignore": "*.o\\n/b[u-v]ild/**/x?\\n!keep.o\\n", "/a.py": "one\\nTwo straße\\n", "/a.o": "one\\n",
            "/keep.o": "two\\n", "/build/x/x1": "one\\n", "/build/x2": "one\\n", "/build/y": "one\\n",
        }.items():
            assert (await backend.awrite(path, content)).ok
        listed = [entry.path for entry in (await backend.als("/")).entries]
        read = (await backend.aread("/a.py")).file_data["content"]
        globbed = [entry.path for entry in (await backend.aglob("**/[a-y]*")).matches]
        literal = [(match.path, match.line) for match in (await backend.agrep("one")).matches]
        any_case = [(match.path, match.line) for match in (await backend.agrep("TWO S", ignore_case=True)).matches]
        refused = await backend.agrep("o.e", regex=True)
        print([listed, read, globbed, literal, any_case, (refused.code.value, refused.error)])

anyio.run(main)
"""


_REFUSAL: Final = "Error: Regular expressions need RE2: pip install google-re2"


def test_only_regular_expressions_are_refused() -> None:
    on_disk, in_memory = map(ast.literal_eval, run_script(_SCRIPT).splitlines())
    ignored = {"/a.o", "/build/x/x1", "/build/x2"}
    for found, hidden in ((on_disk, ignored), (in_memory, set())):
        listed, read, globbed, literal, any_case, (code, error) = found
        assert {"/a.py", "/keep.o"} <= set(listed)
        assert read == "one\nTwo straße\n"
        assert globbed == sorted({"/a.py", "/build/y", "/keep.o"} | (ignored - hidden))
        assert literal == [(path, 1) for path in sorted({"/a.py", "/build/y"} | (ignored - hidden))]
        assert any_case == [("/a.py", 2)]
        assert code == "unsupported"
        assert error == _REFUSAL


def test_an_agent_is_told_how_to_search_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    [grep] = [tool for tool in filesystem_tools(MemoryBackend()) if tool.name == "grep"]
    told = grep.invoke({"pattern": "o.e", "regex": True})
    assert told == f"{_REFUSAL}. Set regex=false to find plain text."


# --- letters of either case ------------------------------------------------------------------------------------------


def _in_re2(text: str) -> re2._Regexp:
    options = re2.Options()
    options.case_sensitive, options.literal = False, True
    return re2.compile(text, options)


_LETTERS: Final = st.one_of(
    st.sampled_from("aAbksKS ſKßẞİıµμΜσςΣΩΩåÅǅdž.(|\\é"), st.characters(codec="utf-8", max_codepoint=0x2FFF)
)


@given(text=st.text(_LETTERS, min_size=1, max_size=4), content=st.text(_LETTERS, max_size=20))
def test_letters_of_either_case_are_those_of_re2(text: str, content: str) -> None:
    for searched in (content, content + text.upper(), content + text.lower()):
        found, expected = query._AnyCase(text).search(searched.encode()), _in_re2(text).search(searched.encode())
        assert (found and found.start()) == (expected and expected.start())
