"""The entries of a workspace in another backend: their names, and what strangers put there."""

from hashlib import blake2b

import pytest

from deepfs.backends.memory import MemoryBackend
from deepfs.errors import ErrorCode
from deepfs.testing.suite import assert_failed, assert_ok, text_of
from deepfs.workspaces import OverlayBackend

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "content", [b"{", b"[" * 100_000, b'{"path":"/y"}', b'{"path":"Xx","data":{"content":"q","encoding":"utf-8"}}']
)
async def test_what_is_no_entry_of_its_path_is_refused(content: bytes) -> None:
    upper = MemoryBackend()
    await upper.aupload_files([("/x=", content)])
    workspace = OverlayBackend(MemoryBackend(files={"/x": "below"}), upper)
    assert_failed(await workspace.aread("/x"), ErrorCode.BACKEND_ERROR)
    assert_failed(await workspace.als("/"), ErrorCode.BACKEND_ERROR)


async def test_the_entry_of_a_long_name_is_that_of_no_other_name() -> None:
    workspace = OverlayBackend(MemoryBackend(), MemoryBackend())
    long = "n" * 250
    digest = blake2b(long.encode(), digest_size=32).hexdigest()
    for name in (long, digest, digest.rjust(201, "-")):
        assert_ok(await workspace.awrite(f"/{name}", name))
    assert [await text_of(workspace, f"/{name}") for name in (long, digest)] == [long, digest]
