"""ObjectStoreBackend over Ceph: what only another real implementation of S3 can show, as conditions and races.

Before version 17, Ceph compares the tags of conditions without their quotes.
"""

from functools import partial

import pytest

from deepfs.backends import object_store
from deepfs.backends.object_store import S3Backend
from deepfs.testing.conformance.at_once import ConcurrencyConformance
from deepfs.testing.conformance.changing import WritingConformance
from deepfs.testing.suite import gather
from support.object_stores import RawObjects, S3Server

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The loop makes no difference to what the server answers."""
    return "asyncio"


class TestCeph(RawObjects, WritingConformance, ConcurrencyConformance):
    @pytest.fixture
    def backend(self, ceph_server: S3Server) -> S3Backend:
        self.server, self.prefix, self.store = ceph_server, ceph_server.prefix(), ceph_server.store()
        return ceph_server.backend(self.prefix)

    @pytest.fixture
    def second_backend(self, backend: S3Backend) -> S3Backend:
        return self.server.backend(self.prefix)


async def test_the_form_of_a_tag_is_found_out_by_many_changes_at_once(ceph_server: S3Server) -> None:
    object_store._bare_tags.clear()
    backend = ceph_server.backend(ceph_server.prefix())
    created = await gather([partial(backend.awrite, f"/{n}", "x") for n in range(10)])
    edited = await gather([partial(backend.aedit, f"/{n}", "x", "y") for n in range(10)])
    assert [each.error for each in (*created, *edited) if not each.ok] == []
    assert [info.path for info in (await backend.als("/")).entries or ()] == [f"/{n}" for n in range(10)]
