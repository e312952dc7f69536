"""The former path of `deepfs.compat.utils`, for type checkers; see `deepfs._moved`."""

from deepfs.compat.utils import FileInfo as FileInfo
from deepfs.compat.utils import GrepMatch as GrepMatch
from deepfs.compat.utils import create_file_data as create_file_data
from deepfs.compat.utils import file_data_to_string as file_data_to_string
from deepfs.compat.utils import grep_matches_from_files as grep_matches_from_files
from deepfs.compat.utils import perform_string_replacement as perform_string_replacement
from deepfs.compat.utils import slice_read_response as slice_read_response
from deepfs.compat.utils import update_file_data as update_file_data
