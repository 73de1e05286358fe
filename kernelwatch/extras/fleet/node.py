"""The program of the engine on a worker: it reads a request as a line of JSON, and writes its reply into a file.

It runs in the worker's clone and ends when its input closes, with all that it started.
"""

import ctypes
import json
import os
import platform
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from asv.main import main as asv_main

from kernelwatch.asv.machine_names import described, machine_name
from kernelwatch.asv.running import chosen, run_arguments
from kernelwatch.comparison import linking
from kernelwatch.history import links
from kernelwatch.plan.project import CONFIGURATION, Project, find_root, load
from kernelwatch.run import outcome
from kernelwatch.run.processes import Run
from kernelwatch.system import lifeline
from kernelwatch.system.errors import UserError
from kernelwatch.system.files import write_whole
from kernelwatch.system.machine import machine_id
from kernelwatch.system.options import Options

LAST_LINES = 12  # of a run that failed


def probe(project: Project) -> dict[str, Any]:
    """What this worker is, the conditions under which it measures, and the project's benchmarks; or `why` it cannot."""
    own = described()
    device = "cpu" if own["gpu"] == "none" else "gpu"
    if device == "cpu" and _has_gpu():
        raise UserError("it has a GPU, but cuda-bindings cannot use it; install the engine with [cuda13] or [cuda12]")
    asked = Run(project, [], device, str(project.root), project.devices[device].budget).probe()
    if asked.unavailable:
        raise UserError(asked.unavailable)
    facts = asked.group.facts
    conditions = outcome.conditions(facts)
    code, said = _asv(project, "--bench", "just-discover")
    if code:
        raise UserError(f"asv finds no benchmarks: {_last(said)}")
    return {
        "machine": own["machine"],
        "gpu": facts.get("nvml_uuid_sha256") or "",
        "host": machine_id(),
        "conditions": conditions | {"python": platform.python_version()},
        "benchmarks": (project.results / "benchmarks.json").read_text(encoding="utf-8"),
    }


def measure(project: Project, request: dict[str, Any]) -> dict[str, Any]:
    """Measure benchmarks of a commit; the result files by name, and asv's exit code."""
    folder = project.results / machine_name()
    with tempfile.TemporaryDirectory() as temporary:
        hashes = Path(temporary, "commits")
        (commit,) = request["commits"]
        hashes.write_text(commit)
        bench = chosen(request["benchmarks"])
        code, said = _asv(project, "--bench", bench, f"HASHFILE:{hashes}", again=request["again"])
    if code not in (0, 2):
        raise UserError(f"asv run failed with exit code {code}: {_last(said)}")
    paths = [folder / "machine.json", *folder.glob(f"{commit[:8]}-*")]
    files = {path.name: path.read_text(encoding="utf-8") for path in paths}
    for path in paths[1:]:  # the next job of this commit measures other series, and would send these again
        path.unlink()
    return {"code": code, "files": files}


def link(project: Project, request: dict[str, Any]) -> dict[str, Any]:
    """Link a commit with its parent, or with an older commit that is asked for; the texts of the sessions."""
    after, parent = request["commits"][0], request["parent"]
    texts = []
    with linking.trees(project) as made:
        for kind, before, keys in request["asked"]:
            if kind == "step" and before != parent:
                session = linking.across(project, before, after, keys, made, request["budget_s"])
            else:
                asked = [cell for cell in linking.asked_of(project) if cell.key in set(keys)]
                one = linking.step(project, parent, after, made, asked)
                if kind == "step":
                    session = linking.link(project, one, made, request["budget_s"])
                else:
                    session = linking.anchor(project, one, before, keys, made, request["budget_s"])
            texts.append(links.text_for(session))
    return {"sessions": texts}


def _asv(project: Project, *arguments: str, again: bool = False) -> tuple[int, str]:
    """Let asv run in this process, which has imported most of it; its exit code, and what it and its children print."""
    replace(Options.here(), again=again).hand_on()
    sys.argv = ["asv", "--config", str(project.root / CONFIGURATION), *run_arguments(*arguments)]
    code: object = 0
    with tempfile.TemporaryFile() as said, _printing_to(said.fileno()):
        try:
            asv_main()
        except SystemExit as ended:
            code = ended.code
        except Exception:  # the interpreter of an asv of its own would say this
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        said.seek(0)
        return (code if isinstance(code, int) else 1), said.read().decode(errors="replace")


@contextmanager
def _printing_to(file: int) -> Iterator[None]:
    """What this process and those that it starts print goes into a file."""
    before = {stream: os.dup(stream) for stream in (1, 2)}
    for stream in before:
        os.dup2(file, stream)
    try:
        yield
    finally:
        for stream, kept in before.items():
            os.dup2(kept, stream)
            os.close(kept)


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


def _die_with_parent(stdin: int) -> None:
    """Leave as soon as stdin closes: then nobody waits for the reply."""

    def watch() -> None:
        while os.read(stdin, 4096):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _own_input() -> int:
    """The descriptor of stdin, which the processes that this one starts do not get."""
    mine = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return mine


def main(reply: Path) -> None:
    request = json.loads(sys.stdin.readline())
    with lifeline.tied(nested=True):
        _die_with_parent(_own_input())
        try:
            project = load(find_root(Path.cwd()))
            if request["program"] == "probe":
                answer = probe(project)
            else:
                answer = {"measure": measure, "link": link}[request["program"]](project, request)
        except (UserError, OSError) as error:
            answer = {"why": str(error)}
    write_whole(reply, json.dumps(answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
