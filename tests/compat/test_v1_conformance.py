"""A V1 backend passes the conformance suite, as far as V1 can express the contract."""

from typing import Final

import pytest

from deepfs import BackendProtocol, CompositeBackend, MemoryBackend
from deepfs.compat.v1 import adapt_backend_protocol
from deepfs.testing import BackendConformance
from support.rooted import RootedBackend
from support.v1_backend import DuckS3, S3Operations


class S3Backend(S3Operations, BackendProtocol):
    """A V1 backend that inherits from the protocol, as the documentation shows it."""


INEXPRESSIBLE: Final = {
    "V1 cannot delete, so it cannot move either": """
        test_a_named_version_is_deleted test_a_version_that_a_read_told_is_deleted test_another_version_stays
        test_a_directory_has_no_version
        test_a_cancelled_delete_is_done_or_not test_a_cancelled_move_leaves_one_end_at_least
        test_a_common_beginning_is_not_deleted test_a_common_beginning_is_not_itself
        test_a_directory_is_deleted_with_all_under_it test_a_directory_is_moved_with_all_under_it
        test_a_directory_is_there_while_it_holds_a_file test_a_file_is_deleted test_a_file_is_moved
        test_an_empty_file_is_a_file
        test_a_name_can_be_used_again_as_another_kind test_an_empty_directory_stays_only_where_it_is_declared
        test_arguments_have_the_names_of_the_protocol test_at_no_instant_are_both_ends_of_a_move_gone
        test_deletions_of_one_file_succeed_once test_directories_may_have_odd_names
        test_every_operation_returns_its_result test_failures_are_results_too
        test_files_with_odd_names_are_read_edited_and_deleted test_if_match_where_the_file_is_gone_is_a_conflict
        test_moves_of_one_file_succeed_once test_nothing_cannot_be_deleted test_one_upload_comes_after_another
        test_results_tell_the_normal_path test_the_error_names_the_path_that_was_given
        test_the_root_cannot_be_deleted test_what_was_moved_can_be_edited_and_its_old_place_used
        test_wildcards_in_a_path_are_not_wildcards test_async_reads_what_sync_writes test_both_say_the_same
        test_hostile_paths_are_invalid_path_and_never_raise
    """,
    "without upload_files it cannot replace a file, and an upload creates text only": """
        test_a_cancelled_creation_is_done_or_not test_a_cancelled_edit_is_done_or_not
        test_a_cancelled_upload_is_done_or_not test_a_cancelled_write_is_done_or_not
        test_a_deadline_that_has_passed_changes_nothing_badly test_a_directory_is_copied_with_all_under_it
        test_a_directory_of_many_files test_a_file_is_copied test_a_large_binary_file_goes_in_and_out
        test_a_reader_never_sees_a_half test_an_upload_overwrites test_if_match_replaces_that_version
        test_of_conditional_writes_of_one_version_one_succeeds test_of_uploads_to_one_path_the_last_wins
        test_overwrite_replaces_a_file test_overwrite_replaces_or_creates test_uploads_store_the_bytes
        test_uploads_succeed_and_fail_one_by_one test_what_one_object_writes_another_reads
    """,
    "it holds text only": """
        test_a_binary_over_ten_megabytes_is_too_large test_a_version_of_a_binary_file_can_be_matched
        test_binary_by_content_comes_as_base64_with_a_type test_binary_by_name_comes_as_base64_with_its_type
        test_binary_comes_whole_whatever_the_window test_binary_has_a_version_too
        test_binary_is_not_searched_and_counts_where_it_would_match test_binary_is_refused
        test_downloads_fetch_the_bytes test_downloads_succeed_and_fail_one_by_one test_entries_tell_what_they_are
        test_streams_carry_the_bytes
        test_read_raw_is_the_whole_file
    """,
    "its read tells neither times nor how long the file is": """
        test_an_offset_past_the_end_tells_how_long_the_file_is test_modified_at_moves_on_and_created_at_stays
        test_the_version_is_that_of_the_content test_timestamps_are_utc_with_microseconds_and_true
    """,
    "its edit and its searches are its own": """
        test_a_file_over_ten_megabytes_counts_as_skipped test_a_glob_chooses_the_files
        test_an_old_text_that_is_no_text_never_raises test_every_pattern_of_the_table
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


class TestDuck(V1Conformance):
    def over_bucket(self) -> BackendProtocol:
        return adapt_backend_protocol(DuckS3(self.bucket))


class TestInherited(V1Conformance):
    def over_bucket(self) -> BackendProtocol:
        return S3Backend(self.bucket)


class TestMounted(V1Conformance):
    """A V1 backend mounted in a composite, which adapts it."""

    def over_bucket(self) -> BackendProtocol:
        tree = CompositeBackend(MemoryBackend(), {"/bucket/": DuckS3(self.bucket)})
        return RootedBackend(tree, "/bucket")
