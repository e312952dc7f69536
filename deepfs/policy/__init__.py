"""Backends that stand before other backends."""

from deepfs.policy.permissions import (
    ApprovalNeededError,
    DeniedError,
    PermissionedBackend,
    approved,
)
from deepfs.policy.rules import Decision, FilesystemPermission, decide, decide_beneath
from deepfs.policy.wrapper import WrapperBackend

__all__ = [
    "ApprovalNeededError",
    "Decision",
    "DeniedError",
    "FilesystemPermission",
    "PermissionedBackend",
    "WrapperBackend",
    "approved",
    "decide",
    "decide_beneath",
]
