"""Ceph's object store for tests: a monitor, a storage daemon in memory and a gateway that speaks S3."""

import os
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.request import urlopen

from support.object_stores import BUCKET, S3Server
from support.postgres import ends_with_this_process, unprivileged

__all__ = ["running_ceph"]

_SECONDS: Final = 60
_USERS: Final = ("client.admin", "mon.", "osd.0")
_CONFIG: Final = """
[global]
fsid = {fsid}
mon host = [v2:127.0.0.1:{port}]
mon initial members = a
public addr = 127.0.0.1
keyring = {directory}/keyring
log file = {directory}/$name.log
mon cluster log file = {directory}/cluster.log
admin socket = {directory}/$name.$pid.asok
pid file =
ms bind msgr1 = false
paxos propose interval = 0.02
paxos min wait = 0.01
mon data = {directory}/monitor
mon data avail crit = 0
mon osd full ratio = 0.99
osd data = {directory}
osd objectstore = memstore
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
rgw data = {directory}
rgw frontends = beast endpoint=127.0.0.1:{gateway_port}
rgw gc max objs = 1
rgw lc max objs = 1
rgw num control oids = 1
rgw reshard num logs = 1
rgw usage max shards = 1
"""


@contextmanager
def running_ceph() -> Iterator[S3Server]:
    """A server on the loopback interface, with an empty bucket."""
    # Below /tmp, since the path of a socket may have 107 bytes, and another user needs access.
    with TemporaryDirectory(prefix="deepfs-ceph-", dir="/tmp") as name, ExitStack() as daemons:
        cluster = _Cluster(Path(name), daemons)
        gateway_port = _free_port()
        cluster.configure(_free_port(), gateway_port)
        cluster.start("ceph-osd", "-i", "0")
        cluster.run(
            "radosgw-admin", "-n", "client.admin", "user", "create", "--uid=tests", "--display-name=tests",
            "--access-key=id-of-a-key", "--secret-key=a-secret-key",
        )  # fmt: skip
        cluster.start("radosgw", "-n", "client.admin")
        server = S3Server(f"http://127.0.0.1:{gateway_port}")
        _wait_until_ready(server)
        _make_bucket(server)
        yield server


def _wait_until_ready(server: S3Server) -> None:
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            urlopen(server.url).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _make_bucket(server: S3Server) -> None:
    import boto3

    given = server.options()
    keys = {"aws_access_key_id": given["access_key_id"], "aws_secret_access_key": given["secret_access_key"]}
    client = boto3.client("s3", endpoint_url=server.url, region_name=given["region"], **keys)
    client.create_bucket(Bucket=BUCKET)
    client.close()


class _Cluster:
    """The daemons of one server, which end with `daemons`."""

    def __init__(self, directory: Path, daemons: ExitStack) -> None:
        self._directory = directory
        self._daemons = daemons
        environment = {**os.environ, "CEPH_CONF": str(directory / "ceph.conf")}
        self._options: dict[str, Any] = {"cwd": directory, "env": environment, **unprivileged(directory)}

    def run(self, *command: str) -> str:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_SECONDS, **self._options)
        if done.returncode:
            raise RuntimeError(f"{command}: {done.stderr[:2000]}")
        return str(done.stdout)

    def start(self, *command: str) -> None:
        """Start a daemon."""
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen([*ends_with_this_process(), *command, "-f"], **streams, **self._options)
        self._daemons.callback(process.wait, _SECONDS)
        self._daemons.callback(process.kill)  # Nothing need be kept.

    def configure(self, port: int, gateway_port: int) -> None:
        """Make what the daemons need, and start the monitor."""
        fsid = str(uuid.uuid4())
        config = _CONFIG.format(fsid=fsid, port=port, gateway_port=gateway_port, directory=self._directory)
        (self._directory / "ceph.conf").write_text(config)
        key = self.run("ceph-authtool", "--gen-print-key").strip()
        users = (f'[{name}]\nkey = {key}\ncaps mon = "allow *"\ncaps osd = "allow *"\n' for name in _USERS)
        (self._directory / "keyring").write_text("".join(users))
        self.run("monmaptool", "--create", "--fsid", fsid, "--addv", "a", f"[v2:127.0.0.1:{port}]", "monmap")
        self.run("ceph-mon", "--mkfs", "-i", "a", "--monmap", "monmap", "--keyring", "keyring")
        self.start("ceph-mon", "-i", "a")
        disk = str(uuid.uuid4())
        self.run("ceph", "osd", "new", disk)
        self.run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", disk)
