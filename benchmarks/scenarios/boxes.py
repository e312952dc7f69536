"""Commands in a box: what a box costs over a plain process, and what it keeps from commands."""

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio

from benchmarks import inputs
from benchmarks.bench import Bench
from benchmarks.harness import Contender
from benchmarks.record import Race
from deepfs.backends import LocalShellBackend
from deepfs.sandboxes import BubblewrapSandbox

TITLE: Final = "Commands in a box"

_COMMAND: Final = "echo a line"
_COUNT: Final = 10
_SRT: Final = "@anthropic-ai/sandbox-runtime@0.0.78"


async def measure(bench: Bench) -> None:
    """Race commands one after another, and the first command of a process; then try what boxes should refuse."""
    with inputs.scratch() as root:
        runtime = None if bench.quick else await _installed(root)
        if runtime is None:
            bench.note("Without the sandbox-runtime of Anthropic: npm did not install it here, or the run is quick.")
        async with BubblewrapSandbox(root / "workspace") as box:
            race = await bench.race(
                f"{_COUNT} commands one after another",
                [*_repeated(root, box), *_srt(runtime)],
                noun="lines",
                seconds=60,
            )
            bench.at_most("A box adds at most 15 ms to a command", 15, _added(race, "box", "plain", _COUNT), " ms")
            cold = await bench.race("the first command, in a new process", _first(root), noun="lines", seconds=60)
            bench.at_most("A box adds at most 30 ms to the first command", 30, _added(cold, "box", "plain"), " ms")
            bench.note(await _table(box, runtime))


def _added(race: Race, box: str, plain: str, count: int = 1) -> list[float]:
    """The milliseconds that the box adds to each command, by round."""
    pairs = zip(race.entry(box).timing.seconds, race.entry(plain).timing.seconds, strict=True)
    return [(one - other) / count * 1000 for one, other in pairs]


# --- one after another -----------------------------------------------------------------------------------------------


def _repeated(root: Path, box: BubblewrapSandbox) -> list[Contender]:
    shell = LocalShellBackend(root / "workspace", inherit_env=True)
    backends: dict[str, Any] = {"box": box, "plain": shell}
    calls = {"box": "await BubblewrapSandbox(…).aexecute(command)", "plain": "await LocalShellBackend(…).aexecute(…)"}
    found = [
        Contender(name=name, call=calls[name], run=partial(_each, backend), rows=list, own=True)
        for name, backend in backends.items()
    ]
    return [*found, Contender(name="anyio", call="await anyio.run_process(command)", run=_processes, rows=list)]


async def _each(backend: Any) -> list[str]:
    return [(await backend.aexecute(_COMMAND)).output for _ in range(_COUNT)]


async def _processes() -> list[str]:
    return [(await anyio.run_process(_COMMAND)).stdout.decode() for _ in range(_COUNT)]


# --- the first command -----------------------------------------------------------------------------------------------

_FIRST: Final = """
import sys, time, asyncio, json
from deepfs.backends import LocalShellBackend
from deepfs.sandboxes import BubblewrapSandbox
async def main():
    start = time.perf_counter()
    response = await {made}.aexecute({command!r})
    print(json.dumps([time.perf_counter() - start, response.output]))
asyncio.run(main())
"""


def _first(root: Path) -> list[Contender]:
    made = {"box": "BubblewrapSandbox(sys.argv[1])", "plain": "LocalShellBackend(sys.argv[1], inherit_env=True)"}
    return [
        Contender(
            name=name,
            call=f"await {expression.replace('sys.argv[1]', '…')}.aexecute(command)",
            run=partial(_in_new_process, _FIRST.format(made=expression, command=_COMMAND), root / "workspace"),
            rows=lambda found: [found[1]],
            own_seconds=lambda found: float(found[0]),
            own=True,
        )
        for name, expression in made.items()
    ]


async def _in_new_process(program: str, root: Path) -> Any:
    return json.loads((await anyio.run_process([sys.executable, "-c", program, str(root)], stderr=None)).stdout)


# --- the sandbox-runtime of Anthropic --------------------------------------------------------------------------------

_PROGRAM: Final = """
import { SandboxManager } from '@anthropic-ai/sandbox-runtime'
import { spawn } from 'node:child_process'
const [count, ...commands] = process.argv.slice(2)
const settings = {
  network: { allowedDomains: [], deniedDomains: [] },
  filesystem: { denyRead: [], allowWrite: ['.'], denyWrite: [] },
}
const begun = performance.now()
await SandboxManager.initialize(settings)
async function run(command) {
  const wrapped = await SandboxManager.wrapWithSandbox(command)
  return await new Promise((done) => {
    const child = spawn(wrapped, { shell: true, stdio: ['ignore', 'pipe', 'pipe'] })
    let output = ''
    child.stdout.on('data', (data) => { output += data })
    child.on('close', (code) => done([code, output]))
  })
}
const first = await run(commands[0])
const ready = performance.now()
const answers = []
for (let turn = 0; turn < Number(count); turn++) for (const command of commands) answers.push(await run(command))
const end = performance.now()
console.log(JSON.stringify({ seconds: (end - ready) / 1000, start: (ready - begun) / 1000, answers }))
await SandboxManager.reset()
process.exit(0)
"""


async def _installed(root: Path) -> Path | None:
    """The directory that has the runtime in it; None if it cannot be installed."""
    place = root / "runtime"
    place.mkdir()
    if not (shutil.which("npm") and shutil.which("socat") and shutil.which("rg")):
        return None
    done = await anyio.run_process(["npm", "install", "--prefix", str(place), _SRT], check=False)
    (place / "run.mjs").write_text(_PROGRAM, encoding="utf-8")
    return place if done.returncode == 0 else None


async def _in_runtime(place: Path, count: int, commands: Sequence[str]) -> Any:
    """What commands print and how they end, each `count` times, after a first one that is not counted."""
    line = ["node", "run.mjs", str(count), *commands]
    return json.loads((await anyio.run_process(line, cwd=place, stderr=None)).stdout)


def _srt(place: Path | None) -> list[Contender]:
    if place is None:
        return []
    rows: Callable[[Any], list[str]] = lambda found: [output for _, output in found["answers"]]  # noqa: E731
    library = Contender(
        name="sandbox-runtime",
        call="SandboxManager.wrapWithSandbox(command), in a program that runs already",
        run=partial(_in_runtime, place, _COUNT, [_COMMAND]),
        rows=rows,
        own_seconds=lambda found: float(found["seconds"]),
    )
    return [library]


# --- what they refuse ------------------------------------------------------------------------------------------------

_CALL: Final = (
    "python3 -c 'import ctypes, sys; libc = ctypes.CDLL(None, use_errno=True); "
    "sys.exit(libc.syscall({}) == -1 and ctypes.get_errno() != 14)'"
)
"""Succeeds if a system call of x86-64 gets past the filter: it succeeds, or finds a bad address."""
_ATTEMPTS: Final = {
    "read /etc/passwd": "cat /etc/passwd",
    "read files of the home directory": "ls -A ~ | grep .",
    "write outside the workspace": "touch /var/tmp/boxes-test && rm /var/tmp/boxes-test",
    "see processes of the host": '[ "$(ls /proc | grep -c "^[0-9]")" -gt 20 ]',
    "make a setuid file": "touch f && chmod 4755 f && [ -u f ]",
    "make a setgid directory": "mkdir -m 2755 d && [ -g d ]",
    "open a Unix socket": _CALL.format("41, 1, 1, 0"),
    "open a socket of the network": _CALL.format("41, 2, 1, 0"),
    "open a socket of VSOCK": _CALL.format("41, 40, 1, 0"),
    "use a keyring": _CALL.format("250, 0, -3, 1"),
    "use io_uring": _CALL.format("425, 1, 0"),
    "use userfaultfd": _CALL.format("323, 1"),
    "trace its processes": _CALL.format("101, 0, 0, 0, 0"),
    "make a user namespace": "unshare -U true",
    "use the calls of x32": _CALL.format("0x40000000 | 39"),
    "read /proc/keys": "cat /proc/keys",
    "read /proc/cmdline": "cat /proc/cmdline",
    "take 2 GB of memory": "python3 -c 'print(len(bytearray(2_000_000_000)))'",
    "write a file of 1 GB": "head -c 1000000000 /dev/zero > large && [ $(stat -c %s large) = 1000000000 ]; "
    "code=$?; rm -f large; exit $code",
}


async def _table(box: BubblewrapSandbox, runtime: Path | None) -> str:
    """A table of what commands can do in the boxes."""
    ours = [(await box.aexecute(command)).exit_code for command in _ATTEMPTS.values()]
    columns = {"BubblewrapSandbox": ours}
    if runtime is not None:
        answers = (await _in_runtime(runtime, 1, ["true", *_ATTEMPTS.values()]))["answers"]
        columns["sandbox-runtime"] = [code for code, _ in answers[1:]]
    lines = [f"{'a command can':34}" + "".join(f"{name:>20}" for name in columns)]
    for number, attempt in enumerate(_ATTEMPTS):
        said = ("yes" if codes[number] == 0 else "no" for codes in columns.values())
        lines.append(f"{attempt:34}" + "".join(f"{word:>20}" for word in said))
    return "\n".join(lines)
