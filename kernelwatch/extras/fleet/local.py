"""A cluster on this machine: a scheduler, and a worker for each GPU that CUDA shows, or one without a GPU.

Whoever reaches a scheduler of Dask's can let it run any code. The processes of this one listen to this machine alone,
and talk to those that have the key of the run, which lies in a folder that no other user may open.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import distributed

from kernelwatch.system.errors import UserError
from kernelwatch.system.machine import gpus

START_S = 60.0
HOST = "127.0.0.1"
# Dask's workers interrupt themselves a hundred times a second for a profile, and all its processes fifty times to see
# how late they are. The kernels would be measured beside that.
QUIET = {
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "500ms",
    "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL": "5s",
}


def make_key(folder: Path) -> tuple[Path, Path]:
    """A new certificate, which signs itself, and its key: files that only this user can read. Raises: UserError."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "30", "-subj", "/CN=kernelwatch", "-keyout", str(key), "-out", str(certificate)]
    try:
        subprocess.run(command, capture_output=True, text=True, check=True, umask=0o077)
    except FileNotFoundError:
        raise UserError(
            "no openssl, which makes the key of a local cluster; install it (apt install openssl)"
        ) from None
    except subprocess.CalledProcessError as error:
        raise UserError(f"openssl made no key for the cluster: {error.stderr.strip()[-500:]}") from None
    return certificate, key


class Local:
    """The processes of the cluster. They end with the command that started them (see lifeline). Raises: UserError."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fleet-"))  # of this user alone
        self.file = self.folder / "scheduler.json"
        try:
            self.certificate, self.key = make_key(self.folder)
        except UserError:
            shutil.rmtree(self.folder)
            raise
        self._scheduler = self._start("dask_scheduler", "--port", "0")
        end = time.monotonic() + START_S
        while not (self.file.exists() and self.file.stat().st_size):  # the client waits only 0.1 s for what it holds
            if self._scheduler.poll() is not None or time.monotonic() > end:
                said = (self.folder / "log").read_text(errors="replace").strip()
                self.close()
                raise UserError(f"Dask's scheduler did not start: {said[-1000:]}")
            time.sleep(0.05)
        self._devices = gpus() or [""]
        self._workers = [self._worker(index) for index in range(len(self._devices))]

    def _start(self, program: str, *arguments: str, **variables: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", f"distributed.cli.{program}", "--scheduler-file", str(self.file), *arguments]
        command += ["--protocol", "tls", "--host", HOST, "--dashboard-address", f"{HOST}:0"]
        command += ["--tls-ca-file", str(self.certificate), "--tls-cert", str(self.certificate)]
        command += ["--tls-key", str(self.key)]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | QUIET | variables,
                start_new_session=True,  # Ctrl-C is for the command, which ends its workers
            )

    def _worker(self, index: int) -> "subprocess.Popen[bytes]":
        device = self._devices[index]
        arguments = ["--name", f"gpu{index}" if device else "cpu", "--nthreads", "1", "--no-nanny", "--no-dashboard"]
        arguments += ["--memory-limit", "0", "--local-directory", str(self.folder)]
        if device:
            return self._start("dask_worker", *arguments, "--resources", "GPU=1", CUDA_VISIBLE_DEVICES=device)
        return self._start("dask_worker", *arguments)

    @property
    def processes(self) -> "list[subprocess.Popen[bytes]]":
        """The scheduler and the workers."""
        return [self._scheduler, *self._workers]

    def client(self) -> distributed.Client:
        """A connection, with the key. Raises: OSError."""
        security = distributed.Security(
            require_encryption=True,
            tls_ca_file=str(self.certificate),
            tls_client_cert=str(self.certificate),
            tls_client_key=str(self.key),
        )
        return distributed.Client(
            scheduler_file=str(self.file), security=security, timeout=START_S, set_as_default=False
        )

    def tend(self) -> None:
        """Start workers that have died again."""
        for index, worker in enumerate(self._workers):
            if worker.poll() is not None and self._scheduler.poll() is None:
                self._workers[index] = self._worker(index)

    def close(self) -> None:
        for process in (*getattr(self, "_workers", ()), self._scheduler):
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
