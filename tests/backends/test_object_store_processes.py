"""Edits of one object by several processes at once: each that succeeded is there once."""

from typing import Final

import pytest

from deepfs.sync import run_sync
from support.object_stores import S3Server
from support.processes import printed_at_once

PROCESSES: Final = 4
EDITS: Final = 50

CHILD = """
import sys
from deepfs.backends.object_store import S3Backend
url, prefix, first, last = sys.argv[1:]
backend = S3Backend(
    "bucket", prefix, endpoint_url=url, region="us-east-1", access_key_id="id", secret_access_key="key"
)
assert backend.read("/log.txt").ok
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(first), int(last)):
    result = backend.edit("/log.txt", f"<{number}>", f"({number})")
    print("ok" if result.ok else result.error, flush=True)
"""


@pytest.mark.timeout(300)
def test_concurrent_processes_lose_no_edit(s3_server: S3Server) -> None:
    prefix, total = s3_server.prefix(), PROCESSES * EDITS
    backend = s3_server.backend(prefix)
    assert backend.write("/log.txt", "".join(f"<{number}>\n" for number in range(total))).ok
    arguments = [(s3_server.url, prefix, first * EDITS, (first + 1) * EDITS) for first in range(PROCESSES)]
    assert printed_at_once(CHILD, arguments) == ["ok"] * total
    data = run_sync(backend.aread_raw, "/log.txt").data
    assert data is not None
    assert data.content == "".join(f"({number})\n" for number in range(total))
