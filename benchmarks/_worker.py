"""One fresh process that measures cells: a job comes in as the first line of stdin, events go out as JSON lines.

Started by `_group` as a script. Events: {"event": "waiting", "who"} as long as another run has the GPU; {"event":
"start", "facts"}, then for each cell {"event": "begin", "key"} and {"event": "cell", "key", "state": "ok" | "na" |
"failed", "visit" | "reason"}, at last {"event": "end"}; or {"event": "unavailable", "reason"} where nothing can be
measured here at all. What the process was doing when it died is the cell begun last.
"""

import importlib.util
import json
import os
import sys
import threading
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any


def _import_stick() -> None:
    """Make this folder importable as `benchmarks` without putting the checkout, and with it another gpukernels, on the
    path."""
    here = Path(__file__).resolve().parent
    spec = importlib.util.spec_from_file_location(
        "benchmarks", here / "__init__.py", submodule_search_locations=[str(here)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["benchmarks"] = module
    spec.loader.exec_module(module)


def _die_with_parent() -> None:
    """Leave as soon as stdin closes: a parent that was killed cannot leave a process behind that holds the GPU."""

    def watch() -> None:
        while os.read(0, 4096):  # not through sys.stdin, whose lock would abort an interpreter that ends by itself
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _emit(stream: Any, **event: Any) -> None:
    stream.write(json.dumps(event, allow_nan=False) + "\n")
    stream.flush()


def _load(package: Any, cell: Any) -> tuple[Any, Any, str]:
    """The cell as the measured commit has it, which may repeat its work another number of times; its kernel, or its
    rung where it is only compiled; or None and why that commit has none."""
    if cell.reference:
        return cell, None, ""
    try:
        found = package.rung(cell.op, cell.rung)
    except package.LadderError as error:
        return cell, None, f"this commit has {error}"
    if cell.type not in found.types:
        return cell, None, f"at this commit {cell.op}/{cell.rung} takes {', '.join(found.types)}, not {cell.type}"
    if cell.device in ("static", "access"):
        return cell, found, ""
    return replace(cell, repeats=found.repeats), package.load(cell.op, cell.rung, cell.type), ""


def _device(job: dict[str, Any], cells: list[Any], package: Any) -> Any:
    """What deals with cells: a GPU, the CPU, the package's compiler, or the stand-in for a GPU."""
    from benchmarks._access import Counter
    from benchmarks._cpu import Cpu
    from benchmarks._gpu import Gpu
    from benchmarks._static import Compiler
    from benchmarks._visit import Budget

    if job["device"] == "static":
        return Compiler(package)
    if job["device"] == "access":
        return Counter()
    return (Gpu if job["device"] == "gpu" else Cpu)(cells, Budget(**job["budget"]), job["seed"])


def run(job: dict[str, Any], out: Any) -> None:
    """Measure the job's cells in order, writing events to `out`."""
    from benchmarks._cells import Cell
    from benchmarks._static import Target
    from benchmarks._visit import NotHere

    static = job["device"] == "static"
    cells = [(Target if static else Cell).from_json(values) for values in job["cells"]]
    if not job["package"]:
        _emit(out, event="unavailable", reason="this commit has no package to measure (gpukernels)")
        return
    sys.path.insert(0, job["package"])
    try:
        import gpukernels
    except ModuleNotFoundError as error:
        _emit(out, event="unavailable", reason=f"this commit has no package to measure ({error})")
        return
    needed = ("load", "rung", "LadderError", *(("compile_cuda",) if static else ()))
    if missing := [name for name in needed if not hasattr(gpukernels, name)]:
        _emit(
            out,
            event="unavailable",
            reason=f"this commit's gpukernels lacks {', '.join(missing)}: older than the stick",
        )
        return
    not_here = (NotHere, *(getattr(gpukernels, name, NotHere) for name in ("ToolMissing", "LimitError")))
    if job["device"] == "gpu":
        try:
            import cupy

            cupy.cuda.runtime.getDevice()
        except Exception as error:
            _emit(out, event="unavailable", reason=f"no GPU here: {type(error).__name__}: {error}")
            return
    with _alone(job, out):
        _visit(_device(job, cells, gpukernels), cells, gpukernels, not_here, out)
    _emit(out, event="end")


def _alone(job: dict[str, Any], out: Any) -> AbstractContextManager[None]:
    """The GPU for this process alone, as far as this project's go: others' runs, from any checkout, are waited for."""
    if job["device"] != "gpu":
        return nullcontext()
    import cupy

    from benchmarks._files import locked

    # Where the card sits is who it is, on one machine; its MIG instances are held down by the same limits.
    name = "".join(letter if letter.isalnum() else "-" for letter in cupy.cuda.Device().pci_bus_id)
    folder = os.environ.get("GPUKERNELS_LOCKS") or "/tmp"  # not $TMPDIR, which a user may have of their own
    return locked(Path(folder, f"gpukernels-{name}.lock"), lambda who: _emit(out, event="waiting", who=who))


def _visit(device: Any, cells: list[Any], gpukernels: Any, not_here: tuple[type[Exception], ...], out: Any) -> None:
    """Measure cells in order. A lost context ends the process: what comes next starts in a fresh one."""
    from benchmarks._identity import TIMED

    _emit(out, event="start", facts={TIMED.fact: TIMED.version} | device.facts())
    for cell in cells:
        _emit(out, event="begin", key=cell.key)
        try:
            here, kernel, absent = _load(gpukernels, cell)
            if absent:
                _emit(out, event="cell", key=cell.key, state="na", reason=absent)
            else:
                _emit(out, event="cell", key=cell.key, state="ok", visit=device.measure(here, kernel))
        except not_here as error:
            _emit(out, event="cell", key=cell.key, state="na", reason=str(error))
        except Exception as error:
            _emit(out, event="cell", key=cell.key, state="failed", reason=f"{type(error).__name__}: {error}")
            if "CUDA" in type(error).__name__:
                os._exit(3)  # the context may be lost with everything in it: the next cell starts in a fresh process


if __name__ == "__main__":
    _import_stick()
    if sys.argv[1:] == ["gpu"]:  # imports take a while, and may be done before it is this process's turn
        with suppress(ImportError):
            import cupy  # noqa: F401 (makes no context)
    told = sys.stdin.readline()
    if not told:
        sys.exit()
    given = json.loads(told)
    _die_with_parent()
    # Events have a stream of their own: whatever prints to stdout, a C library too, goes to stderr.
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    run(given, events)
    events.close()
    os._exit(0)  # a daemon thread still reads stdin
