"""What a sandbox may use."""

from msgspec import Struct

__all__ = ["Limits"]

_MEGABYTE = 1024 * 1024


class Limits(Struct, frozen=True):
    """What commands may use; bytes and seconds. `memory` and `processes` are for a command with all that it starts.

    Where the system has no control groups for us, `memory` is for each process. `cpu_seconds` and `file_size` are for
    each process and file; `workspace` and `temporary` for all files in the workspace, and in `/tmp` and shared memory.
    """

    memory: int = 1024 * _MEGABYTE
    processes: int = 128
    cpu_seconds: int = 120
    file_size: int = 256 * _MEGABYTE
    open_files: int = 1024
    workspace: int = 1024 * _MEGABYTE
    temporary: int = 64 * _MEGABYTE
