"""Commands whose output stays in a file of the sandbox where it is long."""

from secrets import token_hex
from shlex import quote

from deepfs.backends.protocol import ExecuteOffloadResult
from deepfs.types import ExecuteResponse

__all__ = ["MAX_CAPTURED_BYTES", "captured", "capturing"]

MAX_CAPTURED_BYTES = 100 * 1024 * 1024
_PREVIEW_BYTES = 4_000

# The exit code travels by descriptor 3, since that of a pipe is the one of its last command.
_SCRIPT = """f={path}
mkdir -p "$(dirname "$f")"
c=$({{ {{ (
{command}
) </dev/null 3>&-; echo $? >&3; }} 2>&1 | {{ head -c {most} >"$f"; cat | wc -c >"$f.more"; }} >&2; }} 3>&1)
n=$(($(wc -c <"$f"))) m=$(($(cat "$f.more")))
rm -f "$f.more"
echo "{nonce} $c $n $m"
if [ $n -le {inline} ] && [ $m -eq 0 ]; then cat "$f"; rm -f "$f"
else head -c {half} "$f"; echo; echo "{nonce}"; tail -c {half} "$f"; fi
"""


def capturing(command: str, path: str, inline: int, most: int | None) -> tuple[str, str]:
    """A command that runs `command` and stores its output at `path`, and the word that marks its own lines.

    Up to `inline` bytes of output are printed and not stored; of longer output the beginning and the end are printed.
    """
    nonce = f"deepfs-{token_hex(8)}"
    half = min(_PREVIEW_BYTES, max(inline, 2)) // 2
    limit = MAX_CAPTURED_BYTES if most is None else most
    script = _SCRIPT.format(path=quote(path), command=command, most=limit, inline=inline, half=half, nonce=nonce)
    return script, nonce


def captured(response: ExecuteResponse, nonce: str) -> ExecuteOffloadResult:
    """The result that a command of `capturing` printed; its whole output, not offloaded, if it was ended or cut."""
    first, _, rest = response.output.partition("\n")
    words = first.split()
    if len(words) != 4 or words[0] != nonce or not all(word.isdecimal() for word in words[1:]):
        return ExecuteOffloadResult(False, response)
    code, stored, more = map(int, words[1:])
    head, marked, tail = rest.partition(f"\n{nonce}\n")
    if not marked:
        return ExecuteOffloadResult(False, ExecuteResponse(rest, code, response.truncated))
    left_out = max(stored - len(head.encode()) - len(tail.encode()), 0)
    marker = f"\n[… {left_out:,} bytes …]\n" if left_out else ""
    return ExecuteOffloadResult(True, ExecuteResponse(f"{head}{marker}{tail}", code, more > 0), bool(left_out))
