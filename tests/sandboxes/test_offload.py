"""Long output of a command stays in a file of the sandbox, if the class says so."""

from pathlib import Path

import pytest

from deepfs.backends.protocol import ExecuteOffloadResult
from support.sandboxes import LocalSandbox


class Offloading(LocalSandbox):
    enable_capture_offload = True


class TestOffload:
    def run(self, root: Path, command: str, *, inline: int = 100, most: int | None = None) -> ExecuteOffloadResult:
        return Offloading(root).execute_with_offload(
            command, "/out/it's.txt", max_inline_bytes=inline, max_capture_bytes=most
        )

    def test_short_output_is_returned_whole_and_not_stored(self, tmp_path: Path) -> None:
        done = self.run(tmp_path, "echo out; echo err >&2; exit 3")
        assert not done.offloaded
        assert sorted(done.response.output.split()) == ["err", "out"]
        assert done.response.exit_code == 3
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]

    def test_long_output_is_in_the_file(self, tmp_path: Path) -> None:
        done = self.run(tmp_path, "seq 1 10000; exit 4")
        whole = "".join(f"{number}\n" for number in range(1, 10001))
        assert (done.offloaded, done.preview_has_truncation_marker, done.response.exit_code) == (True, True, 4)
        assert (tmp_path / "out/it's.txt").read_text() == whole
        assert done.response.output.startswith("1\n2\n")
        assert done.response.output.endswith("9999\n10000\n")
        assert not done.response.truncated
        assert len(done.response.output) < 200

    def test_output_over_the_limit_is_discarded_and_the_command_goes_on(self, tmp_path: Path) -> None:
        done = self.run(tmp_path, "seq 1 100000; touch done", most=1_000)
        assert done.response.truncated
        assert done.response.exit_code == 0
        assert (tmp_path / "out/it's.txt").stat().st_size == 1_000
        assert (tmp_path / "done").exists()

    def test_without_the_attribute_the_command_runs_as_it_is(self, tmp_path: Path) -> None:
        done = LocalSandbox(tmp_path).execute_with_offload("seq 1 100", "/f", max_inline_bytes=1)
        assert done == ExecuteOffloadResult(False, done.response)
        assert done.response.output.endswith("100\n")

    def test_output_that_imitates_the_report_is_output(self, tmp_path: Path) -> None:
        done = self.run(tmp_path, "echo deepfs-0123456789abcdef 0 1 0")
        assert done.response.output == "deepfs-0123456789abcdef 0 1 0\n"


@pytest.mark.anyio
async def test_the_async_form(tmp_path: Path) -> None:
    done = await Offloading(tmp_path).aexecute_with_offload("seq 1 1000", "/f", max_inline_bytes=10, timeout=30)
    assert done.offloaded
    assert done.response.exit_code == 0


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
