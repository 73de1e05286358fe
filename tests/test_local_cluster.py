"""Whom a local cluster trusts: its scheduler and workers run nothing for anybody who lacks its key."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # which Dask brings
import pytest

from kernelwatch.extras.fleet.cluster import Cluster
from kernelwatch.extras.fleet.local import Local, make_key
from kernelwatch.system.errors import UserError
from tests.repositories import wait_until

pytestmark = pytest.mark.xdist_group("local_cluster")

STRANGER = """
import sys
import distributed

timeout, address, ca, cert, key = sys.argv[1:]
security = distributed.Security(tls_ca_file=ca, tls_client_cert=cert, tls_client_key=key) if key else None
try:
    with distributed.Client(address, security=security, timeout=int(timeout), set_as_default=False) as client:
        print("ran as", client.submit(lambda: "whoever measures", pure=False).result(timeout=600))
except Exception as error:
    print("refused:", type(error).__name__)
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """A local cluster with a worker."""
    local = Local()
    try:
        with local.client() as client:
            assert wait_until(lambda: len(client.scheduler_info()["workers"]) == len(local.processes) - 1)
        yield local
    finally:
        local.close()


def addresses(local: Local) -> list[str]:
    """Of the scheduler and its workers."""
    with local.client() as client:
        known = client.sync(client.scheduler.identity)
    return [known["address"], *known["workers"]]


def stranger(address: str, files: Sequence[object] = ("", "", ""), as_nobody: bool = False, timeout_s: int = 5) -> str:
    """What a process says that connects to a scheduler, and lets it run something; whom it refuses tries so long."""
    command = [sys.executable, "-c", STRANGER, str(timeout_s), address, *map(str, files)]
    nobody = {"user": 65534, "group": 65534, "extra_groups": []} if as_nobody else {}
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False, timeout=600, **nobody)  # type: ignore[call-overload]
    return str(done.stdout).strip() or str(done.stderr)


def test_a_local_cluster_runs_nothing_for_who_lacks_its_key(alone: Local, tmp_path: Path) -> None:
    """Neither for a plain connection, nor for one with another key; neither its scheduler nor its workers."""
    scheduler = addresses(alone)[0]
    own = (alone.certificate, alone.certificate, alone.key)
    assert stranger(scheduler, own, timeout_s=300) == "ran as whoever measures"
    other = make_key(tmp_path)
    for address in addresses(alone):
        plain = address.replace("tls://", "tcp://")
        assert stranger(plain).startswith("refused: ")
        assert stranger(address).startswith("refused: ")
        assert stranger(address, (alone.certificate, *other)).startswith("refused: ")
        assert stranger(address, (other[0], *other)).startswith("refused: ")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_another_user_of_the_machine_cannot_read_the_key(alone: Local) -> None:
    """And so cannot connect, though the address is no secret."""
    own = (alone.certificate, alone.certificate, alone.key)
    said = stranger(addresses(alone)[0], own, as_nobody=True)
    assert "PermissionError" in said, said
    for path in (alone.folder, alone.key, alone.certificate):
        assert path.stat().st_mode & 0o077 == 0, path


def test_what_the_client_asks_for_itself_hides_no_worker(alone: Local) -> None:
    """Now and then it asks for no more than how many there are, also between a look and its answer."""
    with alone.client() as client:
        ask = client._update_scheduler_info

        async def twice(n_workers: int = 0) -> None:
            await ask(n_workers=n_workers)
            await ask()

        client._update_scheduler_info = twice
        assert client.scheduler_info()["workers"] == {}  # where this fails, Dask has mended it
        fleet = object.__new__(Cluster)
        fleet._client, fleet._local, fleet.known, fleet.heard = client, None, {}, 0.0
        fleet.workers, fleet.probes, fleet.refused = {}, {}, set(addresses(alone)[1:])
        assert fleet.look(("", b"", ""))
        assert fleet.known.keys() == fleet.refused


def test_a_local_cluster_listens_to_this_machine_alone(alone: Local) -> None:
    listening = [
        connection.laddr.ip
        for process in alone.processes
        for connection in psutil.Process(process.pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= 2 * len(alone.processes)  # each has a port for Dask, and one for HTTP
    assert set(listening) == {"127.0.0.1"}


def test_without_a_program_that_makes_keys_no_cluster_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="openssl"):
        Local()
