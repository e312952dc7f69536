"""Sandboxes: environments that run commands. Their files are also read and changed by commands.

A file operation becomes a call of `script.py` or of `script.sh` in the sandbox. Both do the same; the second needs only
a POSIX shell and the tools of busybox. The arguments of a call are a nonce, the maximum size of the answer, and the
operation with its arguments, all in base64; content comes on standard input, in base64 too. Lines with the nonce frame
the answer, so other output does no harm; between them is a sequence of records, gzipped and in base64. If the answer is
larger than the maximum, the rest stays in a file in the sandbox, and the operation `more` fetches it.
"""

from deepfs._lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
