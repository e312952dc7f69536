"""Every promise of SECURITY.md has a test."""

import pytest

from support.promises import kept, promises


@pytest.mark.parametrize("promise", promises())
def test_a_test_keeps_the_promise(promise: str) -> None:
    assert any(words in promise for named in kept().values() for words in named)


def test_the_words_that_tests_name_stand_in_security_md() -> None:
    for test, named in kept().items():
        for words in named:
            assert any(words in promise for promise in promises()), f"{test} names {words!r}"
