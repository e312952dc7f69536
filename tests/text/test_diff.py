"""Differences between two versions of a text, and joining two changes of one text."""

from hypothesis import given
from hypothesis import strategies as st

from deepfs.text.diff import TextDiff, difference, disjoint, join_edits, line_changes, merge_texts
from deepfs.text.edits import replace

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


@given(lines.filter(bool), lines)
def test_edits_are_joined_to_one_with_the_same_effect(before: str, after: str) -> None:
    if before != after:
        assert replace("/a", before, *join_edits(before, after)).content == after


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
    together = merge_texts(original, version("mine"), version("theirs"))
    assert together in (version("mine", "theirs"), None)
    apart = all(
        "keep" in owners[min(one, other) : max(one, other)]
        for one, first in enumerate(owners)
        for other, second in enumerate(owners)
        if {first, second} == {"mine", "theirs"}
    )
    assert together is not None or not apart


def test_changes_of_one_line_are_not_joined() -> None:
    assert merge_texts("a\nb\nc\n", "a\nB\nc\n", "a\nX\nc\n") is None
    assert merge_texts("", "a\n", "b\n") is None
    assert merge_texts("a\n", "a\nb\n", "a\nc\n") is None


def test_very_different_texts_give_one_span() -> None:
    before = "".join(f"{number}\n" for number in range(5_000))
    change = difference(f"head\n{before}tail\n", f"head\n{before.replace('7', 'x')}tail\n")
    assert change is not None
    assert len(change.spans) == 1
    assert disjoint([(0, 5, 1)], [(change.spans[0].start, change.spans[0].end, 1)])


# --- shown to a person ---

plain = st.lists(st.sampled_from(["a\n", "b\n", "\n", "c d\n"]), max_size=25).map("".join)


@given(plain, plain, st.booleans())
def test_the_rows_lead_from_one_text_to_the_other(before: str, after: str, is_ended: bool) -> None:
    if not is_ended:
        after = after.removesuffix("\n")
    diff = TextDiff(before, after)
    rows = [*diff.rows()]
    old, made, done = before.splitlines(keepends=True), list[str](), 0
    for row in rows:
        if row.startswith("@@"):
            start = int(row[4:].partition(",")[0])
            start -= "," in row and not row.startswith(f"@@ -{start},0 ")
            made += old[done:start]
            done = start
        elif row[0] == "+":
            made.append(f"{row[1:]}\n")
        elif row[0] in " -":
            assert old[done].removesuffix("\n") == row[1:]
            made += [old[done]] if row[0] == " " else []
            done += 1
        elif made:
            made[-1] = made[-1].removesuffix("\n") if not after.endswith("\n") else made[-1]
    assert "".join([*made, *old[done:]]) == after
    assert (diff.added, diff.removed) == tuple(sum(row.startswith(sign) for row in rows) for sign in "+-")


@given(lines.map(str.splitlines), lines.map(str.splitlines))
def test_changes_of_lines_lead_from_one_list_to_the_other(old: list[str], new: list[str]) -> None:
    made, done = list[str](), 0
    for change in line_changes(old, new):
        made += [*old[done : change.start], *new[change.new_start : change.new_end]]
        done = change.end
    assert [*made, *old[done:]] == new


def test_changes_far_apart_in_a_large_text_are_found_line_by_line() -> None:
    before = "".join(f"{number}\n" for number in range(20_000))
    diff = TextDiff(before, before.replace("\n7\n", "\nx\n").replace("\n19990\n", "\ny\n"))
    assert [row for row in diff.rows() if row[0] in "+-"] == ["-7", "+x", "-19990", "+y"]


def test_one_change_among_equal_lines_is_found_wherever_it_is() -> None:
    before = ["\n"] * 5_000
    for place in (0, 1, 998, 999, 1_000, 1_001, 1_999, 2_000, 3_999, 4_000, 4_999):
        after = [*before[:place], "x\n", *before[place + 1 :]]
        assert line_changes(before, after) == [(place, place + 1, place, place + 1)]
        assert line_changes(before, [*before[:place], "x\n", *before[place:]]) == [(place, place, place, place + 1)]


def test_lines_show_what_would_not_be_seen() -> None:
    rows = [*TextDiff("", "a\x1b[31m\rb\u202e\u200b\U000e0041é👩\u200d💻\n").rows()]
    assert rows[1] == "+a\\x1b[31m\\rb\\u202e\\u200b\\U000e0041é👩\u200d💻"
    crlf = [*TextDiff("a\r\nb\r\n", "a\r\nc\r\n").rows()]
    assert crlf[1:] == [" a", "-b", "+c"]
    assert "+a" in [*TextDiff("a\r\n", "a\n").rows()]
    assert "-a\\r" in [*TextDiff("a\r\n", "a\n").rows()]
