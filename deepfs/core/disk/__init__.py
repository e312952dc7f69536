"""The disk engine: files below a directory of the host, safe against races, links and failures."""

from deepfs.core.disk.conditions import is_shortage, leaf
from deepfs.core.disk.engine import Disk
from deepfs.core.disk.files import modified_at
from deepfs.core.disk.listing import Entry, Listing
from deepfs.core.disk.patience import Patience
from deepfs.core.disk.temporary_names import is_temporary
from deepfs.core.disk.uploading import Upload
from deepfs.core.disk.walking import FoundFile
from deepfs.core.disk.windows import Limits, Reading

__all__ = [
    "Disk",
    "Entry",
    "FoundFile",
    "Limits",
    "Listing",
    "Patience",
    "Reading",
    "Upload",
    "is_shortage",
    "is_temporary",
    "leaf",
    "modified_at",
]
