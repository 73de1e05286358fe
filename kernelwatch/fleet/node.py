"""The program of the engine on a worker: it reads a request as a line of JSON, and writes its reply into a file.

It runs in the worker's clone and ends when its input closes, with all that it started.
"""

import ctypes
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernelwatch.asv.identity import identity
from kernelwatch.asv.running import run_command
from kernelwatch.fleet.units import chosen
from kernelwatch.plan.project import CONFIGURATION, Project, find_root, load
from kernelwatch.run import outcome
from kernelwatch.run.group import BUDGETS
from kernelwatch.run.processes import Run
from kernelwatch.system import lifeline
from kernelwatch.system.errors import UserError
from kernelwatch.system.files import write_whole
from kernelwatch.system.machine import machine_id
from kernelwatch.system.options import Options
from kernelwatch.timing.check import Budget

LAST_LINES = 12  # of a run that failed


def probe(project: Project) -> dict[str, Any]:
    """What this worker is, the conditions under which it measures, and the project's benchmarks; or `why` it cannot."""
    own = identity()
    device = "cpu" if own["gpu"] == "none" else "gpu"
    if device == "cpu" and _has_gpu():
        raise UserError("it has a GPU, but cuda-bindings cannot use it; install the engine with [cuda13] or [cuda12]")
    asked = Run(project, [], device, str(project.root), Budget(**vars(BUDGETS[device]))).probe()
    if asked.unavailable:
        raise UserError(asked.unavailable)
    facts = asked.group.facts
    conditions = outcome.conditions(facts)
    done = _asv(project, "--bench", "just-discover")
    if done.returncode:
        raise UserError("asv finds no benchmarks: " + _last(done.stdout))
    return {
        "machine": own["machine"],
        "gpu": facts.get("nvml_uuid_sha256") or "",
        "host": machine_id(),
        "conditions": conditions | {"python": platform.python_version()},
        "benchmarks": (project.results / "benchmarks.json").read_text(encoding="utf-8"),
    }


def measure(project: Project, request: dict[str, Any]) -> dict[str, Any]:
    """Measure benchmarks of a commit; the result files by name, and asv's exit code."""
    folder = project.results / identity()["machine"]
    with tempfile.TemporaryDirectory() as temporary:
        hashes = Path(temporary, "commits")
        hashes.write_text(request["commit"])
        done = _asv(project, "--bench", chosen(request["benchmarks"]), f"HASHFILE:{hashes}", again=request["again"])
    if done.returncode not in (0, 2):
        raise UserError(f"asv run failed with exit code {done.returncode}: {_last(done.stdout)}")
    paths = [folder / "machine.json", *folder.glob(f"{request['commit'][:8]}-*")]
    files = {path.name: path.read_text(encoding="utf-8") for path in paths}
    for path in paths[1:]:  # the next job of this commit measures other series, and would send these again
        path.unlink()
    return {"code": done.returncode, "files": files}


def _asv(project: Project, *arguments: str, again: bool = False) -> "subprocess.CompletedProcess[str]":
    options = replace(Options.here(), again=again)
    command = run_command(project.root / CONFIGURATION, *arguments)
    return subprocess.run(
        command,
        cwd=project.root,
        env=options.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )


def _last(said: str) -> str:
    return "\n".join(said.strip().splitlines()[-LAST_LINES:])


def _has_gpu() -> bool:
    """Whether the driver has a GPU for this process, whatever packages are installed."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def _die_with_parent() -> None:
    """Leave as soon as stdin closes: then nobody waits for the reply."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main(reply: Path) -> None:
    request = json.loads(sys.stdin.readline())
    with lifeline.tied(nested=True):
        _die_with_parent()
        try:
            project = load(find_root(Path.cwd()))
            answer = probe(project) if request["program"] == "probe" else measure(project, request)
        except (UserError, OSError) as error:
            answer = {"why": str(error)}
    write_whole(reply, json.dumps(answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
