"""Backends that wrap other backends: permissions, hooks, audit logs, quotas, history."""

from deepfs._lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
