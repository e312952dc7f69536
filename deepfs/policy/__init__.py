"""Backends that wrap other backends: permissions, hooks, audit logs, quotas, history."""

from deepfs.backends.wrapper import WrapperBackend
from deepfs.policy.changes import ChangePolicy, PlannedChange
from deepfs.policy.history import HistoryBackend
from deepfs.policy.hooks import AfterHook, BeforeHook, Call, HookedBackend, map_contents, without_contents
from deepfs.policy.limits import QuotaBackend, RateLimit, RateLimitError, ReadOnlyBackend, Usage
from deepfs.policy.observing import AuditedBackend, AuditRecord, TracedBackend
from deepfs.policy.permissions import ApprovalNeededError, DeniedError, PermissionedBackend, as_approved
from deepfs.policy.rules import Decision, FilesystemPermission, decide, decide_beneath
from deepfs.policy.undo import Change, UndoResult
from deepfs.policy.versions import Version

__all__ = [
    "AfterHook",
    "ApprovalNeededError",
    "AuditRecord",
    "AuditedBackend",
    "BeforeHook",
    "Call",
    "Change",
    "ChangePolicy",
    "Decision",
    "DeniedError",
    "FilesystemPermission",
    "HistoryBackend",
    "HookedBackend",
    "PermissionedBackend",
    "PlannedChange",
    "QuotaBackend",
    "RateLimit",
    "RateLimitError",
    "ReadOnlyBackend",
    "TracedBackend",
    "UndoResult",
    "Usage",
    "Version",
    "WrapperBackend",
    "as_approved",
    "decide",
    "decide_beneath",
    "map_contents",
    "without_contents",
]
