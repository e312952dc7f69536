"""Copies of files in a sandbox: what commands and people put into their directory is never written through or lost."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

from deepfs.errors import BackendError
from deepfs.sandboxes import MirroredFile, SandboxMirror, mirror
from support.sandboxes import LocalSandbox


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Only the commands matter here. The tests of skills copy on both loops."""
    return "asyncio"


BOTH = {"pdf/a.sh": b"#!/bin/sh\necho a\n", "pdf/b.txt": b"b"}
CHANGED = {**BOTH, "pdf/b.txt": b"changed"}


class Copied:
    """A sandbox with a mirror of `/skills`, and files of others beside it."""

    def __init__(self, root: Path, **options: int) -> None:
        self.box = LocalSandbox(root, **options)
        self.mirror = SandboxMirror(self.box, "/skills")

    @classmethod
    async def begun(cls, root: Path, before: str = "") -> "Copied":
        copied = cls(root)
        await copied.run(f"mkdir -p other/pdf; echo kept | tee user.txt other/b.txt >other/pdf/b.txt; {before}")
        copied.warnings = await copied.update(BOTH)
        return copied

    async def update(self, files: Mapping[str, bytes], by: SandboxMirror | None = None) -> list[str]:
        async def read(names: list[str]) -> Mapping[str, bytes]:
            return {name: files[name] for name in names}

        wanted = {name: MirroredFile(sha256(each).hexdigest(), each[:2] == b"#!") for name, each in files.items()}
        return await (by or self.mirror).update(wanted, read)

    def restarted(self) -> None:
        """Go on as another process, which knows nothing of the copy."""
        mirror._known.clear()
        self.mirror = SandboxMirror(self.box, "/skills")

    async def run(self, command: str) -> str:
        done = await self.box.aexecute(command)
        assert done.exit_code == 0, done.output
        return done.output

    async def skills(self) -> list[str]:
        return (await self.run("cd skills; find . ! -type d | sort")).split()

    warnings: list[str]


LINKS = {
    "directory": "rm -r skills/pdf; ln -s ../other/pdf skills/pdf",
    "whole": "rm -r skills; ln -s other skills",
    "file": "ln -sf ../../user.txt skills/pdf/b.txt",
    "listing": "ln -s ../user.txt skills/.deepfs-files.state; ln -s ../user.txt skills/.deepfs-files.tar.gz",
    "list": "rm skills/.deepfs-files; ln -s ../user.txt skills/.deepfs-files",
    "names": "printf '../user.txt\\n/user.txt\\npdf/../../user.txt\\n' >>skills/.deepfs-files",
}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("link", "is_restarted", "files"),
    [
        *((link, True, CHANGED) for link in LINKS),
        ("directory", False, CHANGED),
        ("directory", False, {}),
        ("whole", False, {**CHANGED, "pdf/noise": Random(1).randbytes(100_000)}),
    ],
)
async def test_nothing_is_written_or_removed_through_links_of_commands(
    link: str, is_restarted: bool, files: Mapping[str, bytes], tmp_path: Path
) -> None:
    copied = await Copied.begun(tmp_path)
    await copied.run(LINKS[link])
    if is_restarted:
        copied.restarted()
    if link == "whole":
        with pytest.raises(BackendError, match="skills is a link"):
            await copied.update(files)
    else:
        await copied.update(files)
    assert await copied.run("cat user.txt other/b.txt other/pdf/b.txt; ls -A other") == "kept\n" * 3 + "b.txt\npdf\n"


@pytest.mark.anyio
async def test_what_is_in_the_way_stays_and_the_rest_is_copied(tmp_path: Path) -> None:
    there = "mkdir -p skills/one/c.txt skills/two; touch skills/one/c.txt/x skills/file; ln -s x skills/two/link"
    copied = await Copied.begun(tmp_path, there)
    assert copied.warnings == []
    more = {**BOTH, "one/c.txt": b"1", "file/d.txt": b"2", "two/link": b"3", "two/link/e": b"4", "two/../f": b"5"}
    within = f"{tmp_path}/skills"
    warnings = [
        *(f"{within}/{name} exists in the sandbox already and stays as it is there" for name in ("file", "one/c.txt")),
        f"{within}/two/link exists in the sandbox already and stays as it is there",
        "two/../f is not copied: its name has parts or characters that are not allowed",
    ]
    assert await copied.update(more) == warnings
    before = copied.box.commands
    assert await copied.update(more) == warnings
    assert copied.box.commands == before
    left = ["./.deepfs-files", "./file", "./one/c.txt/x", "./pdf/a.sh", "./pdf/b.txt", "./two/link"]
    assert await copied.skills() == left


@pytest.mark.anyio
async def test_what_is_in_the_way_is_seen_though_outputs_are_cut(tmp_path: Path) -> None:
    copied = Copied(tmp_path, max_output_bytes=2_000)
    await copied.run("mkdir -p skills/pdf; for name in $(seq 200); do echo kept >skills/pdf/$name; done")
    warnings = await copied.update({f"pdf/{number}": b"theirs" for number in range(1, 202)})
    assert len(warnings) == 200
    assert await copied.run("grep -l kept skills/pdf/* | wc -l; cat skills/pdf/201") == "200\ntheirs"


@pytest.mark.anyio
async def test_agents_of_a_process_do_not_remove_each_others_files(tmp_path: Path) -> None:
    copied = await Copied.begun(tmp_path)
    other = SandboxMirror(copied.box, "/skills")
    before = copied.box.commands
    assert await copied.update({"pdf/b.txt": b"b"}, other) == []
    assert await copied.update(BOTH) == []
    assert copied.box.commands == before
    await copied.update({}, copied.mirror)
    assert await copied.skills() == ["./.deepfs-files", "./pdf/b.txt"]
    await copied.update({}, other)
    assert await copied.skills() == ["./.deepfs-files"]


@pytest.mark.anyio
async def test_an_archive_that_cannot_be_unpacked_is_removed(tmp_path: Path) -> None:
    copied = await Copied.begun(tmp_path)
    await copied.run("rm skills/.deepfs-files; mkdir -p skills/.deepfs-files/x")
    copied.restarted()
    with pytest.raises(BackendError, match="exit code 1"):
        await copied.update({**BOTH, "pdf/noise": Random(1).randbytes(100_000)})
    assert await copied.run("ls -A skills") == ".deepfs-files\npdf\n"


def test_commands_stay_short() -> None:
    names = [f"{'ü' * 100}/{number}" for number in range(3_000)]
    parts = mirror._prepare_commands(names, names, "nonce")
    assert max(len(part.encode()) for part in parts) < 128 * 1024 - 1_000
    assert sum(part.count("\nr") for part in parts) == 3_000
