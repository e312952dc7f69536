"""Children forked at any moment under load: each works at once, and every acknowledged write is there."""

from collections.abc import Callable
from pathlib import Path

import pytest

from support.counts import few_or_many, telling
from support.processes import started

# Threads change files of their own all the time, and note files that stay. The main thread forks; each child checks
# such files, changes others, and says what is wrong. Where storage is shared, the parent checks in the end what the
# children wrote.
STORM = """
import faulthandler, os, random, select, signal, sys, threading, time, warnings
warnings.simplefilter("ignore")
faulthandler.enable()  # A child that hangs is aborted, and says where it was.
kind, root, forks = sys.argv[1], sys.argv[2], int(sys.argv[3])

from langgraph.graph import START, StateGraph
from langgraph.store.memory import InMemoryStore
from deepfs import FilesystemBackend, FilesystemState, MemoryBackend, SqliteBackend, StateBackend, StoreBackend
from deepfs.policy import HistoryBackend, QuotaBackend

MAKE = {
    "memory": MemoryBackend,
    "disk": lambda: FilesystemBackend(root),
    "sqlite": lambda: SqliteBackend(root + "/files.db"),
    "store": lambda: StoreBackend(InMemoryStore(), namespace=("files",)),
    "quota": lambda: QuotaBackend(MemoryBackend(), 10**9),
    "disk history": lambda: HistoryBackend(FilesystemBackend(root), keep=3),
    "state": StateBackend,
}
IS_SHARED = kind in ("disk", "sqlite", "disk history")
backend = MAKE[kind]()

def in_graph(call):
    # For files in the state of a graph, which each run has for itself.
    def node(state):
        call()
        return {}
    graph = StateGraph(FilesystemState).add_node("node", node).add_edge(START, "node").compile()
    return lambda: graph.invoke({"files": {}})

def ok(result):
    assert result.ok, result
    return result

def check(path, text):
    assert (found := ok(backend.read(path)).file_data["content"]) == text, (path, found)

def turn(name, number, kept):
    path, moved = f"/{name}/{number % 5}/a.txt", f"/{name}/b/{number % 5}.txt"
    ok(backend.write(path, f"{number}|", overwrite=True))
    ok(backend.edit(path, "|", "!"))
    ok(backend.move(path, moved, overwrite=True))
    check(moved, f"{number}!")
    ok(backend.delete(moved))
    if number % 10 == 0 and len(kept) < 200:
        ok(backend.write(path := f"/{name}/kept/{number}.txt", text := f"kept {number}"))
        kept[path] = text

def churn(name, kept):
    number = 0
    def work():
        nonlocal number
        for _ in range(10):
            number += 1
            turn(name, number, kept)
            time.sleep(0.001)
        if kind == "state":
            kept.clear()  # The files end with the run.
    step = in_graph(work) if kind == "state" else work
    while not ended:
        step()

def child(number):
    def work():
        if kind != "state":
            acknowledged = [item for log in logs for item in log.items()]
            for path, text in [*random.sample(acknowledged, min(10, len(acknowledged))), *acknowledged[-1:]]:
                check(path, text)
        turn(f"child{number}", 1, {})
        turn(f"child{number}", 10, {})
        check(f"/child{number}/kept/10.txt", "kept 10")
        assert [match.path for match in ok(backend.glob(f"/child{number}/**/10.txt")).matches]
        assert ok(backend.grep("kept 10", path=f"/child{number}")).matches
    (in_graph(work) if kind == "state" else work)()

ended, logs = [], [{} for _ in range(3)]
threads = [threading.Thread(target=churn, args=(f"thread{i}", log), daemon=True) for i, log in enumerate(logs)]
for thread in threads:
    thread.start()
time.sleep(0.05)
for number in range(forks):
    time.sleep(random.uniform(0, 0.005))
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            child(number)
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode()[:2000])
            os._exit(1)
        os._exit(0)
    os.close(write)
    if not select.select([read], [], [], 30)[0]:
        print(f"child {number} hangs", flush=True)
        os.kill(pid, signal.SIGABRT)
    elif said := os.read(read, 2000).decode():
        print(f"child {number}: {said}", flush=True)
    os.close(read)
    os.waitpid(pid, 0)
ended.append(True)
for thread in threads:
    thread.join(60)
    if thread.is_alive():
        print(f"{thread.name} hangs", flush=True)
if kind != "state":
    for path, text in (item for log in logs for item in log.items()):
        check(path, text)
if IS_SHARED:
    for number in range(forks):
        check(f"/child{number}/kept/10.txt", "kept 10")
print("done", flush=True)
os._exit(0)
"""

KINDS = ("memory", "disk", "sqlite", "store", "state", "quota", "disk history")


@pytest.mark.parametrize("forks", few_or_many(10, 1000, seconds=1800))
@pytest.mark.parametrize("kind", KINDS)
def test_a_child_forked_at_any_moment_loses_nothing(
    tmp_path: Path, kind: str, forks: int, record_property: Callable[[str, object], None]
) -> None:
    with started(STORM, kind, tmp_path, forks) as storm:
        said, _ = storm.communicate(timeout=120 + 2 * forks)
    assert said == "done\n"
    telling(record_property)(f"{kind}: {forks} forks")
