import pytest

from deepfs.text.flat_tree import Directories, FileStat, stats_of
from deepfs.types import FileDataV2


def test_directories_ignore_keys_that_are_no_paths_of_files() -> None:
    directories = Directories(["/a/b", 7, "/", "/c/"])
    for key in ("/", "/a/../d", "a", None):
        directories.add(key)  # type: ignore[arg-type]
        directories.discard(key)  # type: ignore[arg-type]
    assert (directories.children("/"), directories.children("/a")) == (["/a"], ["/a/b"])
    directories.discard("/a/b")
    assert "/a" not in directories


def test_of_a_malformed_file_nothing_is_known_and_of_a_missing_one_there_is_no_stat() -> None:
    stats = stats_of({"/good": FileDataV2("text"), "/bad": 7})  # type: ignore[dict-item]
    assert (stats["/good"].size, stats["/bad"]) == (4, FileStat())
    with pytest.raises(KeyError):
        stats["/none"]
