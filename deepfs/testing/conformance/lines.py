"""Lines: only LF ends a line, a CR before it belongs to the line end; `read` and `grep` agree."""

from typing import Final

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import ErrorCode
from deepfs.testing.expect import failed, shown, succeeded
from deepfs.testing.suite import BackendSuite

__all__ = ["TEXTS", "LineConformance", "lines_with_ends"]

TEXTS: Final = (
    "",
    "\n",
    "\n\n",
    "one",
    "one\n",
    "one\ntwo",
    "one\ntwo\n",
    "one\n\nthree\n\n",
    "one\r\ntwo\r\n",
    "one\r\ntwo",
    "one\r\ntwo\nthree\r\nfour",
    "lone\rcarriage\rreturn\nnext",
    "carriage return at the end\r",
    "\r\n\r\n",
    "form\x0cfeed\nvertical\x0btab\nfile\x1cseparator\n",
    "line\u2028separator\nparagraph\u2029separator\nnext\x85line\n",
    "héllo\nwörld 😀\n日本語",
    "\ufeffwith a mark\nsecond\n",
    "\ufeff",
    "trailing space \n\ttab\n",
    "\n".join(str(number) for number in range(30)),
)
"""Texts that are easily split into lines in the wrong places."""


def lines_with_ends(text: str) -> list[str]:
    """The lines of a text according to the contract, with their terminators, without a BOM."""
    pieces = text.removeprefix("\ufeff").split("\n")
    lines = [f"{piece}\n" for piece in pieces[:-1]]
    return [*lines, pieces[-1]] if pieces[-1] else lines


async def _windows(backend: BackendProtocol, path: str, limit: int) -> list[str]:
    """Read a file by windows of `limit` lines, check the line numbers of each, and return their texts."""
    windows: list[str] = []
    offset: int | None = 0
    while offset is not None:
        window = succeeded(await backend.aread(path, offset, limit))
        text = shown(window)
        count = len(lines_with_ends("x" + text)) if text else 0
        if count:
            assert (window.start_line, window.end_line) == (offset + 1, offset + count)
            assert count == limit or window.next_offset is None, "a window is full, or the last"
        assert window.next_offset is None or window.next_offset == offset + count, "next_offset follows the window"
        windows.append(text)
        offset = window.next_offset
    return windows


class LineConformance(BackendSuite):
    """`read` and `grep` split a text into the same lines."""

    async def test_reading_line_by_line_shows_each_line(self, backend: BackendProtocol) -> None:
        texts = self.some(enumerate(TEXTS))
        await self.put({f"/lines/{number}.txt": text for number, text in texts})
        for number, text in texts:
            assert await _windows(backend, f"/lines/{number}.txt", 1) == (lines_with_ends(text) or [""]), repr(text)

    async def test_following_next_offset_reproduces_the_file(self, backend: BackendProtocol) -> None:
        texts = self.some(enumerate(TEXTS))
        await self.put({f"/lines/{number}.txt": text for number, text in texts})
        for number, text in texts:
            for limit in (2, 3, 7, 2000):  # 1 has a stricter test of its own.
                windows = await _windows(backend, f"/lines/{number}.txt", limit)
                assert "".join(windows) == text.removeprefix("\ufeff"), (repr(text), limit)

    async def test_the_last_window_has_the_number_of_lines(self, backend: BackendProtocol) -> None:
        texts = self.some(enumerate(TEXTS))
        await self.put({f"/lines/{number}.txt": text for number, text in texts})
        for number, text in texts:
            lines = lines_with_ends(text)
            read = succeeded(await backend.aread(f"/lines/{number}.txt", max(len(lines) - 1, 0), 1))
            assert (read.next_offset, read.total_lines or 0) == (None, len(lines)), repr(text)

    async def test_grep_numbers_lines_as_read_shows_them(self, backend: BackendProtocol) -> None:
        texts = self.some(enumerate(TEXTS))
        await self.put({f"/lines/{number}.txt": text for number, text in texts})
        for regex in (False, True):
            for number, text in texts:
                path = f"/lines/{number}.txt"
                found = succeeded(await backend.agrep("", path, regex=regex)).matches or []
                plain = [
                    line.removesuffix("\n").removesuffix("\r") if line.endswith("\n") else line
                    for line in lines_with_ends(text)
                ]
                assert [(match.line, match.text) for match in found] == [*enumerate(plain, 1)], (repr(text), regex)

    async def test_the_error_of_an_offset_past_the_end_has_the_number_of_lines(self, backend: BackendProtocol) -> None:
        await self.put({"/seven.txt": "1\n2\n3\n4\n5\n6\n7\n", "/three.txt": "1\n2\n3"})
        for path, offset, length in (("/seven.txt", 7, "7"), ("/seven.txt", 100, "7"), ("/three.txt", 3, "3")):
            error = failed(await backend.aread(path, offset), ErrorCode.INVALID_CONTENT).error or ""
            assert length in error.replace(str(offset), "", 1), f"the error tells the {length} lines: {error}"

    async def test_an_empty_file_is_empty_at_any_offset(self, backend: BackendProtocol) -> None:
        await self.put({"/empty.txt": ""})
        for offset in (0, 5):
            read = succeeded(await backend.aread("/empty.txt", offset))
            assert (shown(read), read.start_line, read.next_offset) == ("", None, None)
