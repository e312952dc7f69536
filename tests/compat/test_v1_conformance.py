"""A V1 backend passes the conformance suite, as far as V1 can express the contract."""

from typing import Final

import pytest

from deepfs import BackendProtocol, CompositeBackend, MemoryBackend
from deepfs.testing import BackendConformance
from support.rooted import RootedBackend
from support.v1_backend import DuckS3, S3Operations


class S3Backend(S3Operations, BackendProtocol):
    """A V1 backend that inherits from the protocol, as the documentation shows it."""


INEXPRESSIBLE: Final = {
    "V1 cannot delete, so it cannot move either": """
        test_a_delete_with_the_current_version_succeeds test_a_delete_with_the_version_from_a_read_succeeds
        test_a_delete_with_another_version_is_a_conflict test_a_directory_has_no_version
        test_a_cancelled_delete_is_done_or_not test_a_cancelled_move_keeps_the_file_at_its_source_or_destination
        test_paths_with_the_same_prefix_are_not_deleted test_a_destination_with_the_same_prefix_is_not_inside_the_source
        test_a_directory_is_deleted_with_all_under_it test_a_directory_is_moved_with_all_under_it
        test_a_directory_exists_while_it_holds_a_file test_a_file_is_deleted test_a_file_is_moved
        test_an_empty_file_is_a_file test_a_name_can_be_used_again_as_another_kind
        test_an_empty_directory_stays_only_if_the_capability_is_declared
        test_a_file_being_moved_is_always_at_its_source_or_destination test_deletions_of_one_file_succeed_once
        test_directories_may_have_odd_names test_every_operation_returns_its_result test_failures_are_results_too
        test_files_with_odd_names_are_read_edited_and_deleted test_if_match_of_a_missing_file_is_a_conflict
        test_moves_of_one_file_succeed_once test_a_missing_path_cannot_be_deleted
        test_uploads_of_a_batch_are_stored_in_order test_results_have_the_normalised_path
        test_the_error_names_the_path_that_was_given test_the_root_cannot_be_deleted
        test_a_moved_file_can_be_edited_and_its_old_path_reused test_wildcard_characters_in_a_path_are_literal
        test_async_reads_what_sync_writes test_both_methods_return_the_same_results
        test_hostile_paths_are_invalid_path_and_never_raise test_a_call_may_have_many_changes
        test_changes_are_made_in_order test_changes_delete_files_and_no_directories
    """,
    "without upload_files it cannot replace a file, and an upload creates text only": """
        test_a_cancelled_creation_is_done_or_not test_a_cancelled_edit_is_done_or_not
        test_a_cancelled_upload_is_done_or_not test_a_cancelled_write_is_done_or_not
        test_a_write_after_its_deadline_is_done_or_not test_a_directory_is_copied_with_all_under_it
        test_a_directory_of_many_files_is_copied_and_moved test_a_file_is_copied
        test_a_batch_of_many_items_replaces_files_and_no_directories test_a_large_binary_file_goes_in_and_out
        test_a_reader_never_sees_a_partial_write test_an_upload_overwrites
        test_if_match_replaces_that_version test_concurrent_writes_with_one_if_match_succeed_once
        test_the_last_upload_to_a_path_wins test_overwrite_replaces_a_file test_overwrite_replaces_or_creates
        test_uploads_store_the_bytes test_uploads_succeed_and_fail_one_by_one
        test_changes_are_visible_through_another_backend_object
        test_a_change_replaces_only_where_it_says_so test_cancelled_changes_of_files_are_done_or_not
    """,
    "it holds text only": """
        test_a_binary_over_ten_megabytes_is_too_large test_a_version_of_a_binary_file_can_be_matched
        test_binary_by_content_comes_as_base64_with_a_type test_binary_by_name_comes_as_base64_with_its_type
        test_binary_comes_whole_for_any_window test_binary_has_a_version_too
        test_binary_files_that_match_count_as_skipped test_binary_is_refused
        test_downloads_fetch_the_bytes test_downloads_succeed_and_fail_one_by_one test_entries_have_kind_and_size
        test_streams_carry_the_bytes test_upload_streams_store_the_bytes
        test_read_raw_is_the_whole_file test_a_change_with_if_match_replaces_that_version
        test_bytes_that_are_no_text_are_refused_where_no_file_can_be test_changes_create_files_of_any_bytes
        test_changes_succeed_and_fail_one_by_one test_of_concurrent_changes_of_a_version_one_succeeds
        test_of_concurrent_creations_one_succeeds test_one_change_is_made_or_not
    """,
    "its read tells neither times nor how long the file is": """
        test_the_error_of_an_offset_past_the_end_has_the_number_of_lines test_modified_at_moves_on_and_created_at_stays
        test_the_version_identifies_the_content test_timestamps_are_current_and_utc_with_microseconds
    """,
    "its edit and its searches are its own": """
        test_a_file_over_ten_megabytes_counts_as_skipped test_a_glob_chooses_the_files
        test_an_old_text_with_nul_or_surrogates_never_raises test_every_pattern_of_the_table
        test_grep_numbers_lines_as_read_shows_them test_line_ends_of_a_crlf_file_stay_and_are_matched
        test_no_match_names_the_nearest_line test_only_the_replacement_changes
        test_places_that_overlap_are_ambiguous test_several_places_are_ambiguous
    """,
    "the sync read of a class that inherits is its own, and returns a text": """
        test_each_operation_has_both_methods_with_one_signature test_sync_reads_what_async_writes
        test_sync_works_in_threads_without_an_event_loop
    """,
}


class V1Conformance(BackendConformance):
    bucket: dict[str, str]

    async def raw_put(self, path: str, data: bytes) -> None:
        self.bucket[path] = data.decode()

    async def raw_peek(self, path: str) -> bytes | None:
        text = self.bucket.get(path)
        return None if text is None else text.encode()

    @pytest.fixture
    def backend(self) -> BackendProtocol:
        self.bucket = {}
        return self.over_bucket()

    def over_bucket(self) -> BackendProtocol:
        raise NotImplementedError


for _name in " ".join(INEXPRESSIBLE.values()).split():
    assert hasattr(BackendConformance, _name), _name
    setattr(V1Conformance, _name, None)


@pytest.mark.suite_parts("Cancellation", "Concurrency", "Reading", "Surface", "Transfer", "Writing")
class TestInherited(V1Conformance):
    """Inheritance changes how the methods of a class are called; what the adapter makes of them, the mount shows."""

    def over_bucket(self) -> BackendProtocol:
        return S3Backend(self.bucket)


class TestMounted(V1Conformance):
    """A V1 backend mounted in a composite, which adapts it."""

    def over_bucket(self) -> BackendProtocol:
        tree = CompositeBackend(MemoryBackend(), {"/bucket/": DuckS3(self.bucket)})
        return RootedBackend(tree, "/bucket")
