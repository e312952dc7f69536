"""Patches in the V4A format: what is read, where hunks apply, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepfs.text.patches import FilePatch, PatchError, apply_hunks, parse_added_text, parse_hunks, parse_patch

CODE = "class A:\n    def run(self):\n        pass\n\nclass B:\n    def run(self):\n        pass\n"


def patched(text: str, diff: str) -> str:
    return apply_hunks("/f", text, parse_hunks(diff, "/f")).text


def patch_of(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])


def test_a_patch_names_what_it_does_with_each_file() -> None:
    update = ["*** Update File: b c", "*** Move to: /d", "@@", "-x", ""]
    patch = patch_of("*** Add File: /a", "+one", "+", *update, "*** Delete File: /e")
    added, updated, deleted = parse_patch(patch)
    assert added == FilePatch("add", "/a", "one\n\n")
    assert (updated.path, updated.move_to, updated.hunks[0].lines) == ("b c", "/d", (("-", "x"),))
    assert deleted == FilePatch("delete", "/e")


def test_a_patch_may_stand_in_a_here_document_or_a_block(subtests: pytest.Subtests) -> None:
    for wrapped in ["{}", "apply_patch <<'EOF'\n{}\nEOF", "<<EOF\n{}\nEOF", "```diff\n{}\n```", "\n  {}\n\n"]:
        with subtests.test(wrapped=wrapped):
            patch = patch_of("*** Delete File: /a")
            assert parse_patch(wrapped.format(patch)) == parse_patch(wrapped.format(patch).replace("\n", "\r\n"))
            assert parse_patch(wrapped.format(patch)) == [FilePatch("delete", "/a")]


MALFORMED: dict[str, tuple[str, str]] = {
    "no markers": ("+x", "begins with the line"),
    "no end": ("*** Begin Patch\n*** Delete File: /a", "ends with the line"),
    "nothing": (patch_of(), "changes no file"),
    "no path": (patch_of("*** Delete File: "), "names no path"),
    "no file": (patch_of("+x"), "belongs to no file"),
    "unsigned": (patch_of("*** Add File: /a", "x"), "begins with \\+"),
    "delete with lines": (patch_of("*** Delete File: /a", "-x"), "Leave them out"),
    "no changes": (patch_of("*** Update File: /a"), "has no changes"),
    "only context": (patch_of("*** Update File: /a", " x"), "changes nothing"),
    "other header": (patch_of("*** Update File: /a", "-x", "*** Rename: /b"), "begins with a space"),
}


def test_a_malformed_patch_says_what_to_correct(subtests: pytest.Subtests) -> None:
    for name in MALFORMED:
        with subtests.test(name=name):
            patch, said = MALFORMED[name]
            with pytest.raises(PatchError, match=said):
                parse_patch(patch)


APPLIED = [
    ("a\nb\nc\n", " a\n-b\n+B", "a\nB\nc\n"),
    ("a\nb\nc\n", "-a\n+A\n@@\n-c\n+C", "A\nb\nC\n"),
    ("a\nb", "-b\n+B", "a\nB"),
    ("a\nb", " b\n+c\n*** End of File", "a\nb\nc"),
    ("x\na\nx\n", "-x\n+y\n*** End of File", "x\na\ny\n"),
    ("a\r\nb\r\n", "-b\n+B\n+C", "a\r\nB\r\nC\r\n"),
    ("a\r\nb\nc\r\n", " b\n+new", "a\r\nb\nnew\nc\r\n"),
    ("", "+x", "x\n"),
    ("a\nb", "-b\n\\ No newline at end of file\n+c\n\\ No newline at end of file", "a\nc"),
    ("a\n", "+x\n*** End of File", "a\nx\n"),
    ("a\nb\n", "-a\n-b", ""),
    ("a\n\nb\n", " a\n\n-b\n+c", "a\n\nc\n"),
    (CODE, "@@ class B:\n@@     def run(self):\n-        pass\n+        return 1", CODE[:-5] + "return 1\n"),
    (CODE, "@@ class B:\n     def run(self):\n+        go()", f"{CODE[:-13]}        go()\n{CODE[-13:]}"),
    (CODE, "@@ -1,2 +1,2 @@ class A:\n-    def run(self):\n+    def go(self):", CODE.replace("run", "go", 1)),
    ("a\n", "@@ a\n+b", "a\nb\n"),
]


def test_hunks_apply() -> None:
    assert [(text, diff, after) for text, diff, after in APPLIED if patched(text, diff) != after] == []


WHITE_SPACE = [
    ("a\nkept  \nb\n", " kept\n-b\n+c", "a\nkept  \nc\n", 1),
    ("\tkept\n\tb\n", " kept\n-b\n+c", "\tkept\nc\n", 1),
    ("kept\nb\n", " kept\n-b\n+c", "kept\nc\n", 0),
    ("x \nx\n", "-x\n+y", "x \ny\n", 0),
]


def test_white_space_may_differ_only_where_nothing_matches_exactly() -> None:
    assert [
        (text, diff, after, fuzzy)
        for text, diff, after, fuzzy in WHITE_SPACE
        if apply_hunks("/f", text, parse_hunks(diff, "/f")) != (after, fuzzy)
    ] == []


REFUSED = [
    ("a\nb\na\n", "-a\n+c", r"2 times \(at lines 1, 3\)\. Add lines of context"),
    (CODE, "@@     def run(self):\n-        pass\n+        go()", "2 times"),
    (CODE, "@@ class C:\n-        pass\n+        go()", "'class C:' of '@@' is not in /f"),
    ("a\nb\n", "-c\n+d", "'c' is not in /f. Read the file"),
    ("a\nb\n", "-b\n+c\n@@\n-a\n+c", "'a' is not in /f after line 2"),
    ("a\nx\nb\n", " a\n-b", "are not together"),
    ("a\ncafe\u0301\n", "-caf\u00e9\n+tea", r"With 'e\\u0301' for '\\xe9', it stands on line 2"),
    ("a\nb\ncafe\u0301\n", "-a\n+b\n@@\n-caf\u00e9\n+tea", "after line 1, .* it stands on line 3"),
    ("a\ncafe\u0301:\n", "@@ caf\u00e9:\n-x", r"of '@@' is not in /f\. With .* it stands on line 2"),
    ("a\n", "+x", "neither context nor"),
]


def test_a_hunk_without_one_place_is_refused(subtests: pytest.Subtests) -> None:
    for text, diff, said in REFUSED:
        with subtests.test(text=text, diff=diff, said=said), pytest.raises(PatchError, match=said):
            patched(text, diff)


LINES = st.lists(st.sampled_from(["a", "b", "  b", "", "c "]), max_size=12)


@given(LINES, LINES, st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_a_patch_of_the_whole_file_makes_the_other_text(
    old: list[str], new: list[str], end: str, is_ended: bool
) -> None:
    if not new or not old:
        return
    before = end.join(old) + (end if is_ended or not old[-1] else "")
    diff = "\n".join(["@@", *(f"-{line}" for line in old), *(f"+{line}" for line in new)])
    after = end.join(new) + (end if before.endswith("\n") else "")
    assert patched(before, diff) == (after if end in before else after.replace(end, "\n"))


def test_each_line_of_a_new_file_has_a_sign() -> None:
    assert parse_added_text("+a\r\n+b\n", "/f") == "a\nb\n"
    with pytest.raises(PatchError, match="'b' does not"):
        parse_added_text("+a\nb", "/f")
