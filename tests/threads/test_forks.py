"""What a forked child inherits: no lock that another thread holds, and no step that is half done."""

import ast
from pathlib import Path

import deepfs
from support.scripts import run_script

BEGIN = """
    import os, threading, time, warnings
    warnings.simplefilter("ignore")
    from deepfs.threads import forks
    from deepfs.threads.forks import ForkSafeLock

    def fork(in_child):
        child = os.fork()
        if not child:
            status = 1
            try:
                in_child()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0

    def start(function):
        thread = threading.Thread(target=function)
        thread.start()
        return thread
"""


def in_script(body: str) -> None:
    run_script(BEGIN + body)


def test_a_fork_waits_for_the_step_of_another_thread() -> None:
    in_script("""
    lock, begun, pair = ForkSafeLock(), threading.Event(), [0, 0]

    def step():
        with lock:
            pair[0] = 1
            begun.set()
            time.sleep(0.2)
            pair[1] = 1

    thread = start(step)
    begun.wait()

    def look():
        with lock:
            assert pair == [1, 1], pair

    fork(look)
    thread.join()
    """)


def test_locks_that_are_held_too_long_are_free_in_the_child() -> None:
    in_script("""
    forks._PATIENCE_S = 0.1
    locks, begun, ended = [ForkSafeLock() for _ in range(3)], threading.Event(), threading.Event()

    def keep():
        with locks[1]:
            begun.set()
            ended.wait()

    thread = start(keep)
    begun.wait()

    def use():
        for lock in locks:
            assert lock.acquire(0)
            lock.release()
            start(lock.__enter__).join()

    fork(use)
    assert not locks[1].acquire(0)
    ended.set()
    thread.join()
    for lock in locks:
        with lock:
            pass
    """)


def test_a_thread_that_forks_within_a_step_goes_on_in_the_child() -> None:
    in_script("""
    import anyio
    from deepfs.threads.locks import StepLock

    lock, step = ForkSafeLock(), StepLock()

    async def use():
        async with step.hold():
            pass

    async def begin():
        async with step.hold():
            with lock:
                child = os.fork()
        if not child:
            with lock:
                await use()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        await use()

    anyio.run(begin)
    """)


def test_a_child_can_use_sync_methods_though_a_loop_was_just_starting() -> None:
    in_script("""
    import tempfile
    from deepfs import FilesystemBackend

    backend = FilesystemBackend(tempfile.mkdtemp())
    thread = start(lambda: backend.write("/a.txt", "a"))
    while "anyio._backends._asyncio" not in __import__("sys").modules:
        pass

    def use():
        import faulthandler
        faulthandler.dump_traceback_later(20, exit=True)
        assert backend.write("/b.txt", "b").ok

    fork(use)
    thread.join()
    """)


def test_room_that_the_parent_reserved_is_not_lost_to_the_child() -> None:
    in_script("""
    import anyio
    from deepfs import MemoryBackend
    from deepfs.policy import QuotaBackend

    inner = MemoryBackend()
    files = QuotaBackend(inner, 100)
    begun, ended = threading.Event(), threading.Event()

    async def chunks():
        yield b"x" * 90
        begun.set()
        await anyio.to_thread.run_sync(ended.wait)

    thread = start(lambda: anyio.run(files.aupload_stream, "/large.bin", chunks()))
    begun.wait()

    def use():
        assert files.write("/a.txt", "x" * 50).ok
        assert anyio.run(files.ausage).bytes == 50

    fork(use)
    assert files.write("/b.txt", "x" * 50).code == "quota_exceeded"
    ended.set()
    thread.join()
    """)


LEFT_TO_THEIR_OWNERS = {
    "background.py": "the gate of a call, which only the thread that waits for it knows",
    "forks.py": "the lock within a lock, and where the others get theirs",
    "locks.py": "the gate of a request",
    "search/disk.py": "made anew after a fork",
    "background_tasks.py": "made anew after a fork",
    "threads/pool.py": "pools are made anew after a fork",
    "mcp/resources.py": "of one event loop",
    "sqlite/database.py": "has hooks of its own",
    "testing/": "of one test",
}


def test_locks_between_threads_are_safe_in_forked_children() -> None:
    """Every other lock, event or queue between threads would have to be thought of here."""
    package = Path(deepfs.__file__).parent
    kinds = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Event", "Barrier"}
    found = set()
    for module in package.rglob("*.py"):
        tree = ast.parse(module.read_text())
        imported = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module in ("threading", "deepfs.threads.forks")
            for alias in node.names
        }
        used = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "threading"
        }
        if kinds & (imported | used):
            found.add(module.relative_to(package).as_posix())
    unknown = {name for name in found if not any(known in name for known in LEFT_TO_THEIR_OWNERS)}
    assert not unknown, "use ForkSafeLock of deepfs/threads/forks.py"
