"""Every promise of SECURITY.md has a test."""

from pathlib import Path
from typing import Final

from deepfs.testing import BackendConformance
from support.promises import kept, promises

OF_THE_SHIPPED_SUITE: Final = {
    "All of the above, within the process.": "test_failures_are_results_too",
    "A path is normalised once": "test_results_have_the_normalised_path",
    "and nothing is touched": "test_hostile_paths_change_nothing",
    "**Errors** are data.": "test_failures_are_results_too",
    "A reader sees the old file or the new one": "test_a_reader_never_sees_a_partial_write",
    "no work goes on behind its back": "test_a_cancelled_write_is_done_or_not",
    "exactly those that reported success are in the file": "test_every_successful_edit_is_applied_once",
    "The locks belong to the storage": "test_edits_that_do_not_overlap_all_succeed",
    "in time linear in the input": "test_a_regular_expression_cannot_hang",
    "counted in `skipped`": "test_binary_files_that_match_count_as_skipped",
    "Files of any bytes are compared": "test_of_concurrent_changes_of_a_version_one_succeeds",
    "What the store cannot hold is refused before anything is written.": "test_content_that_is_not_text_is_refused",
}
"""Words of promises that the suite for every backend tests."""
OF_OTHER_TESTS: Final = {
    "A mount hides what lies beneath it.": "test_a_mount_hides_the_files_of_the_default_backend_at_its_path",
    "A failing mount is named": "test_a_search_returns_its_matches_and_names_the_mount_that_failed",
    "Each key has the namespace": "test_namespaces_and_prefixes_are_apart",
    "has the URL's password.": "test_the_address_shows_no_secret",
    "by a phrase of deepfs why the server failed": "test_what_the_server_refuses_is_told_by_its_reason",
    "Exactly its namespace": "test_only_items_of_exactly_this_namespace_are_visible",
    "Components are escaped so that no two namespaces meet": "test_each_identity_has_files_of_its_own",
    "A command, with its process group": "test_the_whole_process_group_ends_at_the_timeout",
    "Parallel calls of one superstep add up": "test_twenty_parallel_edits_survive",
    "live, after a retry and after a resume.": "test_an_interrupted_node_takes_effect_once",
    "Where two collide, one takes effect": "test_exactly_one_of_twenty_colliding_threads_succeeds",
    "Whole dicts of files that nodes and subgraphs return undo nothing": "test_whole_maps_of_parallel_tasks_are_merged",
    "Every operation is checked by one function": "test_symlinks_to_denied_paths_are_denied",
}
"""The same of promises that tests of other directories keep."""


def test_every_promise_is_kept_by_a_test_and_every_name_of_a_promise_is_right() -> None:
    named = [words for each in kept().values() for words in each]
    named += [*OF_THE_SHIPPED_SUITE, *OF_OTHER_TESTS]
    assert [promise for promise in promises() if not any(words in promise for words in named)] == []
    assert [words for words in named if not any(words in promise for promise in promises())] == []
    tests = "".join(file.read_text() for file in Path(__file__).parents[1].glob("*/test_*.py"))
    assert [test for test in OF_OTHER_TESTS.values() if f"def {test}(" not in tests] == []
    assert [test for test in OF_THE_SHIPPED_SUITE.values() if not hasattr(BackendConformance, test)] == []
