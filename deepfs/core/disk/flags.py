"""The flags with which files and directories are opened; those that a system lacks are left out."""

import os

__all__ = ["NEW", "NO_FOLLOW", "READ", "READ_DIRECTORY", "SEARCH", "UPDATE"]

# Windows has none of these; the modules must still import there, though `Root` refuses to work.
NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
_DIRECTORY: int = getattr(os, "O_DIRECTORY", 0)
# Opening a FIFO or a device waits without O_NONBLOCK; on a regular file the flag does nothing.
_NEVER_WAIT: int = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)

READ: int = os.O_RDONLY | _NEVER_WAIT
"""Read a file."""
UPDATE: int = os.O_RDWR | _NEVER_WAIT
"""Read a file that is about to be replaced, which must be one that may be written."""
NEW: int = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW
"""Write a file that must not be there yet."""
READ_DIRECTORY: int = os.O_RDONLY | _DIRECTORY | _NEVER_WAIT
"""Look through a directory."""
SEARCH: int = getattr(os, "O_PATH", os.O_RDONLY) | _DIRECTORY
"""Open what is in a directory; O_PATH asks for the permission that walking a path needs, and no other."""
