"""Sandboxes: environments that run commands. Their files are also read and changed by commands.

A file operation becomes a call of `script.py` or of `script.sh` in the sandbox. Both do the same; the second needs only
a POSIX shell and the tools of busybox. The arguments of a call are a nonce, the maximum size of the answer, and the
operation with its arguments, all in base64; content comes on standard input, in base64 too. Lines with the nonce frame
the answer, so other output does no harm; between them is a sequence of records, gzipped and in base64. If the answer is
larger than the maximum, the rest stays in a file in the sandbox, and the operation `more` fetches it.
"""

from typing import TYPE_CHECKING

from deepfs._lazy import lazy_exports

if TYPE_CHECKING:
    from deepfs.sandboxes.base import BaseSandbox
    from deepfs.sandboxes.bubblewrap import BubblewrapSandbox
    from deepfs.sandboxes.daytona import DaytonaSandbox
    from deepfs.sandboxes.deno import DenoSandbox
    from deepfs.sandboxes.landlock import LandlockSandbox
    from deepfs.sandboxes.limits import Limits
    from deepfs.sandboxes.mirror import MirroredFile, SandboxMirror
    from deepfs.sandboxes.modal import ModalSandbox
    from deepfs.sandboxes.network import AllowedHosts

__all__ = [
    "AllowedHosts",
    "BaseSandbox",
    "BubblewrapSandbox",
    "DaytonaSandbox",
    "DenoSandbox",
    "LandlockSandbox",
    "Limits",
    "MirroredFile",
    "ModalSandbox",
    "SandboxMirror",
]

if not TYPE_CHECKING:  # Type checkers know the names, and report unknown ones.
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "base": ["BaseSandbox"],
            "bubblewrap": ["BubblewrapSandbox"],
            "daytona": ["DaytonaSandbox"],
            "deno": ["DenoSandbox"],
            "landlock": ["LandlockSandbox"],
            "limits": ["Limits"],
            "mirror": ["MirroredFile", "SandboxMirror"],
            "modal": ["ModalSandbox"],
            "network": ["AllowedHosts"],
        },
    )
