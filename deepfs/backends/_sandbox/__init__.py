"""How the file operations of a sandbox become commands: the scripts that run there, and this side of the wire.

`script.py` and `script.sh` do the same; the second needs no more than a POSIX shell and the tools of busybox. Each is
called with a nonce, the size of an answer and the name of an operation, then the operation's arguments, all of them as
base64; content comes on standard input as base64. The answer is framed by lines with the nonce, so that whatever
else is printed does no harm, and is base64 of a gzipped sequence of records. Of one that is larger than asked for, the
rest stays in a file in the sandbox, to be fetched by `more`.
"""

__all__: list[str] = []
