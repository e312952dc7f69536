"""Data that earlier versions stored, from archives."""

import tarfile
from pathlib import Path
from typing import Final

import pytest

ARCHIVES: Final = sorted(Path(__file__).parent.glob("*.tar.gz"))


@pytest.fixture(params=ARCHIVES, ids=lambda archive: archive.name.partition(".")[0])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The content of an archive, unpacked in a directory of this test."""
    with tarfile.open(request.param) as archive:
        # The filter exists from Python 3.11.4 on. Without it the archive is safe too, since it is our own.
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return tmp_path
