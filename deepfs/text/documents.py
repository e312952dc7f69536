"""The text of PDF and Word documents, as a program: `python -m deepfs.text.documents pdf < a.pdf`.

Parsing a hostile document may take any time and memory, so it has a process of its own, which can be killed.
`deepfs.middleware.documents` starts it and says what the exit statuses mean.
"""

import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from enum import IntEnum
from io import BytesIO
from typing import Final
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

MAX_MEMORY: Final = 1024**3
"""The most bytes of memory for a document, where the system limits that."""
MAX_CPU_SECONDS: Final = 60
"""For a document whose reader has ended, and kills nothing any more."""
MAX_TEXT_BYTES: Final = 8_000_000
"""Of a longer text the rest is left out."""
MAX_XML_BYTES: Final = 64_000_000
"""The largest part of a Word document, uncompressed."""


class Status(IntEnum):
    """The exit statuses of the program."""

    DONE = 0
    DAMAGED = 1
    TOO_LARGE = 3
    ENCRYPTED = 4
    NEEDS_PYPDF = 5


class UnreadableError(Exception):
    """The document has no text that can be read; the argument is the status."""


def pdf_text(data: bytes) -> Iterator[str]:
    """The text of the pages, each under a line with its number."""
    try:
        from pypdf import PdfReader
        from pypdf.errors import DependencyError
    except ImportError as error:
        raise UnreadableError(Status.NEEDS_PYPDF) from error

    reader = PdfReader(BytesIO(data))
    try:
        is_locked = reader.is_encrypted and not reader.decrypt("")
    except DependencyError:  # AES, for which pypdf needs a package of cryptography.
        is_locked = True
    if is_locked:
        raise UnreadableError(Status.ENCRYPTED)
    for number, page in enumerate(reader.pages, 1):
        try:
            text = page.extract_text()
        except MemoryError:
            raise
        except Exception:  # pypdf raises errors of many types; the other pages may be sound.
            text = "[This page cannot be read]"
        yield f"--- page {number} ---\n{text.strip() or '[No text]'}\n"


def docx_text(data: bytes) -> Iterator[str]:
    """The text of the body: a line for each paragraph, with `#` before headings, and for each row of a table."""
    main = ""

    def find_main(name: str, attributes: Mapping[str, str]) -> None:
        nonlocal main
        if attributes.get("Type", "").endswith("/officeDocument"):
            main = attributes["Target"].lstrip("/")

    with ZipFile(BytesIO(data)) as archive:
        _parse(_unpack(archive, "_rels/.rels"), find_main, lambda name: None, lambda text: None)
        xml = _unpack(archive, main)
    body = _Body()
    _parse(xml, body.begin, body.end, body.add)
    return iter(body.lines)


def _unpack(archive: ZipFile, name: str) -> bytes:
    part = archive.getinfo(name)
    if part.compress_type not in (ZIP_STORED, ZIP_DEFLATED):  # The others unpack more than is asked for.
        raise UnreadableError(Status.DAMAGED)
    with archive.open(part) as file:
        content = file.read(MAX_XML_BYTES + 1)
    if len(content) > MAX_XML_BYTES:
        raise UnreadableError(Status.TOO_LARGE)
    return content


def _parse(
    xml: bytes,
    begin: Callable[[str, Mapping[str, str]], None],
    end: Callable[[str], None],
    add: Callable[[str], None],
) -> None:
    """Call the functions for each element, by its name without a namespace, and each text between."""
    from xml.parsers import expat  # Here, since agents import this module for the statuses alone.

    def refuse(*declaration: object) -> None:
        raise UnreadableError(Status.DAMAGED)  # Entities may expand without end, and Word declares none.

    def local(name: str) -> str:
        return name.rpartition(" ")[2]

    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = lambda name, given: begin(local(name), {local(key): given[key] for key in given})
    parser.EndElementHandler = lambda name: end(local(name))
    parser.CharacterDataHandler = add
    parser.Parse(xml, True)


class _Body:
    """Collects the lines of the body of a Word document."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._open: list[str] = []
        self._copies = 0
        """How many elements are open whose text stands elsewhere as well."""
        self._paragraphs: list[list[str]] = []
        """The open paragraphs: one may hold a box with others."""
        self._rows: list[list[list[str]]] = []
        """The open rows of tables within one another: the lines of each cell."""

    def begin(self, name: str, attributes: Mapping[str, str]) -> None:
        within = self._open[-1] if self._open else ""
        self._open.append(name)
        self._copies += name in _COPIES
        if self._copies:
            return
        if name == "p":
            self._paragraphs.append([])
        elif name == "tr":
            self._rows.append([])
        elif name == "tc":
            self._rows[-1].append([])
        elif within == "r" and name in _SPACES:
            self.put(_SPACES[name])
        elif within == "pPr" and self._paragraphs and not self._paragraphs[-1]:
            style = attributes.get("val", "") if name == "pStyle" else ""
            if level := re.fullmatch(r"Heading([1-6])", style):
                self.put(f"{'#' * int(level[1])} ")
            elif name == "numPr" or style.startswith(("ListBullet", "ListNumber")):
                self.put("- ")

    def add(self, text: str) -> None:
        if self._open[-1] == "t" and not self._copies:
            self.put(text)

    def put(self, text: str) -> None:
        if self._paragraphs:
            self._paragraphs[-1].append(text)

    def end(self, name: str) -> None:
        self._open.pop()
        if self._copies:
            self._copies -= name in _COPIES
        elif name == "p":
            self._add_line("".join(self._paragraphs.pop()))
        elif name == "tr":
            self._add_line(" | ".join(" ".join(filter(None, cell)) for cell in self._rows.pop()))

    def _add_line(self, line: str) -> None:
        if self._rows:
            self._rows[-1][-1].append(line.replace("\n", " "))
        else:
            self.lines.append(f"{line}\n")


_COPIES: Final = ("Fallback", "moveFrom", "del", "pPrChange")
"""What programs show that do not know the other form, and what was there before a change that is tracked."""
_SPACES: Final = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
_READERS: Final[Mapping[str, Callable[[bytes], Iterator[str]]]] = {"pdf": pdf_text, "docx": docx_text}


def main(kind: str) -> Status:
    """Write the text of the document in stdin to stdout, as UTF-8."""
    with suppress(ImportError, OSError, ValueError):  # Windows has no such limit, and macOS refuses it.
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    logging.disable()
    left = MAX_TEXT_BYTES
    try:
        for part in _READERS[kind](sys.stdin.buffer.read()):
            text = part.encode(errors="replace")
            sys.stdout.buffer.write(text[:left])
            left -= len(text)
            if left < 0:
                sys.stdout.buffer.write(b"\n--- the rest is left out ---\n")
                break
        sys.stdout.buffer.flush()
    except UnreadableError as error:
        return Status(error.args[0])
    except MemoryError:
        return Status.TOO_LARGE
    return Status.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
