"""Checks the types of the Python examples in the documentation, with mypy as pyproject.toml sets it for `pages.*`.

    python tools/pages.py              all pages; exits with 1 if an example has an error
    python tools/pages.py docs/a.md    these pages

The examples of one page are one module, as they run in one namespace. Its lines have the numbers that they have in the
page. An example with an `await` outside of a function is the body of an async function of its own.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent, indent
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PAGES: Final = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**/*.md")

_block: Final = re.compile(r"^([ \t]*)```(python|pycon|py)\b[^\n]*\n(.*?)^\1```[ \t]*$", re.MULTILINE | re.DOTALL)
_prompt: Final = re.compile(r"^(?:>>>|\.\.\.)(?: |$)")


def module_of(page: str) -> str:
    """The examples of a page as the code of one module, in which everything else is an empty line."""
    lines = [""] * (page.count("\n") + 1)
    for start, code in _examples(page):
        lines[start : start + code.count("\n")] = code.splitlines()
    return "\n".join(lines) + "\n"


def _examples(page: str) -> Iterator[tuple[int, str]]:
    """Each example, with the number of lines before it; one that awaits begins with a line more."""
    for found in _block.finditer(page):
        start, code = page.count("\n", 0, found.start(3)), dedent(found[3])
        if code.startswith(">>>"):
            code = "".join(f"{_prompt.sub('', line) if _prompt.match(line) else ''}\n" for line in code.splitlines())
        if _awaits(code):
            yield start - 1, f"async def _lines_from_{start}() -> None:\n{indent(code, '    ')}"
        else:
            yield start, code


def programs(page: Path) -> list[str]:
    """The examples of a page that run as they stand, without those in the form of a dialogue."""
    found = (each for each in _block.finditer(page.read_text("utf-8")) if each[2] == "python")
    return [code for code in (dedent(each[3]) for each in found) if not code.startswith(">>>")]


def _awaits(code: str) -> bool:
    try:
        compile(code, "page", "exec")
    except SyntaxError:
        compile(code, "page", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        return True
    return False


def main(given: Sequence[str]) -> int:
    """Print what mypy says about the examples of the given pages, or of all, with the places in the pages."""
    pages = [Path(page).resolve() for page in given] or sorted({p for each in PAGES for p in ROOT.glob(each)})
    with TemporaryDirectory() as directory:
        modules = Path(directory, "pages")
        modules.mkdir()
        (modules / "__init__.py").touch()
        for page in pages:
            (modules / f"{_name(page)}.py").write_text(module_of(page.read_text("utf-8")), "utf-8")
        ended = subprocess.run([sys.executable, "-m", "mypy", str(modules)], cwd=ROOT, capture_output=True, text=True)
        told = ended.stdout + ended.stderr
        for page in pages:
            told = re.sub(rf"\S*\bpages/{_name(page)}\.py\b", str(page.relative_to(ROOT)), told)
        print(told, end="")
        return ended.returncode


def _name(page: Path) -> str:
    return re.sub(r"\W", "_", str(page.relative_to(ROOT).with_suffix("")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
