"""Whether the tool `move` can be given: deepagents has none, so rules written for it say nothing of moving."""

from deepfs.backends._behind import behind
from deepfs.backends.protocol import BackendProtocol

__all__ = ["heeds_writes"]


def heeds_writes(backend: BackendProtocol) -> bool:
    """Whether `move` passes by no override of `write`, in `backend` and those that it stands before."""
    return _has_own(type(backend)) and all(
        heeds_writes(each) for each in behind(backend) if isinstance(each, BackendProtocol)
    )


def _has_own(kind: type[BackendProtocol]) -> bool:
    writing, moving = (next(each for each in kind.__mro__ if name in vars(each)) for name in ("awrite", "amove"))
    # What the protocol itself has is made of the other operations.
    return moving is BackendProtocol or kind.__mro__.index(moving) <= kind.__mro__.index(writing)
