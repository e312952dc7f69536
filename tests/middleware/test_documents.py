"""The text of PDF and Word documents, and what hostile documents cannot do."""

import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZIP_BZIP2, ZIP_DEFLATED, ZIP_STORED, ZipFile
from zlib import compress

import anyio
import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from pydantic import Field

from deepfs import FilesystemBackend, MemoryBackend, filesystem_tools, run_sync
from deepfs.middleware import documents
from deepfs.middleware.filesystem import FilesystemMiddleware
from support.chat import ScriptedModel, call, calls

RELATIONS = (
    '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="r1" '
    'Target="word/document2.xml" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/'
    'officeDocument"/></Relationships>'
)


def pdf_of(*streams: bytes, filters: str = "", kids: str = "", trailer: str = "") -> bytes:
    """A PDF with a page for each content stream."""
    kids = kids or " ".join(f"{4 + 2 * page} 0 R" for page in range(len(streams)))
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        f"<</Type/Pages/Kids[{kids}]/Count {len(streams)}>>".encode(),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    for page, stream in enumerate(streams):
        resources = f"/Resources<</Font<</F 3 0 R>>>>/Contents {5 + 2 * page} 0 R"
        objects.append(f"<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]{resources}>>".encode())
        objects.append(f"<</Length {len(stream)}{filters}>>stream\n".encode() + stream + b"\nendstream")
    content, places = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        places.append(b"%010d 00000 n \n" % len(content))
        content += b"%d 0 obj%s endobj\n" % (number, each)
    table = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1) + b"".join(places)
    end = f"trailer<</Size {len(objects) + 1}/Root 1 0 R{trailer}>>\nstartxref\n{len(content)}\n%%EOF"
    return content + table + end.encode()


def line(text: str) -> bytes:
    return f"BT /F 9 Tf 1 50 Td ({text}) Tj ET".encode()


def docx_of(body: str, *, head: str = "", compression: int = ZIP_DEFLATED) -> bytes:
    content, word = BytesIO(), "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    with ZipFile(content, "w", compression) as archive:
        archive.writestr("_rels/.rels", RELATIONS)
        archive.writestr(
            "word/document2.xml", f'{head}<w:document xmlns:w="{word}"><w:body>{body}</w:body></w:document>'
        )
    return content.getvalue()


def p(text: str, style: str = "") -> str:
    return f"<w:p><w:pPr>{style}</w:pPr><w:r>{text}</w:r></w:p>"


def t(text: str) -> str:
    return f"<w:t>{text}</w:t>"


def encrypted() -> bytes:
    from pypdf import PdfReader, PdfWriter

    writer, content = PdfWriter(clone_from=PdfReader(BytesIO(PDF))), BytesIO()
    writer.encrypt("secret", algorithm="RC4-128")
    writer.write(content)
    return content.getvalue()


PDF = pdf_of(line("one"), b"", line("three"))
PDF_LINES = ["--- page 1 ---", "one", "--- page 2 ---", "[No text]", "--- page 3 ---", "three"]
WORD = {
    p(t("A &lt; B"), '<w:pStyle w:val="Heading2"/>'): ["## A < B"],
    p(f"{t('a')}<w:tab/>{t('b')}<w:br/>{t('c')}", "<w:tabs><w:tab/></w:tabs>"): ["a\tb", "c"],
    p(t("x"), '<w:pStyle w:val="ListBullet"/><w:numPr/>'): ["- x"],
    f"<w:tbl><w:tr><w:tc>{p(t('1'))}{p(t('2'))}</w:tc><w:tc>{p(t('3'))}</w:tc></w:tr></w:tbl>": ["1 2 | 3"],
    p(f"<w:delText>gone</w:delText><w:moveFrom>{t('from')}</w:moveFrom>"): [""],
    p(t("now"), '<w:pPrChange><w:pPr><w:pStyle w:val="Heading1"/></w:pPr></w:pPrChange>'): ["now"],
    p("</w:r><w:del><w:r><w:tab/></w:r></w:del><w:r>" + t("b")): ["b"],
    p(f"{t('out')}<w:pict><w:txbxContent>{p(t('in'))}</w:txbxContent></w:pict><Fallback>{t('in')}</Fallback>"): [
        "in",
        "out",
    ],
}
HEAVY = pdf_of(compress(b"q 1 0 0 1 0 0 cm Q\n" * 3_000_000), filters="/Filter/FlateDecode")


async def aread(content: bytes, path: str = "/a.pdf", **arguments: Any) -> Any:
    files = MemoryBackend()
    files.upload_files([(path, content)])
    (tool,) = filesystem_tools(files, tools=["read_file"])
    return await tool.ainvoke({"file_path": path, **arguments})


def read(content: bytes, path: str = "/a.pdf", **arguments: Any) -> Any:
    return run_sync(aread, content, path, **arguments)


def lines_of(shown: str) -> list[str]:
    return [row.partition("\t")[2] for row in shown.splitlines() if not row.startswith("[")]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"limit": 1000}, PDF_LINES),
        ({"limit": 2}, PDF_LINES[:2]),
        ({"offset": 1, "limit": 2}, PDF_LINES[1:3]),
        ({"offset": -2}, PDF_LINES[-2:]),
        ({"offset": -1, "column": 2}, ["ree"]),
    ],
)
def test_a_part_of_a_pdf_is_text_as_of_any_file(arguments: dict[str, Any], expected: list[str]) -> None:
    shown = read(PDF, **arguments)
    assert lines_of(shown) == expected
    assert "without its pictures" in shown


def test_a_whole_pdf_is_for_models_that_take_it_unless_it_is_too_large(tmp_path: Path) -> None:
    (block,) = read(PDF)
    assert block["mime_type"] == "application/pdf"
    (tmp_path / "a.pdf").write_bytes(PDF)
    (tool,) = filesystem_tools(FilesystemBackend(tmp_path), tools=["read_file"], max_media_bytes=100)
    assert lines_of(tool.invoke({"file_path": "/a.pdf"})) == PDF_LINES
    assert "exceeds file length (6 lines)" in tool.invoke({"file_path": "/a.pdf", "offset": 9})


def test_a_word_document_is_text(tmp_path: Path) -> None:
    content = docx_of("".join(WORD))
    assert lines_of(read(content, "/a.docx")) == [each for lines in WORD.values() for each in lines]
    files = FilesystemBackend(tmp_path)
    files.upload_files([("/a.docx", content)])
    read_file, edit_file = filesystem_tools(files, tools=["read_file", "edit_file"])
    assert lines_of(read_file.invoke({"file_path": "/a.docx", "offset": 1, "limit": 1})) == ["a\tb"]
    refused = edit_file.invoke({"file_path": "/a.docx", "old_string": "out", "new_string": "in"})
    assert "is a binary file" in refused
    assert (tmp_path / "a.docx").read_bytes() == content


ENTITIES = "<!DOCTYPE x [<!ENTITY a 'aaaaaaaaaa'><!ENTITY b '&a;&a;&a;&a;&a;&a;&a;'>]>"


HOSTILE: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "password": ("/a.pdf", encrypted, "protected by a password"),
    "cut": ("/a.pdf", lambda: PDF[: len(PDF) // 5], "it is damaged"),
    "pages within themselves": ("/a.pdf", lambda: pdf_of(line("a"), kids="2 0 R"), "it is damaged"),
    "bomb": ("/a.pdf", lambda: pdf_of(compress(bytes(300_000_000)), filters="/Filter/FlateDecode"), "cannot be read"),
    "entities": ("/a.docx", lambda: docx_of(p(t("&b;")), head=ENTITIES), "it is damaged"),
    "large part": ("/a.docx", lambda: docx_of("x" * 65_000_000), "too much memory"),
    "unbounded part": ("/a.docx", lambda: docx_of("x" * 65_000_000, compression=ZIP_BZIP2), "it is damaged"),
    "cell without a row": ("/a.docx", lambda: docx_of("<w:tc></w:tc>"), "it is damaged"),
    "nested": ("/a.docx", lambda: docx_of("<w:p>" * 1_000_000), "it is damaged"),
    "no archive": ("/a.docx", lambda: b"PK\3\4" + bytes(99), "it is damaged"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_documents_are_told(name: str) -> None:
    path, make, expected = HOSTILE[name]
    shown = read(make(), path, limit=1000)
    assert expected in shown
    assert len(shown) < 1_000


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_SECONDS", 300)  # The machine may be busy.


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The processes that were started for documents."""
    processes: list[Any] = []
    communicate = documents._communicate

    def note(process: Any, *given: Any) -> bytes:
        processes.append(process)
        return communicate(process, *given)

    monkeypatch.setattr(documents, "_communicate", note)
    return processes


def test_a_document_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch, started: list[Any]) -> None:
    monkeypatch.setattr(documents, "MAX_SECONDS", 0.2)
    assert "Time is up for '/a.pdf'" in read(HEAVY, limit=1000)
    assert [process.returncode for process in started] == [-9]


def test_a_process_that_starts_slowly_gets_all_of_its_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("import time; time.sleep(0.3)")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(documents, "MAX_SECONDS", 30)
    assert lines_of(read(docx_of(p(t("a" * 300_000)), compression=ZIP_STORED), "/a.docx"))[0].startswith("aaa")


def test_a_thread_reads_a_document_after_the_program_has_come_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "a.docx").write_bytes(docx_of(p(t("late"))))
    program = """
import sys, threading
from deepfs import FilesystemBackend, filesystem_tools

def read():
    main.join()
    print(tool.invoke({"file_path": "/a.docx"}))

main = threading.main_thread()
(tool,) = filesystem_tools(FilesystemBackend(sys.argv[1]), tools=["read_file"])
threading.Thread(target=read).start()
"""
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, timeout=300)
    assert lines_of(done.stdout) == ["late"], done.stderr


@pytest.mark.both_loops
@pytest.mark.anyio
async def test_a_cancelled_read_ends_its_process(started: list[Any]) -> None:
    content = b64encode(HEAVY).decode()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(documents.document_text, "/a.pdf", content, "pdf")
        while not started:  # noqa: ASYNC110 -- a thread notes it
            await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    assert [process.returncode for process in started] == [-9]


def test_without_pypdf_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pypdf.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(tmp_path)
    (block,) = read(PDF, limit=1000)
    assert block["type"] == "file"
    assert 'pip install "deepfs[documents]"' in read(PDF + b"\n" * 5_000_000)
    assert lines_of(read(docx_of(p(t("a"))), "/a.docx")) == ["a"]


class Refusing(ScriptedModel):
    profile: Any = Field(default_factory=lambda: {"pdf_inputs": False})


def test_a_model_that_takes_no_pdf_is_told_how_to_read_its_text() -> None:
    files = MemoryBackend()
    files.upload_files([("/a.pdf", PDF)])
    turns = [calls(call("read_file", file_path="/a.pdf", **given)) for given in ({}, {"limit": 1000})]
    model = Refusing(script=[*turns, AIMessage("done")])
    agent: Any = create_agent(model, middleware=[FilesystemMiddleware(files)])
    messages = agent.invoke({"messages": [HumanMessage("Read it.")]})["messages"]
    assert lines_of(messages[-2].text) == PDF_LINES
    note = model.asked[1][-1].text
    assert note.endswith("this model does not take it. read_file with limit=1000 shows its text]")
