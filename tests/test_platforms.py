"""What a system other than Linux lacks is taken away in an interpreter of its own, and deepfs runs without it there.

No test here replaces a run on such a system: other libraries are loaded before, as they are on this one.
"""

from pathlib import Path
from textwrap import indent
from typing import Final

from support.scripts import run_script

LOADED: Final = """
import anyio, anyio._backends._asyncio, asyncio, concurrent.futures, ctypes, msgspec, os, pathlib, re2, signal
import sqlite3, sys, tempfile, threading, weakref
"""
FOR_AGENTS: Final = """
import langchain.agents, langgraph.graph, langgraph.store.memory
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
"""

WITHOUT: Final = """
def without(module, names):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
"""

WINDOWS: Final = f"""{LOADED}{WITHOUT}
asyncio.new_event_loop().close()  # Before asyncio would look for the loops of Windows.
for name in ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"):
    sys.modules[name] = None
import shutil
room = shutil.disk_usage(".")
shutil.disk_usage = lambda path: room  # There it does not ask `statvfs`.
without(os, '''
    O_CLOEXEC O_DIRECTORY O_DIRECT O_DSYNC O_NOATIME O_NOCTTY O_NOFOLLOW O_NONBLOCK O_PATH O_SYNC O_TMPFILE RWF_NOWAIT
    WNOHANG chown copy_file_range eventfd fchmod fchown fdatasync fork forkpty getegid geteuid getgid getgroups getpgid
    getpgrp getuid killpg lchown memfd_create mkfifo pidfd_open posix_fadvise posix_fallocate posix_spawn pread preadv
    pwrite register_at_fork sched_getaffinity sched_yield sendfile setsid splice statvfs sysconf uname wait3 wait4
    waitid
''')
without(signal, "SIGALRM SIGCHLD SIGHUP SIGKILL SIGSTOP pidfd_send_signal pthread_sigmask setitimer")
os.supports_dir_fd = os.supports_effective_ids = os.supports_fd = set()
os.process_cpu_count = os.cpu_count
ctypes.CDLL = lambda name, **options: open(os.fspath(name))  # A TypeError for None, as there.
# The true ones cannot be made here. Python 3.13 has them in a module of their own.
pathlib.WindowsPath = sys.modules.get("pathlib._local", pathlib).WindowsPath = pathlib.PosixPath
os.name, sys.platform = "nt", "win32"
"""

DARWIN: Final = f"""{LOADED}{WITHOUT}
import fcntl

class Library:
    def __init__(self, *arguments, **options):
        pass

    def __getattr__(self, name):
        raise AttributeError(name)

ctypes.CDLL = ctypes.PyDLL = Library
without(os, '''O_DIRECT O_NOATIME O_PATH O_TMPFILE RWF_NOWAIT copy_file_range eventfd fdatasync getxattr listxattr
    memfd_create pidfd_open posix_fadvise posix_fallocate removexattr sched_getaffinity setxattr splice''')
without(signal, "pidfd_send_signal")
os.supports_effective_ids = set()
fcntl.F_FULLFSYNC = fcntl.F_GETFD  # On macOS a number of its own; this one does no harm to a file here.
sys.platform = "darwin"
"""


def test_without_what_windows_lacks_there_are_flat_backends_and_agents(tmp_path: Path) -> None:
    printed = run_script(f"""{indent(FOR_AGENTS + WINDOWS, " " * 8)}
        from langchain_core.messages import AIMessage
        from langgraph.store.memory import InMemoryStore
        from deepfs import (
            CompositeBackend, MemoryBackend, ObjectStoreBackend, PostgresBackend, SqliteBackend, StateBackend,
            StoreBackend, create_deep_agent,
        )

        class Scripted(GenericFakeChatModel):
            def bind_tools(self, tools, **options):
                return self

        sqlite = SqliteBackend({str(tmp_path / "files.db")!r})
        store = StoreBackend(InMemoryStore(), namespace=("a",))
        files = CompositeBackend(MemoryBackend(), {{"/db/": sqlite, "/s/": store, "/o/": ObjectStoreBackend("memory:///")}})
        for path in ("/a.txt", "/db/a.txt", "/s/a.txt", "/o/a.txt"):
            assert files.write(path, "one").ok and files.edit(path, "one", "two").ok, path
        print([match.path for match in files.grep("two").matches])

        async def in_time():
            with anyio.fail_after(10):
                return await sqlite.aread("/a.txt")

        print(anyio.run(in_time).file_data.content)
        PostgresBackend("postgres://nowhere", "a")
        call = AIMessage("", tool_calls=[{{"id": "1", "name": "ls", "args": {{"path": "/db"}}}}])
        model = Scripted(messages=iter([call, AIMessage("Done.")]))
        state = create_deep_agent(model, backend=files).invoke({{"messages": [("user", "Look.")]}})
        print([message.content for message in state["messages"]][-2:])
        sqlite.close()
    """)
    assert printed.splitlines() == [
        "['/a.txt', '/db/a.txt', '/o/a.txt', '/s/a.txt']",
        "two",
        "['/db:\\na.txt\\t3', 'Done.']",
    ]


def test_without_what_windows_lacks_what_works_on_this_machine_is_refused_when_it_is_made() -> None:
    printed = run_script(f"""{indent(WINDOWS, " " * 8)}
        from deepfs import FilesystemBackend
        from deepfs.backends import LocalShellBackend
        from deepfs.errors import NotSupportedError
        from deepfs.sandboxes import BubblewrapSandbox, LandlockSandbox
        for kind in (FilesystemBackend, LocalShellBackend, BubblewrapSandbox, LandlockSandbox):
            try:
                kind()
            except NotSupportedError as error:
                print(kind.__name__, error)
    """)
    told = (
        "Error: files and commands on this machine need Linux or macOS. On Windows use MemoryBackend, SqliteBackend, "
        "StateBackend, StoreBackend, PostgresBackend or ObjectStoreBackend"
    )
    kinds = ["FilesystemBackend", "LocalShellBackend", "BubblewrapSandbox", "LandlockSandbox"]
    assert printed.splitlines() == [f"{kind} {told}" for kind in kinds]


def test_without_what_macos_lacks_files_on_disk_and_commands_work(tmp_path: Path) -> None:
    printed = run_script(f"""{indent(DARWIN, " " * 8)}
        from deepfs.backends import LocalShellBackend
        files = LocalShellBackend({str(tmp_path / "root")!r}, durable=True, ripgrep=False)
        assert files.write("/d/a.txt", "one\\n").ok and files.edit("/d/a.txt", "one", "two").ok
        assert files.upload_files([("/d/b.bin", b"\\0" * 100_000)])[0].error is None
        assert files.copy("/d", "/e").ok and files.move("/e/b.bin", "/c.bin").ok and files.delete("/d/b.bin").ok
        os.symlink("/etc", {str(tmp_path / "root/out")!r})
        print(files.read("/out/passwd").code, files.read("/d/a.txt").file_data.content.strip())
        print([match.path for match in files.grep("two").matches], [info.path for info in files.glob("*").matches])
        print(files.execute("cat d/a.txt").output.strip())

        async def watch():
            async with files:
                async for event in files.awatch("/"):
                    return event

        try:
            print(anyio.run(watch))
        except Exception as error:
            print(error)
    """)
    assert printed.splitlines() == [
        "permission_denied two",
        "['/d/a.txt', '/e/a.txt'] ['/c.bin', '/d/a.txt', '/e/a.txt']",
        "two",
        "Error: LocalShellBackend does not support watch",
    ]
