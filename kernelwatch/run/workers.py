"""Starts worker processes, some of them early: these import what the ones before them did, and wait for a job."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from kernelwatch.plan.interpreters import variables

WORKER = Path(__file__).with_name("worker.py")
# Processes that wait at a time. On a machine with few cores, several imports would delay what is being measured.
WAITING_MOST = max(1, min(4, (os.cpu_count() or 1) // 4))
PIPE_BYTES = 1 << 18  # a worker that imports does not read; the names of some thousand modules take 100 KiB


@dataclass
class Worker:
    """A started process, and the temporary file of its stderr."""

    process: "subprocess.Popen[str]"
    stderr: IO[str]

    def send(self, line: Any) -> None:
        """Send a line of JSON. Raises: BrokenPipeError if the process is dead."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()  # stdin stays open: the worker exits when it closes

    def end(self) -> None:
        """Kill it."""
        with self.process, self.stderr:
            self.process.kill()


class Workers:
    """The processes of a group. `environment`: variables that they get beside those of this process; `modules`: what
    processes so far have imported, to which these add; `python`: another interpreter than that of this process."""

    def __init__(self, environment: Mapping[str, str], modules: list[str] | None = None, python: str = "") -> None:
        self._python = python
        self.modules = [] if modules is None else modules
        self._environment = environment
        self._waiting: list[Worker] = []

    def take(self) -> Worker:
        """The process that has waited for the longest time, or a new one."""
        return self._waiting.pop(0) if self._waiting else self._start()

    def ahead(self, wanted: int) -> None:
        """Let this number of processes wait, as far as this machine has cores for it."""
        while len(self._waiting) < min(wanted, WAITING_MOST):
            self._waiting.append(self._start())

    def imported(self, modules: list[str]) -> None:
        """A process has imported further modules; those that wait import them now."""
        known = set(self.modules)
        new = [name for name in modules if name not in known]
        for worker in self._waiting:
            _offer(worker, new)
        self.modules += new

    def close(self) -> None:
        """End the processes that wait."""
        while self._waiting:
            self._waiting.pop().end()

    def _start(self) -> Worker:
        stderr = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (closed with its process)
        process = subprocess.Popen(
            [self._python or sys.executable, "-P", str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**variables(self._python), **self._environment},
            pipesize=PIPE_BYTES,
        )
        worker = Worker(process, stderr)
        _offer(worker, self.modules)
        return worker


def _offer(worker: Worker, modules: list[str]) -> None:
    if modules:
        with suppress(BrokenPipeError):  # whoever sends the job sees why it died
            worker.send(modules)
