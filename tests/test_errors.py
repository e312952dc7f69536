"""Each error has one code and one text; the drawing shows all of them."""

import errno
import inspect
import re

import pytest

from deepfs import errors
from deepfs.errors import DeepFSError, ErrorCode, error_class, quoted

LEAVES = DeepFSError.__subclasses__()

# The texts that users of deepagents, and models, know.
TEXTS: list[tuple[DeepFSError, str]] = [
    (errors.FileMissingError("/x"), "Error: File '/x' not found"),
    (errors.DirectoryError("/x"), "Error: '/x' is a directory"),
    (errors.NotDirectoryError("/x"), "Error: '/x' is not a directory"),
    (errors.AccessError("/x"), "Error: Permission denied for '/x'"),
    (errors.AccessError("/x", "read-only"), "Error: Permission denied for '/x': read-only"),
    (errors.InvalidPathError("/x", "NUL"), "Error: Invalid path '/x': NUL"),
    (errors.ExistsError("/x"), "already exists"),
    (errors.NoMatchError("/x"), "Error: String not found in file '/x'."),
    (errors.NoMatchError("/x", "Line 3 differs."), "not found in file '/x'. Line 3 differs."),
    (errors.AmbiguousMatchError("/x", 3), "appears 3 times in file '/x' (multiple matches)"),
    (errors.BinaryFileError("/x"), "Error: '/x' is a binary file"),
    (errors.TooLargeError("/x", 2048, 1024), "Error: '/x' is too large: 2,048 bytes, the limit is 1,024"),
    (
        errors.QuotaExceededError("/x", 2048, 1024),
        "Error: '/x' exceeds the quota: 2,048 bytes would be stored, the limit is 1,024",
    ),
    (errors.ConflictError("/x"), "Error: '/x' changed since it was read."),
    (errors.InvalidPatternError("Error: told"), "Error: told"),
    (errors.InvalidContentError("Error: told"), "Error: told"),
    (errors.DeadlineError("Error: told"), "Error: told"),
    (errors.NotSupportedError("Error: told"), "Error: told"),
    (errors.BackendError("Error: told"), "Error: told"),
]

each_error = pytest.mark.parametrize(
    ("error", "text"), TEXTS, ids=[f"{type(error).__name__}-{len(str(error))}" for error, _ in TEXTS]
)


class TestTheTree:
    def test_each_leaf_has_a_code_of_its_own_and_each_code_a_leaf(self) -> None:
        assert sorted(leaf.code for leaf in LEAVES) == sorted(ErrorCode)
        assert [leaf for leaf in LEAVES if "code" not in vars(leaf)] == []
        # Layers above may say more about a condition (a rule, a limit) in a class of their own, with the leaf's code.
        beneath = [kind for leaf in LEAVES for kind in leaf.__subclasses__()]
        assert [kind for kind in beneath if kind.__module__ == errors.__name__ or "code" in vars(kind)] == []

    def test_the_leaf_of_a_code_is_found(self) -> None:
        for code in ErrorCode:
            assert error_class(code).code is code

    def test_the_drawing_shows_each_class_with_its_code_and_builtin_base(self) -> None:
        assert errors.__doc__ is not None
        drawn = re.findall(r"^[├└]── (\w+) +(\w+)(?: +also (\w+))?$", errors.__doc__, re.MULTILINE)
        shown = [(leaf.__name__, leaf.code.value, leaf.__bases__[1:]) for leaf in LEAVES]
        assert drawn == [(name, code, bases[0].__name__ if bases else "") for name, code, bases in shown]

    def test_all_classes_are_exported(self) -> None:
        classes = [value for value in vars(errors).values() if inspect.isclass(value)]
        assert {each.__name__ for each in classes if each.__module__ == errors.__name__} <= set(errors.__all__)

    def test_codes_are_their_names_in_lower_case(self) -> None:
        assert [code.value for code in ErrorCode] == [name.lower() for name in ErrorCode.__members__]
        assert ErrorCode.FILE_NOT_FOUND == "file_not_found"
        assert f"{ErrorCode.FILE_NOT_FOUND}" == "file_not_found"


class TestTexts:
    def test_there_is_an_example_of_each_leaf(self) -> None:
        assert {type(error) for error, _ in TEXTS} == set(LEAVES)

    @each_error
    def test_each_condition_has_its_text(self, error: DeepFSError, text: str) -> None:
        assert text in str(error)
        assert str(error).startswith("Error: ")

    def test_handlers_of_builtin_errors_catch_them(self) -> None:
        with pytest.raises(FileNotFoundError):
            raise errors.FileMissingError("/x")
        with pytest.raises(PermissionError):
            raise errors.AccessError("/x")
        with pytest.raises(TimeoutError):
            raise errors.DeadlineError("Error: told")

    def test_they_do_not_pose_as_errors_of_the_system(self) -> None:
        assert errors.FileMissingError("/x").errno is None
        assert errors.FileMissingError("/x").errno != errno.ENOENT


class TestNames:
    @pytest.mark.parametrize(
        ("name", "shown"),
        [
            ("/x", "'/x'"),
            ("/größe 日本.txt", "'/größe 日本.txt'"),
            ("/a\nb", r"'/a\nb'"),
            ("/a\x00b", r"'/a\x00b'"),
            ("/\udcff", r"'/\udcff'"),
            ("/\x1b[31mred", r"'/\x1b[31mred'"),
            ("/right\u202eleft", r"'/right\u202eleft'"),
        ],
    )
    def test_what_cannot_be_printed_is_escaped(self, name: str, shown: str) -> None:
        assert quoted(name) == shown
        assert str(errors.FileMissingError(name)) == f"Error: File {shown} not found"
        str(errors.FileMissingError(name)).encode()

    def test_a_very_long_one_is_cut(self) -> None:
        assert len(quoted("/" + "x" * 10_000)) < 320
        assert quoted("/" + "x" * 299) == "'/" + "x" * 299 + "'"
