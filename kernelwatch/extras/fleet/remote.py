"""What Dask runs on a worker. It uses the standard library and Dask only: the engine comes with the checkout.

Dask carries this module by value, so a worker needs nothing of this project beforehand but the packages.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distributed import get_worker

CLONES = "kernelwatch"
VISIBLE = "CUDA_VISIBLE_DEVICES"
LOOK_S = 0.2  # between two looks at whether the job is still wanted


def _clone(checkout: str) -> Path:
    return Path(get_worker().local_directory, CLONES, checkout)


def _git(folder: Path, *arguments: str, given: bytes | None = None) -> None:
    done = subprocess.run(["git", *arguments], cwd=folder, input=given, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"git {arguments[0]}: {done.stderr.decode(errors='replace').strip()}")


def prepare(checkout: str, pack: bytes, root: str) -> bytes:
    """Clone the checkout from a pack; what this worker is, packed. `root`: the project's folder in the repository."""
    if shutil.which("git") is None:
        return _packed({"why": "git is not on its PATH"})
    folder = _clone(checkout)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(parents=True)
        _git(folder, "init", "-q", "-b", "main")
        _git(folder, "index-pack", "--stdin", given=pack)
        _git(folder, "update-ref", "refs/heads/main", checkout)
        _git(folder, "reset", "-q", "--hard")
        return _packed(run(checkout, root, {"program": "probe"}))
    except (OSError, RuntimeError) as error:
        return _packed({"why": str(error)})


def measure(checkout: str, root: str, request: dict[str, Any], pack: bytes) -> bytes:
    """Measure as a request says; the packed reply. `pack`: the objects of the commit."""
    try:
        _git(_clone(checkout), "index-pack", "--stdin", given=pack)
        return _packed(run(checkout, root, request))
    except (OSError, RuntimeError) as error:
        return _packed({"why": str(error)})


def _packed(reply: dict[str, Any]) -> bytes:
    return zlib.compress(json.dumps(reply).encode())


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables of the engine's program. A worker has one GPU: the first that CUDA shows it (dask-cuda's workers
    are shown all GPUs of the machine, each another one first)."""
    kept = {name: value for name, value in variables.items() if name != "KERNELWATCH_LOCKED"}
    if shown := kept.get(VISIBLE):
        kept[VISIBLE] = shown.partition(",")[0]
    return kept


def run(checkout: str, root: str, request: dict[str, Any]) -> dict[str, Any]:
    """The reply of the engine's program in the clone. The program ends if this process does (its input closes), or if
    nobody wants the job any more."""
    folder = _clone(checkout) / root
    worker = get_worker()
    key = worker.get_current_task()
    with tempfile.TemporaryDirectory() as temporary, tempfile.TemporaryFile() as said:
        path = Path(temporary, "reply")
        engine = subprocess.Popen(
            [sys.executable, "-m", "kernelwatch.extras.fleet.node", str(path)],
            cwd=folder,
            env=environment(os.environ),
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
        )
        try:
            assert engine.stdin is not None
            engine.stdin.write(json.dumps(request).encode() + b"\n")
            engine.stdin.flush()  # it stays open: the engine ends when it closes
            _wait(engine, worker, key)
        finally:
            engine.kill()
            engine.wait()
        if path.exists():
            return dict(json.loads(path.read_text(encoding="utf-8")))
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines()
    return {"why": lines[-1] if lines else f"the engine ended with exit code {engine.returncode}"}


def _wait(engine: "subprocess.Popen[bytes]", worker: Any, key: str) -> None:
    """Wait until a program ends. Raises: RuntimeError if the job is cancelled."""
    while True:
        try:
            engine.wait(LOOK_S)
            return
        except subprocess.TimeoutExpired:
            task = worker.state.tasks.get(key)
            if task is None or task.state == "cancelled":
                raise RuntimeError("the job was cancelled") from None
