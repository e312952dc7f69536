"""The disk engine: reads and changes files below one host directory, safely despite races, symlinks and failures."""

from deepfs.disk.engine import Disk
from deepfs.disk.file_locks import when_free
from deepfs.disk.in_memory import FilesInMemory
from deepfs.disk.os_calls import is_shortage, is_temporary, storage_error
from deepfs.disk.reading import Reading, ReadLimits, modified_at
from deepfs.disk.relocation import MoveProgress
from deepfs.disk.unchanged import UnchangedFiles
from deepfs.disk.walking import FileRun, FoundFile
from deepfs.disk.watching import CAN_WATCH
from deepfs.disk.writing import Upload
from deepfs.threads.deadline import Deadline

__all__ = [
    "CAN_WATCH",
    "Deadline",
    "Disk",
    "FileRun",
    "FilesInMemory",
    "FoundFile",
    "MoveProgress",
    "ReadLimits",
    "Reading",
    "UnchangedFiles",
    "Upload",
    "is_shortage",
    "is_temporary",
    "modified_at",
    "storage_error",
    "when_free",
]
