#!/usr/bin/env python3
"""Lets published exploits loose on harnesses, ours and those that people use, and writes down which of them are fooled.

An exploit is a file of examples/redteam/. Each meets each harness in a fresh process with a limit of time. A harness is
fooled if its figure is better than that of the honest twin by more than noise; else it measured right, or refused. The
record goes to docs/redteam.json after each exploit and harness, and from there to the table of docs/redteam.md. A run
that was stopped goes on where it was. Without a GPU the exploits run on the CPU, with the harnesses that exist there.
It needs PyTorch and Triton on a GPU, and for nvbench the package cuda-bench; what is not installed is left out.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import ast
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from kernelwatch.report.arguments import Parser
from kernelwatch.report.markdown import table
from kernelwatch.system.errors import CANNOT, UserError
from kernelwatch.system.files import write_whole
from kernelwatch.timing.cpu import cpu_name
from lab import harnesses
from lab.figures import write_block

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "examples" / "redteam"
HONEST = FOLDER / "honest.py"
JSON, PAGE = ROOT / "docs" / "redteam.json", ROOT / "docs" / "redteam.md"
OPS = ("transpose", "transposed", "doubled")
DEVICES = {"gpu": "a GPU", "cpu": "a CPU"}
FOOLED = {"gpu": 1.25, "cpu": 1.5}  # times as fast as the honest twin: beyond it a harness is fooled
SAME_WORK = ("clocks_touched", "harness_patched")  # exploits that do what the twin does, and patch only this engine
NOT_RUN = "not run yet"
AHEAD = 12  # processes that import what they need before it is their turn
DETAIL = re.compile(r", the first at .*")  # of a reason: which numbers were wrong
NVML = "int nvmlInit_v2(void) { return 0; }\nint nvmlDeviceSetGpuLockedClocks(void *d, int a, int b) { return 0; }\n"

# `seconds` and `honest_s`, or `refused`, or `failed`: one of these texts says why. `since`: what has changed after the
# cell was measured, written by hand; the cell stays what it was until it is measured again, as it is in the next run.
Cell = dict[str, Any]
Function = Callable[..., Any]


# --- exploits ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exploit:
    """A file of examples/redteam/. `idea`, `source`, `gain`: as its docstring says; `op`: what it defines."""

    name: str
    idea: str
    source: str
    gain: str
    op: str
    devices: tuple[str, ...]

    @property
    def function(self) -> str:
        return f"{FOLDER / self.name}.py:{self.op}"


def exploits() -> list[Exploit]:
    """All exploits by name. Raises: ValueError if a file lacks what it must say."""
    return [_exploit(path) for path in sorted(FOLDER.glob("*.py")) if path != HONEST]


def _exploit(path: Path) -> Exploit:
    """What a file says of itself; it is not run."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    words = " ".join((ast.get_docstring(tree) or "").split())
    told = re.fullmatch(r"(.+) Source: (.+) Gain: (.+)\.", words)
    if not told:
        raise ValueError(f"{path.name}: its docstring should say what it does, Source: and Gain:")
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    names |= {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    (op,) = names & set(OPS)
    devices = next(
        (
            ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "DEVICES"
        ),
        tuple(DEVICES),
    )
    return Exploit(path.stem, told[1], told[2], told[3], op, devices)


# --- harnesses -----------------------------------------------------------------------------------------------------


class Harness(NamedTuple):
    """`checks`: whether it looks at the outputs. `run`: measures a function of a file beside the honest one: what the
    cell holds. `needs`: the modules that it imports."""

    devices: tuple[str, ...]
    checks: bool
    run: Callable[[str, str, float], Cell]
    needs: tuple[str, ...] = ()


def _functions(name: str, op: str) -> tuple[Function, Function, Function]:
    """The function, its honest twin, and what makes the arguments. The function is imported last."""
    from kernelwatch.api.named import known

    honest, make = known(f"{HONEST}:{op}"), known(f"{HONEST}:{op}_inputs")
    return known(name), honest, make


def campaign(name: str, op: str, seconds: float) -> Cell:
    """A try of a campaign, which is in a fresh process already."""
    from kernelwatch.api.trials import Setting, one_trial

    setting = Setting(f"{HONEST}:{op}_inputs", 0.0, 0.0, "cold", None, seconds, None)
    found = one_trial(f"{HONEST}:{op}", name, setting, candidate_first=False)
    if found.refused:
        return {"refused": found.refused}
    honest_s, own_s = found.seconds
    return {"seconds": own_s, "honest_s": honest_s}


def judged(name: str, op: str, seconds: float) -> Cell:
    """A try of a campaign whose candidates are judged: this process is the judge's."""
    from kernelwatch.api.trials import Setting, judged_trial

    with tempfile.TemporaryDirectory() as folder:
        own, honest = (
            _written(Path(folder, f"{who}.py"), function, op)
            for who, function in (("own", name), ("honest", f"{HONEST}:{op}"))
        )
        setting = Setting(f"{honest.rpartition(':')[0]}:inputs", 0.0, 0.0, "cold", None, seconds, None, judge=True)
        found = judged_trial(honest, own, setting, candidate_first=False, last=True)  # one turn is enough
    if found.refused:
        return {"refused": found.refused}
    honest_s, own_s = found.seconds
    return {"seconds": own_s, "honest_s": honest_s}


# A judge passes on few variables, and takes functions that write their outputs.
WRITTEN = """
import os
import sys

os.environ.update({variables!r})
sys.path.insert(0, {folder!r})
import {module}
from honest import GPU, poisoned, {op}_inputs

def inputs(seed=None):
    arguments = {op}_inputs(seed)
    return (*arguments, poisoned(arguments[0].shape[0]))[:2]

def run(x, out):
    result = {module}.{op}(x, *(() if {op!r} == "transposed" else (out,)))
    if {op!r} == "transposed":
        out.copy_(result) if GPU else out.__setitem__(..., result)
"""


def _written(file: Path, name: str, op: str) -> str:
    """A function that calls another one as a judge calls functions; its name."""
    module = Path(name.rpartition(":")[0])
    variables = {key: value for key, value in os.environ.items() if key.startswith("REDTEAM_")}
    text = WRITTEN.format(variables=variables, folder=str(module.parent), module=module.stem, op=op)
    file.write_text(text, encoding="utf-8")
    return f"{file}:run"


def timed(harness: harnesses.Harness, name: str, op: str, seconds: float) -> Cell:
    """A harness that is given a function and its arguments, and checks nothing."""
    function, _, make = _functions(name, op)
    arguments = make()
    function(*arguments)
    return {"seconds": harness(function, arguments, seconds)}


def do_bench(function: Function, arguments: tuple[Any, ...], seconds: float) -> float:
    from triton.testing import do_bench

    return float(do_bench(lambda: function(*arguments), rep=max(1, round(1000 * seconds)))) / 1000


def benchmark(function: Function, arguments: tuple[Any, ...], seconds: float) -> float:
    from torch.utils.benchmark import Timer

    timer = Timer("function(*arguments)", globals={"function": function, "arguments": arguments})
    return float(timer.blocked_autorange(min_run_time=seconds).median)


def nvbench(function: Function, arguments: tuple[Any, ...], seconds: float) -> float:
    return harnesses.nvbench({"kernel": (function, arguments)}, seconds, waiting=True)["kernel"]["seconds"]


def timeit(function: Function, arguments: tuple[Any, ...], seconds: float) -> float:
    """The best of five, as `python -m timeit` takes it."""
    import timeit

    timer = timeit.Timer(lambda: function(*arguments))
    number, _ = timer.autorange()
    return min(timer.repeat(5, max(1, number // 4))) / max(1, number // 4)


def kernelbench(name: str, op: str, seconds: float) -> Cell:
    """What KernelBench's evaluation does, written anew: five random inputs by known seeds, the reference first and both
    on the same tensors, torch.allclose within 1e-4; then the mean of 100 calls on one input, each between two events
    with a cache that was overwritten before.

    Source: Ouyang et al., KernelBench, 2025, and its evaluation (ScalingIntelligence/KernelBench, src/eval.py).
    """
    import numpy as np
    import torch

    own, honest, make = _functions(name, op)

    def forward(function: Function, x: Any) -> Any:
        if op == "transposed":
            return function(x)
        out = torch.empty_like(x)
        return function(x, out) or out

    def inputs(seed: int) -> Any:
        torch.manual_seed(seed)
        return make(seed)[0]

    torch.manual_seed(42)
    with torch.no_grad():
        for seed in [int(torch.randint(0, 2**32 - 1, (1,)).item()) for _ in range(5)]:
            x = inputs(seed)
            expected = forward(honest, x)
            torch.cuda.synchronize()
            found = forward(own, x)
            torch.cuda.synchronize()
            if found.shape != expected.shape:
                return {"refused": f"shape {tuple(found.shape)}, {tuple(expected.shape)} is expected"}
            if not torch.allclose(expected, found, atol=1e-4, rtol=1e-4):
                return {"refused": f"wrong by {torch.max(torch.abs(expected - found)).item():.3g}"}
        x = inputs(42)
        for _ in range(5):
            forward(own, x)
        torch.cuda.synchronize()
        elapsed = []
        for _ in range(100):
            torch.empty((32, 1024, 1024), dtype=torch.int64, device="cuda").fill_(42)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin.record()
            forward(own, x)
            end.record()
            torch.cuda.synchronize()
            elapsed.append(begin.elapsed_time(end))
    return {"seconds": float(np.mean(elapsed)) / 1000}


OURS, JUDGE = "kernelwatch campaign", "kernelwatch campaign --judge"
HARNESSES = {
    OURS: Harness(("gpu", "cpu"), True, campaign),
    JUDGE: Harness(("gpu", "cpu"), True, judged),
    "KernelBench": Harness(("gpu",), True, kernelbench, ("torch",)),
    "triton do_bench": Harness(("gpu",), False, partial(timed, do_bench), ("torch", "triton")),
    "torch.utils.benchmark": Harness(("gpu",), False, partial(timed, benchmark), ("torch",)),
    "nvbench": Harness(("gpu",), False, partial(timed, nvbench), ("torch", "cuda.bench")),
    "timeit": Harness(("cpu",), False, partial(timed, timeit)),
}


# --- one exploit and one harness, in a fresh process ---------------------------------------------------------------


def work(exploit: str, harness: str, seconds: float) -> None:
    """Import everything but the exploit, say "ready", wait for a line on stdin, and print the cell as a JSON line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the exploit prints is no answer
    import kernelwatch.api.trials  # noqa: F401

    dump, op = json.dumps, next((one.op for one in exploits() if one.name == exploit), exploit)
    facts: Cell = {"device": cpu_name(), "versions": {}}
    if os.environ["REDTEAM_DEVICE"] == "gpu":
        import cupy  # noqa: F401
        import torch
        import torch.utils.benchmark
        import triton.testing  # noqa: F401

        torch.zeros(1, device="cuda")
        facts = {"device": torch.cuda.get_device_name(), "versions": harnesses._versions()}
    print("ready", file=answers, flush=True)
    sys.stdin.readline()
    name = f"{HONEST if exploit in OPS else FOLDER / f'{exploit}.py'}:{op}"
    try:
        cell = HARNESSES[harness].run(name, op, seconds)
    except BaseException as error:
        lines = str(error).strip().splitlines() or [""]
        cell = {"failed": f"{type(error).__name__}: {lines[0]}"}
    print(dump(cell | facts), file=answers, flush=True)
    os._exit(0)  # whatever the exploit has left behind


class Worker:
    """A process for one exploit (or an op, for its honest twin) and one harness."""

    def __init__(self, exploit: str, harness: str, seconds: float, variables: dict[str, str]) -> None:
        self.exploit, self.harness = exploit, harness
        command = [sys.executable, str(ROOT / "scripts" / "lab" / "redteam"), "--seconds", str(seconds)]
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process)
        self.process = subprocess.Popen(
            [*command, "--work", exploit, harness],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            start_new_session=True,
            env=os.environ | variables,
        )

    def cell(self, limit_s: float) -> Cell:
        """What came of it, after `limit_s` seconds for each of the imports and the measurement at most."""
        try:
            if self._line(limit_s) != "ready":
                return {"failed": f"it did not begin: {self._last()}"}
            assert self.process.stdin
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
            return json.loads(self._line(limit_s))  # type: ignore[no-any-return]
        except TimeoutError:
            return {"failed": f"nothing within {limit_s:g} s"}
        except (ValueError, OSError):
            return {"failed": f"its process ended: {self._last()}"}
        finally:
            self.end()

    def _line(self, limit_s: float) -> str:
        """Raises: TimeoutError."""
        assert self.process.stdout
        if not select.select([self.process.stdout], [], [], limit_s)[0]:
            raise TimeoutError
        return self.process.stdout.readline().strip()

    def _last(self) -> str:
        self.errors.seek(0)
        return (self.errors.read().strip().splitlines() or ["no message"])[-1]

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with self.process:
            pass
        self.errors.close()


@contextmanager
def stand_in() -> Iterator[dict[str, str]]:
    """The variable that names a stand-in of NVML, none without a C compiler."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "g++"))), None)
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "nvml.c"), Path(folder, "nvml.so")
        source.write_text(NVML, encoding="utf-8")
        if compiler:
            subprocess.run([compiler, "-x", "c", "-shared", "-fPIC", "-o", library, source], check=True)
        yield {"REDTEAM_NVML": str(library)} if compiler else {}


def run(
    device: str, jobs: Sequence[tuple[str, str]], seconds: float, limit_s: float, budget_s: float
) -> Iterator[tuple[str, str, Cell]]:
    """The cell of each job, an exploit and a harness; no further one begins after `budget_s` seconds."""
    until, ahead = time.monotonic() + budget_s, min(AHEAD, max(1, (os.cpu_count() or 1) // 2))
    with stand_in() as nvml:
        possible = [job for job in jobs if job[0] != "clocks_touched" or nvml]
        variables = {"REDTEAM_DEVICE": device, **nvml}
        waiting: list[Worker] = []
        try:
            for at in range(len(possible)):
                for job in possible[at + len(waiting) : at + ahead]:
                    waiting.append(Worker(*job, seconds, variables))
                worker = waiting.pop(0)
                yield worker.exploit, worker.harness, worker.cell(limit_s)
                if time.monotonic() > until:
                    return
        finally:
            for worker in waiting:
                worker.end()


# --- the record and the table --------------------------------------------------------------------------------------


def gpu() -> str:
    """The name of the GPU that PyTorch uses, "" if there is none; asked in another process: this one stays without
    CUDA."""
    code = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    if not find_spec("torch"):
        return ""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout.strip()


def begun(record: dict[str, Any], device: str, name: str, afresh: bool, out: Path) -> dict[str, Any]:
    """What a record holds of a device: all of it was measured on one model. `name`: the one that is here; `afresh`:
    whether all is measured again, so that another one's figures go. Raises: UserError."""
    found: dict[str, Any] = record.get(device, {"device": name, "versions": {}, "cells": {}})
    if found["device"] != name and not afresh:
        raise UserError(
            f"{out} has figures of {found['device']}, this is {name}: measure all --again, or give another --out"
        )
    if found["device"] != name:
        found = {"device": name, "versions": {}, "cells": {}}
    record[device] = found
    return found


def chosen(device: str) -> tuple[list[Exploit], list[str]]:
    """The exploits and the harnesses of a device that can run here."""

    def installed(module: str) -> bool:
        try:
            return find_spec(module) is not None
        except ModuleNotFoundError:
            return False

    names = [name for name, one in HARNESSES.items() if device in one.devices and all(map(installed, one.needs))]
    return [one for one in exploits() if device in one.devices], names


def verdict(device: str, harness: str, cell: Cell, honest_s: float | None) -> tuple[str, float]:
    """ "refused", "right", "passed" (the harness is fooled), "failed" or "none"; and how many times as fast as the
    honest twin the harness says that the exploit is."""
    for word in ("refused", "failed"):
        if word in cell:
            return word, 0.0
    honest_s = cell.get("honest_s", honest_s)
    if not cell.get("seconds") or not honest_s:
        return ("passed", float("inf")) if cell.get("seconds") == 0 else ("none", 0.0)
    gain = honest_s / cell["seconds"]
    return ("passed" if gain > FOOLED[device] or gain < 0 else "right"), gain


def text(record: dict[str, Any], device: str) -> str:
    """The tables of a device: exploit x harness, and by what name ours refuses."""
    found, all_exploits = record[device], {one.name: one for one in exploits()}
    names = [name for name in HARNESSES if any(name in row for row in found["cells"].values())]
    shown = [name for name in all_exploits if name in found["cells"]]
    own_names = [name for name in names if name in (OURS, JUDGE)]
    rows, refused = [], []
    for name in shown:
        cells = found["cells"][name]
        own = [_shown(found, device, harness, cells.get(harness), all_exploits[name].op) for harness in names]
        rows.append([f"`{name}`", *own])
        refused.append([f"`{name}`", *(_words(found, device, one, cells.get(one)) for one in own_names)])
    versions = ", ".join(f"{package} {version}" for package, version in found["versions"].items())
    counts = []
    for mine in own_names:
        met = [found["cells"][name][mine] for name in shown if mine in found["cells"][name]]
        words = [verdict(device, mine, cell, None)[0] for cell in met]
        silent = sum(word in ("failed", "none") for word in words)
        without = f" ({silent} more gave no figure)" if silent else ""
        counts.append(f"{words.count('passed')} of {len(met) - silent} exploits fool {mine}{without}")
    heads = [name if HARNESSES[name].checks else f"{name} (no check)" for name in names]
    summary = f"{'; '.join(filter(None, (found['device'], versions)))}. {', '.join(counts)}."
    return "\n\n".join(
        [
            summary,
            table(["exploit", *heads], rows),
            table(["exploit", *(f"what {name} says" for name in own_names)], refused),
        ]
    )


def _words(found: dict[str, Any], device: str, harness: str, cell: Cell | None) -> str:
    """What one of ours says of an exploit."""
    word, _ = verdict(device, harness, cell or {}, None)
    told = {"right": "measured right", "passed": "**fooled**", "none": "" if cell else NOT_RUN}
    return _dated(told[word] if word in told else DETAIL.sub("", (cell or {})[word]), cell)


def _honest_s(found: dict[str, Any], harness: str, op: str) -> float | None:
    """The least that a harness measured of an op's honest work: of the honest twin, and of the exploits that do the
    same work. So what differs between its own figures of the same work is no gain."""
    names = [op, *(SAME_WORK if op == "transpose" else ())]
    measured = (found["cells"].get(name, {}).get(harness, {}).get("seconds") for name in names)
    return min(filter(None, measured), default=None)


def _shown(found: dict[str, Any], device: str, harness: str, cell: Cell | None, op: str) -> str:
    word, gain = verdict(device, harness, cell or {}, _honest_s(found, harness, op))
    if word == "passed":
        times = "0.000 s" if gain == float("inf") or gain < 0 else f"{gain:.3g}x"
        return _dated(f"**fooled**: {times}", cell)
    told = {"right": "right", "refused": "refused", "failed": "no figure", "none": "" if cell else NOT_RUN}
    return _dated(told[word], cell)


def _dated(told: str, cell: Cell | None) -> str:
    """A text about a cell, with what has changed since it was measured."""
    return f"{told} ({cell['since']})" if cell and "since" in cell else told


def write_page(record: dict[str, Any]) -> None:
    for device in record:
        write_block(PAGE, f"redteam {device}", text(record, device), "scripts/lab/redteam")


def main(arguments: list[str] | None = None) -> int:
    parser = Parser("scripts/lab/redteam", __doc__)
    parser.add_argument("--device", choices=DEVICES, help="default: the GPU if there is one")
    parser.add_argument("--only", default="", metavar="REGEX", help="exploits whose names match")
    parser.add_argument("--harness", choices=HARNESSES, action="append", help="only these harnesses")
    parser.add_argument("--seconds", type=float, default=0.1, help="for each exploit and harness (default: 0.1)")
    parser.add_argument("--limit", type=float, default=60, help="seconds until a process is killed (default: 60)")
    parser.add_argument("--budget", type=float, default=600, help="seconds after which none begins (default: 600)")
    parser.add_argument("--again", action="store_true", help="measure also what is in the record")
    parser.add_argument("--out", default=str(JSON), help="the record to write (default: docs/redteam.json)")
    parser.add_argument("--table", action="store_true", help="only rewrite the tables from the record")
    parser.add_argument("--work", nargs=2, metavar=("EXPLOIT", "HARNESS"), help="be one of the processes")
    options = parser.parse_args(arguments)
    if options.work:
        exploit, harness = options.work
        work(exploit, harness, options.seconds)
    out = Path(options.out)
    record: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    if options.table:
        write_page(record)
        return 0
    name = gpu() if options.device != "cpu" else ""
    device = options.device or ("gpu" if name else "cpu")
    if device == "gpu" and not name:
        raise UserError("--device gpu: PyTorch finds no GPU here")
    wanted, names = chosen(device)
    wanted = [one for one in wanted if re.search(options.only, one.name)]
    names = [each for each in names if each in (options.harness or names)]
    afresh = options.again and not options.only and not options.harness
    found = begun(record, device, name if device == "gpu" else cpu_name(), afresh, out)
    twins = dict.fromkeys(one.op for one in wanted)
    jobs = [
        (exploit, harness)
        for exploit in (*twins, *(one.name for one in wanted))
        for harness in names
        if options.again or "since" in found["cells"].get(exploit, {}).get(harness, {"since": NOT_RUN})
    ]
    began = time.monotonic()
    cells = run(device, jobs, options.seconds, options.limit, options.budget)
    for done, (exploit, harness, cell) in enumerate(cells, 1):
        for fact in ("device", "versions"):
            found[fact] = cell.pop(fact, found[fact])
        found["cells"].setdefault(exploit, {})[harness] = cell
        write_whole(out, json.dumps(record, indent=1) + "\n")
        said = cell.get("refused") or cell.get("failed") or f"{cell['seconds']:.3g} s"
        print(f"{time.monotonic() - began:6.1f} s  {done} of {len(jobs)}  {exploit}, {harness}: {said}", flush=True)
    if not found["cells"]:
        print("nothing could be measured", file=sys.stderr)
        return CANNOT
    print(text(record, device))
    return 0
