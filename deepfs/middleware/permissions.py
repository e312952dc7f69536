"""`FilesystemPermission` by a path that it has in deepagents."""

from deepfs.policy.rules import FilesystemPermission

__all__ = ["FilesystemPermission"]
