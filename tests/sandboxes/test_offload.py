"""Attributes of sandboxes of deepagents: output is returned whole here, and `grep` leaves out directories."""

from pathlib import Path

import pytest

from deepfs.backends.protocol import ExecuteOffloadResult
from support.sandboxes import LocalSandbox

pytestmark = pytest.mark.both_loops


class Offloading(LocalSandbox):
    enable_capture_offload = True


@pytest.mark.parametrize("kind", [LocalSandbox, Offloading])
def test_long_output_is_returned_whole_and_not_stored(tmp_path: Path, kind: type[LocalSandbox]) -> None:
    done = kind(tmp_path).execute_with_offload("seq 1 10000; exit 4", "/f", max_inline_bytes=10, max_capture_bytes=10)
    assert done == ExecuteOffloadResult(False, done.response)
    assert done.response.output == "".join(f"{number}\n" for number in range(1, 10001))
    assert done.response.exit_code == 4
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.anyio
async def test_the_async_form(tmp_path: Path) -> None:
    done = await Offloading(tmp_path).aexecute_with_offload("sleep 9", "/f", max_inline_bytes=10, timeout=0.2)
    assert (done.offloaded, done.response.exit_code) == (False, None)


def test_grep_leaves_out_the_directories_that_the_class_names(tmp_path: Path) -> None:
    class Sandbox(LocalSandbox):
        grep_exclude_dirs = (".git", "node_modules")

    for path in ("a.js", "src/node_modules/b.js", "node_modules/c.js", ".git/d.js"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("here\n")

    def found(path: str, glob: str | None = None) -> list[str]:
        return [match.path for match in Sandbox(tmp_path).grep("here", path, glob).matches or ()]

    assert found("/") == ["/a.js"]
    assert found("/", ".git/*") == []
    assert found("/node_modules") == ["/node_modules/c.js"]
    assert found("/.git", "*.js") == ["/.git/d.js"]
    assert LocalSandbox(tmp_path).grep("here", "/", ".git/*").matches
