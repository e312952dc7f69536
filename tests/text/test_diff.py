"""Differences between two versions of a text, and joining two changes of one text."""

from hypothesis import given
from hypothesis import strategies as st

from deepfs.text.diff import difference, disjoint, joined

lines = st.lists(st.sampled_from(["a\n", "b\n", "c\r\n", "\n", "d", "e\u2028f\n"]), max_size=12).map("".join)


@given(lines.filter(bool), lines)
def test_applying_the_spans_gives_the_other_text(before: str, after: str) -> None:
    change = difference(before, after)
    assert change is not None
    pieces, copied = [], 0
    for span in change.spans:
        assert copied <= span.start < span.end <= len(before)
        pieces += [before[copied : span.start], span.text]
        copied = span.end
    assert "".join([*pieces, before[copied:]]) == after == change.content
    assert (change.spans == []) == (before == after)


@given(st.lists(st.sampled_from(["keep", "mine", "theirs"]), min_size=1, max_size=40), st.data())
def test_changes_of_different_lines_are_joined(owners: list[str], data: st.DataObject) -> None:
    new = st.sampled_from(["", "x\n", "x\ny\n"])
    replaced = [data.draw(new) for _ in owners]
    base = [f"{number}\n" for number in range(len(owners))]

    def version(*who: str) -> str:
        return "".join(
            replaced[number] if owner in who else f"= {number}\n{line}= {number}\n"
            for number, (owner, line) in enumerate(zip(owners, base, strict=True))
        )

    original = "".join(f"= {number}\n{line}= {number}\n" for number, line in enumerate(base))
    together = joined(original, version("mine"), version("theirs"))
    assert together in (version("mine", "theirs"), None)
    apart = all(
        "keep" in owners[min(one, other) : max(one, other)]
        for one, first in enumerate(owners)
        for other, second in enumerate(owners)
        if {first, second} == {"mine", "theirs"}
    )
    assert together is not None or not apart


def test_changes_of_one_line_are_not_joined() -> None:
    assert joined("a\nb\nc\n", "a\nB\nc\n", "a\nX\nc\n") is None
    assert joined("", "a\n", "b\n") is None
    assert joined("a\n", "a\nb\n", "a\nc\n") is None


def test_very_different_texts_give_one_span() -> None:
    before = "".join(f"{number}\n" for number in range(5_000))
    change = difference(f"head\n{before}tail\n", f"head\n{before.replace('7', 'x')}tail\n")
    assert change is not None
    assert len(change.spans) == 1
    assert disjoint([(0, 5, 1)], [(change.spans[0].start, change.spans[0].end, 1)])
