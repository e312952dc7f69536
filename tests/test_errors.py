"""Every leaf error has one code and one text; the tree in the module's docstring shows all of them."""

import copy
import pickle
import re
from pathlib import Path

from deepfs import errors
from deepfs.errors import DeepFSError, ErrorCode, error_about, error_class, error_of, quote
from deepfs.types import ReadResult, error_from, failure

LEAVES = DeepFSError.__subclasses__()

TEXTS: list[tuple[DeepFSError, str]] = [
    (errors.NotFoundError("/x"), "Error: File '/x' not found"),
    (errors.IsDirectoryError("/x"), "Error: '/x' is a directory"),
    (errors.NotDirectoryError("/x"), "Error: '/x' is not a directory"),
    (errors.PermissionDeniedError("/x"), "Error: Permission denied for '/x'"),
    (errors.PermissionDeniedError("/x", "read-only"), "Error: Permission denied for '/x': read-only"),
    (errors.AlreadyExistsError("/x"), "already exists"),
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
    (errors.ConflictError("/x", "it stays"), "Error: '/x' changed since it was read: it stays"),
    (errors.InvalidPathError("/x/y", "it lies inside {other}", "/x"), "Error: Invalid path '/x/y': it lies inside /x"),
    (errors.AlreadyExistsError("/x", is_directory=True), "Error: Directory '/x' already exists."),
    (errors.InvalidPatternError("a[", "no ]", kind="glob pattern"), "Error: Invalid glob pattern 'a[': no ]"),
    (
        errors.InvalidPatternError("a\n", "a line break", kind="search pattern"),
        "Error: Invalid search pattern: a line ",
    ),
    (errors.InvalidContentError("/x", "no text"), "Error: Invalid content of '/x': no text"),
    (errors.DeadlineError("/x", ""), "Error: Time is up for '/x'"),
    (errors.NotSupportedError(None, backend="Tape", operation="edit"), "Error: Tape does not support edit"),
    (errors.BackendError("/x", "it burns"), "Error: '/x': it burns"),
    (errors.BackendError(None, "It burns"), "Error: It burns"),
    (
        errors.BackendError.because("/x", "{cause}", cause=errors.NotFoundError("/y")),
        "Error: '/x': File '/y' not found",
    ),
    (errors.InvalidPatternError("Error: told"), "Error: told"),
    (errors.BackendError("Error: told"), "Error: told"),
]
"""Error texts that users of deepagents, and models, know."""


def elsewhere(path: str) -> str:
    return f"/m{path}"


class TestHierarchy:
    def test_leaves_and_codes_correspond_one_to_one(self) -> None:
        assert sorted(leaf.code for leaf in LEAVES) == sorted(ErrorCode)
        assert [leaf for leaf in LEAVES if "code" not in vars(leaf) or issubclass(leaf, OSError)] == []
        assert [code for code in ErrorCode if error_class(code).code is not code] == []
        # Upper layers may subclass a leaf to say more about a condition (a rule, a limit), but keep the leaf's code.
        beneath = [kind for leaf in LEAVES for kind in leaf.__subclasses__()]
        assert [kind for kind in beneath if kind.__module__ == errors.__name__ or "code" in vars(kind)] == []


class TestTexts:
    """An error stores data; its text is rendered from it."""

    def test_each_error_has_its_text(self) -> None:
        assert {type(error) for error, _ in TEXTS} == set(LEAVES)
        for error, text in TEXTS:
            assert str(error).startswith("Error: ")
            assert text in str(error)
            assert error.reason in str(error)
            assert (error.args, repr(error)) == ((str(error),), f"{type(error).__name__}({str(error)!r})")
        assert str(errors.InvalidPatternError("a(", "missing )", kind="regex pattern")) == (
            "Invalid regex pattern: missing )"
        ), "as deepagents has it"

    def test_pickles_and_copies_keep_all_data(self) -> None:
        for error, _ in TEXTS:
            copies = (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error), error.with_paths(str))
            for copied in copies:
                assert type(copied) is type(error)
                assert str(copied) == str(error)
                assert str(vars(copied)) == str(vars(error))
                assert (copied.__traceback__, copied.__cause__) == (None, None)

    def test_renaming_changes_the_paths_only(self) -> None:
        for error, _ in TEXTS:
            renamed = error.with_paths(elsewhere)
            assert renamed.path == (None if error.path is None else f"/m{error.path}")
            assert renamed.other == (None if error.other is None else f"/m{error.other}")
            expected = re.sub("/x/y|/x|/y", r"/m\g<0>", str(error)) if error.path is not None else str(error)
            assert str(renamed) == expected

    def test_error_about_builds_the_error_of_each_code(self) -> None:
        cause = errors.NotFoundError("/c")
        for code in ErrorCode:
            error = error_about(code, "/x", "it lies in '{place}', see: {cause}", place="/p", cause=cause)
            assert (type(error), error.code, error.path) == (error_class(code), code, "/x")
            assert error.reason == "it lies in '/p', see: File '/c' not found"
            assert error.reason in str(error)
            assert str(error_about(code, None, "Why")) == "Error: Why"
            assert str(error.with_paths(elsewhere)) == re.sub("'/", "'/m/", str(error))

    def test_error_texts_survive_a_round_trip_through_a_result(self) -> None:
        for code in ErrorCode:
            error = error_about(code, "/x", "why")
            failed = failure(ReadResult, error)
            assert (failed.code, failed.error) == (code, str(error))
            told = error_from(ReadResult(failed.error, code=failed.code))
            assert (type(told), str(told), told.reason) == (error_class(code), str(error), str(error))

    def test_an_unknown_code_becomes_a_backend_error(self) -> None:
        assert type(error_about("no_space", "/x", "full")) is errors.BackendError
        assert type(error_of("no_space", "full")) is errors.BackendError

    def test_a_foreign_error_text_becomes_the_reason_and_may_have_a_path(self) -> None:
        foreign = error_of("file_not_found", "gone: '/x'")
        assert (type(foreign), str(foreign), foreign.path) == (errors.NotFoundError, "gone: '/x'", None)
        assert (foreign.reason, foreign.is_foreign) == ("gone: '/x'", True)
        error = error_of("file_not_found", "no file ", "/x", ", nor '/x' {0} {path}")
        assert (type(error), error.path, error.is_foreign) == (errors.NotFoundError, "/x", False)
        assert str(error) == "no file '/x', nor '/x' {0} {path}"
        assert str(error.with_paths(elsewhere)) == "no file '/m/x', nor '/x' {0} {path}"
        assert not errors.BackendError("/x", "of '/y'").is_foreign

    def test_braces_in_a_reason_are_not_expanded_by_accident(self) -> None:
        assert errors.BackendError("/x", "{path} {cause} {} {0}").reason == "{path} {cause} {} {0}"
        assert errors.PermissionDeniedError("/x", "see {other} {more}", "/{more}").reason == "see /{more} {more}"

    def test_unprintable_characters_are_escaped_and_long_names_cut(self) -> None:
        for name, shown in (
            ("/größe 日本.txt", "'/größe 日本.txt'"),
            ("/a\nb", r"'/a\nb'"),
            ("/a\x00b", r"'/a\x00b'"),
            ("/\udcff", r"'/\udcff'"),
            ("/\x1b[31mred", r"'/\x1b[31mred'"),
            ("/right\u202eleft", r"'/right\u202eleft'"),
        ):
            assert quote(name) == shown
            assert str(errors.NotFoundError(name)) == f"Error: File {shown} not found"
        assert len(quote("/" + "x" * 10_000)) < 320
        assert quote("/" + "x" * 299) == "'/" + "x" * 299 + "'"


def test_the_documentation_has_the_status_of_each_code() -> None:
    page = (Path(__file__).parents[1] / "docs/errors.md").read_text("utf-8")
    rows = re.findall(r"^\| (`[^|]*`) \| (\d+) \|", page, re.MULTILINE)
    told = {code: int(status) for codes, status in rows for code in re.findall(r"`(\w+)`", codes)}
    assert told == {code.value: code.http_status for code in ErrorCode}
