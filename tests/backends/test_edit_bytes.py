r"""An edit changes the replaced span and no other byte, whatever the line ends and the encoding; or it is refused.

The oracle works on one regular expression over the whole text and shares no code with the library: in a file with
`\r\n`, a `\n` of the old text matches either line end. The n-th line end of the new text is spelt like the n-th one
of the replaced text; further ones are spelt like the last one, or like most of the file if no line end is replaced.
"""

import re
from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.counts import few_or_many, telling
from support.every_backend import Storage, storage

__all__ = ["storage"]


# --- generated edits ---


def expected(content: bytes, old: str, new: str, *, replace_all: bool) -> bytes | None:
    """The content that the edit should produce, or None if the edit should be refused."""
    try:
        text = content.decode()
        new.encode()
    except UnicodeError:
        return None
    if b"\0" in content or "\0" in new or not old or old == new:
        return None
    if "\r" in old or "\r\n" not in text:
        pattern, spelt = re.escape(old), _as_given(new)
    else:
        # A line end is one unit: a lone LF does not match the LF of a CRLF.
        pattern = re.escape(old).replace(re.escape("\n"), "(?:\r\n|(?<!\r)\n)")
        spelt = _as_in_place(new, text)
    places = len(re.findall(f"(?={pattern})", text))
    if places == 0 or (places > 1 and not replace_all):
        return None
    return re.sub(pattern, spelt, text).encode()


def _as_given(new: str) -> Callable[[re.Match[str]], str]:
    return lambda _: new


def _as_in_place(new: str, text: str) -> Callable[[re.Match[str]], str]:
    crlf = text.count("\r\n")
    usual = "\r\n" if crlf > text.count("\n") - crlf else "\n"

    def spelt(match: re.Match[str]) -> str:
        ends = re.findall("\r\n|\n", match[0]) or [usual]
        pieces = re.split("(\r\n|\n)", new)
        for index, piece in enumerate(pieces[1::2]):
            pieces[2 * index + 1] = "\r\n" if piece == "\r\n" else ends[min(index, len(ends) - 1)]
        return "".join(pieces)

    return spelt


PIECES = st.sampled_from(
    ["\n", "\r\n", "\r", "\n\n", "a", "b", "ab", "aba", " ", "\t", "\u00e9", "\u2028", "\U0001f600"]
)
TEXTS = st.lists(PIECES, min_size=1, max_size=12).map("".join)
ENCODINGS = st.sampled_from(["utf-8"] * 12 + ["utf-8-sig"] * 6 + ["latin-1", "utf-16", "utf-16-le"])


@st.composite
def edits(draw: st.DrawFn) -> tuple[bytes, str, str, bool]:
    text = draw(TEXTS)
    start = draw(st.integers(0, max(len(text) - 1, 0)))
    taken = text[start : start + draw(st.integers(1, 6))]
    old = draw(
        st.sampled_from([taken] * 4 + [taken.replace("\r\n", "\n")] * 12 + [taken + "\n", "\ufeff", "\0", "", "x"])
    )
    new = draw(st.one_of(TEXTS, TEXTS, TEXTS, st.text(max_size=3), st.sampled_from([old, old + "a", "\udfff", "\0"])))
    content = text.encode(draw(ENCODINGS), "ignore") + draw(st.sampled_from([b""] * 20 + [b"\0", b"\xff", b"\xe2\x82"]))
    return content, old, new, draw(st.booleans())


@pytest.mark.parametrize("examples", few_or_many(150, 2_000))
def test_generated_edits_agree_with_the_oracle(
    storage: Storage, examples: int, record_property: Callable[[str, object], None]
) -> None:
    done, numbers = {True: 0, False: 0}, count()

    def check(path: str, content: bytes, old: str, new: str, replace_all: bool) -> None:
        storage.put(path, content)
        edited = storage.backend.edit(path, old, new, replace_all)
        after = expected(content, old, new, replace_all=replace_all)
        assert edited.ok == (after is not None), edited.error
        assert storage.peek(path) == (content if after is None else after)
        done[edited.ok] += 1

    @settings(max_examples=examples)
    @given(edit=edits(), prefix=st.sampled_from(storage.prefixes))
    def check_one(edit: tuple[bytes, str, str, bool], prefix: str) -> None:
        # A path for each example: within one superstep, a second put at a path counts as a change of the first file.
        check(f"{prefix}/{next(numbers)}.txt", *edit)

    check_one()
    telling(record_property)(f"{done[True]} edits made as by the oracle, {done[False]} refused with the file untouched")
