from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepfs.text import edits

SOURCE = dedent(
    """\
    import os

    def area(width, height):
    \treturn width * height

    class Box:
        size = 1\x20\x20
        def Double(self):
            return self.size * 2
    # the end"""
)


def hint(content: str, old: str) -> str:
    return edits.hint(content, old).text


DIFFERENCES = [
    ("def area(width,  height):", "differs in white space from line 3"),
    ("    return width * height", "differs in indentation from line 4, which is '\\treturn width * height'"),
    ("def area(width, height):\n    return", "differs in indentation from line 4"),
    ("height):\n\treturn width*height", "matches from line 3 on, but not line 4"),
    ("    size = 1\n    def Double", "differs in white space at the end from line 7"),
    ("def double(self):", "differs in upper and lower case from line 8"),
    ("DEF  double(self):", "white space and in upper and lower case from line 8"),
    ("# the end\n", "ends with a line break, but line 10 '# the end' is the last and has none"),
    ("3\tdef area(width, height):", "Without its line numbers, it stands on line 3"),
    ("     5\t\n     6\tclass Box:", "Without its line numbers, it stands on line 5"),
    ("  3: def area(width, height):", "Without its line numbers, it stands on line 3"),
    ("import os\\n\\ndef", "With line breaks and tabs in place of \\n and \\t, it stands on line 1"),
    ("```python\nclass Box:\n```", "Without its code fences, it stands on line 6"),
    ("def aera(width, height):", "nearest is line 3, which is 'def area(width, height):'"),
    ("class Box:\n    size = 1  \n    other", "matches from line 6 on, but not line 8, which is"),
    ("# the end\nmore", "matches from line 10 on, but the file ends before"),
    ("import os\r\n\r\ndef", "stands on line 1 'import os', but the line ends"),
    ("\n\n# the end\n\n", "Without the white space around it, it stands on line 10"),
]


def test_hint_names_the_line_and_the_difference(subtests: pytest.Subtests) -> None:
    for old, expected in DIFFERENCES:
        with subtests.test(old=old, expected=expected):
            assert old not in SOURCE
            assert expected in hint(SOURCE, old)


def test_hint_tells_of_escapes() -> None:
    assert [
        (old, expected)
        for old, expected in [
            ('say(\\"no\\")', "Without its backslashes, it stands on line 1"),
            ("a &lt; b &amp;&amp; say", "Without HTML escapes such as &lt;, it stands on line 1"),
        ]
        if expected not in hint('a < b && say("no")\n', old)
    ] == []


LOOK_ALIKE = [
    ("name = 'cafe\u0301'", "caf\u00e9", r"With 'e\u0301' for '\xe9', it stands on line 1"),
    ("The cafe\u0301 is open\nnow", "caf\u00e9 is open\nnow", r"With 'e\u0301' for '\xe9', it stands on line 1"),
    ("caf\u00e9", "cafe\u0301", r"With '\xe9' for 'e\u0301', it stands on line 1"),
    ("p\u0430ssword = 1", "password = 1", r"has 'password = 1', with '\u0430' for 'a'."),
    ("  x\u2212y", "x-y", r"has 'x-y', with '\u2212' for '-'."),
    ("cafe\u0301 \u00e9", "caf\u00e9 e\u0301", r", with 'e\u0301' for '\xe9'."),
]


def test_characters_that_look_alike_are_told_by_their_numbers() -> None:
    assert [(there, old, expected) for there, old, expected in LOOK_ALIKE if expected not in hint(there, old)] == []


def test_the_hint_is_empty_if_nothing_is_similar() -> None:
    assert [old for old in ["zzz qqq", "   \n ", "\n\n\n"] if hint(SOURCE, old) != ""] == []


def test_a_similar_place_far_down_a_large_file_is_found() -> None:
    lines = [f"value_{i} = {i}" for i in range(200_000)]
    assert "line 150001," in hint("\n".join(lines), "value_149999 = 149999\nvalue_150000  = 150000")


@given(st.text(st.sampled_from("ab \t\n\r\\n1"), max_size=40), st.text(st.sampled_from("abA \t\n\r\\n1"), min_size=1))
def test_hint_accepts_any_texts(content: str, old: str) -> None:
    assert isinstance(hint(content, old), str)
