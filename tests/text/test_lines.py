import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepfs.errors import InvalidContentError
from deepfs.text.lines import BOM, Facts, Window, check_text, decode, facts, is_text, line_count, version, window

# These characters end a line for str.splitlines, but not here: VT, FF, NEL, LS, PS, a lone CR.
texts = st.text(st.sampled_from("a \n\r\v\f\x85\u2028\u2029é\U0001f600"), max_size=60)


def split_lines(text: str) -> list[str]:
    """The lines of `text` with their line ends; a simple reference implementation."""
    pieces = text.split("\n")
    lines = [f"{piece}\n" for piece in pieces[:-1]]
    return [*lines, pieces[-1]] if pieces[-1] else lines


@given(texts, st.booleans(), st.integers(1, 5))
def test_following_next_offset_reproduces_the_text(text: str, with_bom: bool, limit: int) -> None:
    stored = BOM + text if with_bom else text
    shown, offset = [], 0
    while offset is not None:
        step = window(stored, offset, limit)
        shown.append(step.text)
        offset = step.next_offset
    assert "".join(shown) == text


@given(texts, st.integers(0, 20), st.integers(1, 10))
def test_window_is_a_slice_of_the_lines(text: str, offset: int, limit: int) -> None:
    lines = split_lines(text)
    if offset >= len(lines) > 0:
        with pytest.raises(InvalidContentError):
            window(text, offset, limit)
        return
    chosen = lines[offset : offset + limit]
    last = offset + len(chosen)
    shown = window(text, offset, limit)
    assert shown.text == "".join(chosen)
    assert shown.total_lines == line_count(text) == len(lines)
    assert (shown.start_line, shown.end_line) == ((offset + 1, last) if chosen else (None, None))
    assert shown.next_offset == (last if last < len(lines) else None)


def test_empty_file_is_an_empty_window() -> None:
    for offset in [0, 7]:
        for text in ["", BOM]:
            assert window(text, offset, 10) == Window("", None, None, 0, None)


def test_an_offset_past_the_end_is_an_error_that_gives_the_length() -> None:
    with pytest.raises(InvalidContentError, match=r"^Error: Line offset 10 exceeds file length \(3 lines\)$"):
        window("a\nb\nc\n", 10, 5)
    with pytest.raises(InvalidContentError, match=r"offset 3 exceeds file length \(3 lines\)"):
        window("a\nb\nc", 3, 5)


def test_negative_offset_reads_from_the_start() -> None:
    assert window("a\nb\n", -5, 1) == Window("a\n", 1, 1, 2, 1)


def test_a_window_of_no_lines_keeps_the_offset() -> None:
    for limit in [0, -3]:
        assert window("a\nb\n", 1, limit) == Window("", None, None, 2, 1)


def test_a_bom_is_hidden_only_at_the_start() -> None:
    text = f"{BOM}a\n{BOM}b\n"
    assert window(text, 0, 1).text == "a\n"
    assert window(text, 1, 1).text == f"{BOM}b\n"


@given(st.lists(texts, max_size=3), st.sampled_from([0, 1000, 1100]))
def test_facts_are_those_of_the_text_however_often_they_are_asked_for(given: list[str], padding: int) -> None:
    for text in [*given, *given]:
        padded = text + "-" * padding
        assert facts(padded) == Facts(line_count(padded), version(padded))


def test_the_cache_of_facts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[int, Facts] = {}
    monkeypatch.setattr("deepfs.text.lines._facts", known)
    monkeypatch.setattr("deepfs.text.lines._MAX_REMEMBERED", 10)
    for number in range(25):
        assert facts(f"{number}\n" * 1000).lines == 1000
        assert 1 <= len(known) <= 10


@given(st.binary(max_size=40) | texts.map(str.encode))
def test_decode_round_trips_text_and_refuses_the_rest(data: bytes) -> None:
    text = decode(data)
    if text is None:
        assert b"\0" in data or data.decode("utf-8", "replace").encode() != data
    else:
        assert text.encode() == data
        assert is_text(text)


def test_check_text_names_the_invalid_character_and_its_place() -> None:
    for content, expected in [
        ("ab\nc\0d", "NUL character at line 2, column 2"),
        ("é\ud83d", r"half a surrogate pair \(U\+D83D\) at line 1, column 2"),
        ("\udc00", r"U\+DC00"),
    ]:
        assert not is_text(content)
        with pytest.raises(InvalidContentError, match=f"^Error: The new text holds .*{expected}"):
            check_text(content, "new text")


def test_versions_are_equal_exactly_for_equal_bytes() -> None:
    assert version("é\r\n") == version("é\r\n".encode())
    assert version("a\n") != version("a\r\n")
    assert version("\ud800") != version("?")
    assert len(version(b"")) == 32
