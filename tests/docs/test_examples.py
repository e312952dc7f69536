"""The Python examples of the documentation run as they are, those of one document in order.

Examples in the form of a dialogue print the output shown; a comment after a `print` is the text that it prints.
"""

import logging
import re
from pathlib import Path
from typing import Final

import jsonschema  # noqa: F401  # Reads files on import. Clients of MCP import it late, when the guard of blocking calls is on.
import mcp  # noqa: F401  # Subscripts `Popen` on import, which the guard replaces.
import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

ROOT: Final = Path(__file__).parents[2]
DOCUMENTS: Final = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]

NEEDS: Final = {"mcp.md": ("mcp>=2.2",)}

each_document = pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=str(path.relative_to(ROOT)), marks=pytest.mark.needs(*NEEDS.get(path.name, ())))
        for path in DOCUMENTS
    ],
)
_in_comments: Final = re.compile(r"^ *print\(.*\)  # (.+)$", re.MULTILINE)
_links: Final = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")


@each_document
def test_examples_run(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.getLogger("deepfs"), "handlers", [])
    for example in Sybil(parsers=[PythonCodeBlockParser()]).parse(path).examples():
        example.evaluate()
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in _in_comments.findall(path.read_text()) if line not in printed] == []


@each_document
def test_links_within_the_project_have_existing_targets(path: Path) -> None:
    for file, anchor in _links.findall(path.read_text()):
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), file
        assert not anchor or anchor in _anchors(target), f"{file}#{anchor}"


def _anchors(document: Path) -> set[str]:
    """The anchors that links to the headings of a document use, and to what is described there of the API."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    described = re.findall(r"^::: (\S+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}.union(described)
