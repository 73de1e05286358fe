"""A cluster on this machine: a scheduler, and a worker for each GPU that CUDA shows, or one without a GPU."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kernelwatch.system.errors import UserError

START_S = 60.0
# Dask's workers interrupt themselves a hundred times a second for a profile, and all its processes fifty times to see
# how late they are. The kernels would be measured beside that.
QUIET = {
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "500ms",
    "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL": "5s",
}


def gpus() -> list[str]:
    """CUDA's visible GPUs, as CUDA_VISIBLE_DEVICES names them."""
    try:
        from cuda.bindings import driver

        if driver.cuInit(0)[0] != driver.CUresult.CUDA_SUCCESS:
            return []
        count = int(driver.cuDeviceGetCount()[1])
    except (ImportError, RuntimeError):  # RuntimeError: no libcuda
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return named.split(",")[:count] if named else [str(index) for index in range(count)]


class Local:
    """The processes of the cluster. They end with the command that started them (see lifeline)."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fleet-"))
        self.file = self.folder / "scheduler.json"
        arguments = ("--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0")
        self._scheduler = self._start("dask_scheduler", *arguments)
        end = time.monotonic() + START_S
        while not self.file.exists():
            if self._scheduler.poll() is not None or time.monotonic() > end:
                said = (self.folder / "log").read_text(errors="replace").strip()
                self.close()
                raise UserError(f"Dask's scheduler did not start: {said[-1000:]}")
            time.sleep(0.05)
        self._devices = gpus() or [""]
        self._workers = [self._worker(index) for index in range(len(self._devices))]

    def _start(self, program: str, *arguments: str, **variables: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", f"distributed.cli.{program}", "--scheduler-file", str(self.file), *arguments]
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
        arguments += ["--memory-limit", "0", "--local-directory", str(self.folder), "--host", "127.0.0.1"]
        if device:
            return self._start("dask_worker", *arguments, "--resources", "GPU=1", CUDA_VISIBLE_DEVICES=device)
        return self._start("dask_worker", *arguments)

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
