#!/usr/bin/env python3
"""Holds `load(op, "best")` against CuPy, PyTorch and cuBLAS at shapes that a seed draws.

At each shape `best` and the others take turns in one process, on cold memory, after their outputs were checked. The
record goes to docs/shapes.jsonl, a line for each shape, and from there to the table of docs/matmul.md. With --train it
times the rungs that `best` may take instead, and the record goes to results/, from which scripts/lab/best learns. That
record keeps each shape that is not measured anew. A run that was stopped goes on with --resume; --table writes the
table. With --device cpu it tries itself: a rung for the CPU stands in for `best`, and nothing is recorded without
--out.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import faulthandler
import hashlib
import importlib
import json
import math
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import gpukernels
from benchmarks.project import PROJECT
from gpukernels import best, ladder
from kernelwatch.api.measuring import timer_of
from kernelwatch.api.result import MeasureError
from kernelwatch.api.rounds import Round, Subject, Timer
from kernelwatch.api.statistics import LEVEL, level, log_ratios
from kernelwatch.asv.machine_names import machine_name
from kernelwatch.comparison.paired import interval
from kernelwatch.plan.problem import Array, label
from kernelwatch.report.arguments import Parser, regular_expression
from kernelwatch.report.markdown import table
from kernelwatch.report.texts import percent, time_text
from kernelwatch.system.errors import CANNOT, UserError
from kernelwatch.system.files import write_whole
from lab import shapes_cells
from lab.ahead import compile_ahead
from lab.figures import write_block
from lab.shapes_cells import STEPS, Binder, Drawn, draw

ROOT = Path(__file__).resolve().parent.parent.parent
RECORD, PAGE = ROOT / "docs" / "shapes.jsonl", ROOT / "docs" / "matmul.md"
TRAINED = "shapes.jsonl"  # in a machine's folder of results/
WRITER = "scripts/lab/shapes"
SHAPES, BUDGET_S = 200, 330.0
DRAWN_MOST = 100_000  # shapes among which those of --only are sought
SHARE = 0.99  # of the rate of the fastest of the others, that `best` is to have at least
TURNS_LEAST, TURNS_MOST = 3, 9
TURNS_OF_TRAINING, SETS_OF_TRAINING = 3, 128  # of operands, which are bound anew in each turn for each rung
NEAR = 1.25  # times the fastest: a rung that never came so near is not trained
SLOW = 1.5  # times the fastest: such a rung is left out of the training from the second turn on
HANGING_S = 120.0  # of a shape, after which the process ends: a kernel that hangs cannot be left otherwise
DRAWN_BY = ("seed", "steps")
VERSIONS = ("driver", "cuda_runtime", "cupy")  # conditions under which lines of one record were measured
CPU_MOST = 256  # of a matrix's side on a CPU


# --- rungs ---------------------------------------------------------------------------------------------------------


def contending(op: str, type: str, capability: int) -> list[str]:
    """The rungs that `best` may take and that came NEAR the fastest at some recorded shape of some type."""
    tables = [entry.get(op, {}) for entry in best.measured().values()]
    recorded = [by_rung for of_op in tables for by_shape in of_op.values() for by_rung in by_shape.values()]
    near = {name for by_rung in recorded for name, relative in by_rung.items() if relative < NEAR}
    return [rung.name for rung in ladder.op(op).rungs if best.fits(rung, type, capability) and rung.name in near]


# --- one shape -----------------------------------------------------------------------------------------------------


def raw(array: Array) -> Array:
    """The bytes of a contiguous array."""
    return array.reshape(-1).view(np.uint8)


def views(one: Drawn, flat: Sequence[Array]) -> list[Array]:
    """The operands of a shape in pieces of memory."""
    return [each.view(dtype).reshape(shape) for each, (shape, dtype) in zip(flat, one.operands(), strict=True)]


def bound(binder: Binder, operands: Sequence[Array]) -> Callable[[], object]:
    return binder(*operands[:-1], out=operands[-1])


def wrong(one: Drawn, binders: Mapping[str, Binder], xp: Any, seed: int) -> dict[str, str]:
    """What each binder's output has wrong, on numbers of which the result is exact; those whose output is right are
    left out. An exception is such a reason, too."""
    rng = xp.random.default_rng(seed)
    *wanted, (out_shape, out_dtype) = one.operands()
    inputs = [
        shapes_cells.numbers(shape, dtype, bits, rng, xp)
        for (shape, dtype), bits in zip(wanted, shapes_cells.exact_bits(one), strict=False)
    ]
    expected = shapes_cells.rounded(PROJECT.op(one.op).computation.reference(*inputs), out_dtype)
    memory = xp.empty(math.prod(out_shape) * out_dtype.itemsize, np.uint8)  # CuPy makes no bfloat16, but views it
    out, reasons = memory.view(out_dtype).reshape(out_shape), {}
    for name, binder in binders.items():
        memory[...] = 0xFF  # NaN, if the type has one
        try:
            bound(binder, [*inputs, out])()
            count = int((shapes_cells.comparable(out) != expected).sum())  # waits for the call
        except Exception as error:
            reasons[name] = told(error)
            continue
        if count:
            reasons[name] = f"{count} of {out.size} elements are wrong"
    return reasons


def told(error: BaseException) -> str:
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}"


def _call(launch: Callable[[], object]) -> None:
    launch()


def take(
    timer: Timer, one: Drawn, binders: dict[str, Binder], seed: int, seconds: float, training: bool
) -> tuple[dict[str, list[Round]], dict[str, Subject], dict[str, str], list[str]]:
    """Rounds of each binder in turns, forth and back, on the same copies of random operands; what was timed; why others
    were not; and warnings. It ends when `seconds` are over, if there are turns enough."""
    until, rng = time.monotonic() + seconds, timer.xp.random.default_rng(seed)
    originals = [raw(shapes_cells.numbers(*each, None, rng, timer.xp)) for each in one.operands()]
    rotation = timer.rotation(originals, "cold")
    rounds: dict[str, list[Round]] = {}
    subjects: dict[str, Subject] = {}
    failed: dict[str, str] = {}
    count = SETS_OF_TRAINING if training else None
    sets = [views(one, each) for each in rotation.fresh()[:count]]
    for name, binder in binders.items():
        try:
            subjects[name] = timer.subject(name, _call, (bound(binder, sets[0]),))
            rounds[name] = []
        except Exception as error:
            failed[name] = told(error)
    least, most = (TURNS_OF_TRAINING,) * 2 if training else (TURNS_LEAST, TURNS_MOST)
    for turn in range(most):
        if turn >= least and time.monotonic() > until:
            break
        if timer.renews and turn:
            sets = []  # the memory of the turn before is free when that of this one is taken
            sets = [views(one, each) for each in rotation.fresh()[:count]]
        names = [name for name in subjects if name not in failed]
        for name in names if turn % 2 == 0 else reversed(names):
            try:
                launches = [(bound(binders[name], each),) for each in sets]
                rounds[name].append(subjects[name].round(launches))
            except Exception as error:
                failed[name] = told(error)
        if training and turn == 0 and rounds:
            first = {name: own[0].seconds for name, own in rounds.items() if own}
            failed |= {
                name: f"slower than {SLOW:g} times the fastest"
                for name, value in first.items()
                if value > SLOW * min(first.values())
            }
    taken = {name: own for name, own in rounds.items() if name not in failed}
    return taken, subjects, failed, rotation.warnings


def figures(rounds: Sequence[Round], subject: Subject) -> dict[str, Any]:
    """What the record has of one function."""
    samples = [one.seconds for one in rounds]
    seconds, bounds = level(samples)
    clocks = [one.clock_mhz for one in rounds if one.clock_mhz]
    return {
        "seconds": seconds,
        "interval": bounds if math.isfinite(bounds[1]) else None,
        "samples": samples,
        "method": subject.method,
        "clock_mhz": statistics.median(clocks) if clocks else None,
        "limits": sorted({limit for one in rounds for limit in one.limits}),
    }


def compared(own: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The seconds of `best` over those of the fastest of the others, by the turns, and the 95 % interval."""
    fastest = min(others, key=lambda name: others[name]["seconds"])
    found = interval(log_ratios(others[fastest]["samples"], own["samples"]), LEVEL)
    low, high = (math.exp(min(found.middle + sign * found.half, 700)) for sign in (-1, 1))
    return {"fastest": fastest, "ratio": math.exp(found.middle), "interval": [low, high]}


def kernels() -> str:
    """The digest of what `best` chooses from, and by: every text of the package."""
    folder = Path(gpukernels.__file__).parent
    texts = sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    named = (f"{path.relative_to(folder)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}" for path in texts)
    return hashlib.sha256("\n".join(named).encode()).hexdigest()[:16]


class Shapes:
    """Takes one shape after the other on a device. `training`: the rungs that `best` may take, not `best` itself."""

    def __init__(self, device: str, seed: int, training: bool, steps: Sequence[int] = STEPS) -> None:
        self.device, self.seed, self.training = device, seed, training
        self.facts: dict[str, Any] = {"seed": seed, "date": datetime.now(UTC).date().isoformat(), "kernels": kernels()}
        if tuple(steps) != STEPS:
            self.facts["steps"] = list(steps)
        if device == "gpu" and not training:
            with suppress(ImportError):  # before the timer makes its stream PyTorch's, too
                importlib.import_module("torch")
                self.facts["torch"] = metadata.version("torch")
        self.timer = timer_of((), device)
        self.capability = shapes_cells.CAPABILITY
        if device == "gpu":
            self.capability = int(self.timer.xp.cuda.Device().compute_capability)
        self.loaded: dict[tuple[str, str, str], Binder | str] = {}  # or why there is none

    def kept(self, lines: Iterable[dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """By number, the lines of a record that were measured with this seed and these kernels on such a GPU. An error
        has no device, so its shape is measured again."""
        now = self.timer.conditions()

        def same(line: Mapping[str, Any]) -> bool:
            then = line.get("conditions", {})
            return (
                line.get("device") == self.timer.name
                and self.drew(line)
                and all(line.get(name) == self.facts.get(name) for name in ("kernels", "torch"))
                and all(then.get(name) == now.get(name) for name in VERSIONS)
            )

        return {line["number"]: line for line in lines if same(line)}

    def drew(self, line: Mapping[str, Any]) -> bool:
        """Whether this seed and these steps drew the shape of a line."""
        return all(line.get(name) == self.facts.get(name) for name in DRAWN_BY)

    def chosen(self, one: Drawn) -> str:
        """The rung that `best` takes first."""
        if self.device == "cpu":
            return "c_openmp"
        return next(best.candidates(one.op, one.type, one.extents, self.timer.name, self.capability))

    def names(self, one: Drawn) -> list[str]:
        """The rungs that are loaded for a shape."""
        if self.training and self.device == "gpu":
            return contending(one.op, one.type, self.capability)
        return [self.chosen(one)]

    def binders(self, one: Drawn) -> tuple[dict[str, Binder], dict[str, str]]:
        """What is timed at a shape, `best` first, and why others are not."""
        makers: dict[str, Callable[[], Binder]] = {}
        if self.training:
            for name in self.names(one):
                makers[name] = lambda name=name: shapes_cells.binder(one.op, name, one.type)  # type: ignore[misc]
        else:
            own = "best" if self.device == "gpu" else self.chosen(one)
            makers["best"] = lambda: shapes_cells.binder(one.op, own, one.type)
            makers |= shapes_cells.vendors(one.op, one.type, self.device)
        for name, make in makers.items():
            if (key := (one.op, one.type, name)) not in self.loaded:
                try:
                    self.loaded[key] = make()
                except Exception as error:
                    self.loaded[key] = told(error)
        own_keys = {name: self.loaded[one.op, one.type, name] for name in makers}
        binders = {name: made for name, made in own_keys.items() if not isinstance(made, str)}
        return binders, {name: made for name, made in own_keys.items() if isinstance(made, str)}

    def take(self, one: Drawn, seconds: float) -> dict[str, Any]:
        """The line of the record of a shape."""
        line: dict[str, Any] = {"number": one.number, "op": one.op, "type": one.type, "shape": list(one.shape)}
        line |= {"kind": one.kind, **self.facts}
        began = time.monotonic()
        try:
            line |= self._figures(one, seconds)
        except Exception as error:
            line["error"] = told(error)
        if self.device == "gpu":
            with suppress(Exception):  # after an error of the device it fails, too
                self.timer.xp.get_default_memory_pool().free_all_blocks()
        return line | {"took_s": round(time.monotonic() - began, 3)}

    def _figures(self, one: Drawn, seconds: float) -> dict[str, Any]:
        random = self.seed * DRAWN_MOST + one.number  # of the operands
        with self.timer.current():
            binders, reasons = self.binders(one)
            if not self.training:
                if "best" in reasons:
                    raise UserError(f"best: {reasons['best']}")
                reasons |= wrong(one, binders, self.timer.xp, random)
                if "best" in reasons:
                    raise UserError(f"best ({self.chosen(one)}): {reasons['best']}")
            right = {name: binder for name, binder in binders.items() if name not in reasons}
            rounds, subjects, failed, warnings = take(self.timer, one, right, random, seconds, self.training)
            conditions = {key: value for key, value in self.timer.conditions().items() if value is not None}
        if not self.training and "best" in failed:
            raise UserError(f"best ({self.chosen(one)}): {failed['best']}")
        timed = {name: figures(own, subjects[name]) for name, own in rounds.items()}
        notes = {"failed": reasons | failed, "warnings": warnings, "device": self.timer.name, "conditions": conditions}
        if self.training:
            return {"rungs": {name: each["seconds"] for name, each in timed.items()}, **notes}
        own = timed.pop("best")
        if not timed:
            raise UserError(f"nothing to compare with: {notes['failed']}")
        return {"rung": self.chosen(one), "best": own, "others": timed, **compared(own, timed), **notes}


def run(shapes: Shapes, drawn: Sequence[Drawn], budget_s: float) -> Iterator[dict[str, Any]]:
    """The lines of the record, one after the other. No shape is begun when the budget is over; until then, each gets
    its share of what is left."""
    until = time.monotonic() + budget_s
    if shapes.device == "gpu":
        wanted = dict.fromkeys((one.op, name, one.type) for one in drawn for name in shapes.names(one))
        compile_ahead(wanted, f"sm_{shapes.capability}")
        print(f"{budget_s - (until - time.monotonic()):6.1f} s  {len(wanted)} rungs are compiled", flush=True)
    for at, one in enumerate(drawn):
        left_s = until - time.monotonic()
        if left_s <= 0:
            print(f"{budget_s:g} s are over: {len(drawn) - at} shapes are not begun", file=sys.stderr, flush=True)
            return
        if shapes.device == "gpu":
            faulthandler.dump_traceback_later(HANGING_S, exit=True)
        line = shapes.take(one, left_s / (len(drawn) - at))
        if shapes.device == "gpu":
            faulthandler.cancel_dump_traceback_later()
        print(f"{budget_s - (until - time.monotonic()):6.1f} s  {one.key}: {summary(line)}", flush=True)
        yield line


def summary(line: Mapping[str, Any]) -> str:
    """A line of the record in some words."""
    if "error" in line:
        return str(line["error"])
    if "rungs" in line:
        ranked = sorted(line["rungs"], key=line["rungs"].get)
        return ", ".join(f"{name} {time_text(line['rungs'][name])}" for name in ranked[:3])
    own = f"{line['rung']} {time_text(line['best']['seconds'])}"
    return f"{own}, {line['fastest']} {time_text(line['others'][line['fastest']]['seconds'])}: {line['ratio']:.3f}"


# --- the table -----------------------------------------------------------------------------------------------------


def loses(line: Mapping[str, Any]) -> bool:
    """Whether `best` is slower than SHARE of the fastest of the others, beyond the noise."""
    return bool(line["interval"][0] > 1 / SHARE)


def text(lines: Sequence[Mapping[str, Any]]) -> str:
    """The tables of a record: by op and type, and where `best` loses."""
    measured = [line for line in lines if "error" not in line]
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for line in measured:
        groups.setdefault((line["op"], line["type"]), []).append(line)
    rows = []
    for (op, type), own in groups.items():
        ratios = [line["ratio"] for line in own]
        others = sorted({name for line in own for name in line["others"]})
        held = sum(ratio <= 1 / SHARE for ratio in ratios)
        ratio_texts = [f"{value:.3f}" for value in (statistics.median(ratios), min(ratios), max(ratios))]
        lost = sum(map(loses, own))
        rows.append(
            [f"{op} {type}", ", ".join(others), str(len(own)), percent(held / len(own), 0), *ratio_texts, str(lost)]
        )
    header = ["", "held against", "shapes", f"at {percent(SHARE, 0)} or more", "median", "best", "worst", "loses"]
    parts = [
        f"{_who(lines)} A ratio is the time of `best` over that of the fastest of the others; below 1: faster.",
        table(header, rows),
    ]
    lost_lines = sorted(filter(loses, measured), key=lambda line: -line["ratio"])
    if lost_lines:
        parts.append(f"Where `best` loses, beyond the noise ({len(lost_lines)} of {len(measured)} shapes):")
        parts.append(table(["shape", "rung", "its time", "fastest", "its time", "ratio"], list(map(_lost, lost_lines))))
    else:
        parts.append(f"`best` loses at none of the {len(measured)} shapes beyond the noise.")
    if errors := [line for line in lines if "error" in line]:
        cells = [[f"{line['op']} {line['type']} {label(tuple(line['shape']))}", line["error"]] for line in errors]
        parts += [f"Not measured ({len(errors)} shapes):", table(["shape", "why"], cells)]
    return "\n\n".join(parts)


def _lost(line: Mapping[str, Any]) -> list[str]:
    low, high = line["interval"]
    return [
        f"{line['op']} {line['type']} {label(tuple(line['shape']))}",
        line["rung"],
        time_text(line["best"]["seconds"]),
        line["fastest"],
        time_text(line["others"][line["fastest"]]["seconds"]),
        f"{line['ratio']:.3f} ({low:.3f} to {high:.3f})",
    ]


def _who(lines: Sequence[Mapping[str, Any]]) -> str:
    """The device, the versions and the seed of a record."""
    nothing: Mapping[str, Any] = {"device": "no device", "conditions": {}}
    one = next((line for line in lines if "conditions" in line), nothing)
    conditions = one["conditions"]
    versions = {name: conditions.get(key) for name, key in (("driver", "driver"), ("CuPy", "cupy"))}
    told_versions = "".join(f", {name} {version}" for name, version in versions.items() if version)
    torch = f", PyTorch {lines[0]['torch']}" if lines[0].get("torch") else ""
    return f"{one['device']}{told_versions}{torch}, {lines[0]['date']}; {len(lines)} shapes of seed {lines[0]['seed']}."


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a record."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def chosen(
    seed: int, count: int, only: str, device: str, training: bool = False, steps: Sequence[int] = STEPS
) -> list[Drawn]:
    """The first `count` shapes of a seed and steps whose key a regular expression is found in. `training`: without
    those that have but one rung."""
    wanted, found = re.compile(only), list[Drawn]()
    for number in range(DRAWN_MOST):
        one = draw(seed, number, device, CPU_MOST if device == "cpu" else shapes_cells.SIDES[1], steps)
        if wanted.search(one.key) and not (training and len(contending(one.op, one.type, shapes_cells.CAPABILITY)) < 2):
            found.append(one)
        if len(found) == count:
            break
    return found


def main(arguments: list[str] | None = None) -> int:
    """Measure and record, or rewrite the table; the exit code: 2 if a shape could not be measured."""
    parser = Parser("scripts/lab/shapes", __doc__)
    parser.add_argument("--seed", type=int, help="what draws the shapes (default: 1; with --train 2)")
    parser.add_argument("--shapes", type=int, default=SHAPES, help=f"how many are drawn (default: {SHAPES})")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help=f"seconds of it all (default: {BUDGET_S:g})")
    parser.add_argument(
        "--only", type=regular_expression, default="", help='of "op type shape", such as "matmul .*32 "'
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="keep the shapes that the record has of this seed, of the same kernels and the same GPU",
    )
    parser.add_argument("--train", action="store_true", help="time the rungs that best may take, for scripts/lab/best")
    parser.add_argument(
        "--steps",
        type=int,
        nargs="+",
        default=STEPS,
        metavar="STEP",
        help=f"each shape has sides that are multiples of one of these (default: {' '.join(map(str, STEPS))})",
    )
    parser.add_argument("--out", help="the record to write (default: docs/shapes.jsonl; with --train in results/)")
    parser.add_argument("--table", action="store_true", help="only rewrite the table from the record")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu", help="cpu: only to try this program")
    options = parser.parse_args(arguments)
    if min(options.steps) < 1:
        parser.error(f"--steps takes numbers of at least 1, got {min(options.steps)}")
    if options.table:
        write_block(PAGE, "best", text(read(Path(options.out or RECORD))), WRITER)
        return 0
    if options.only and options.device == "gpu" and not (options.train or options.out):
        parser.error(f"--only would leave no other shapes in {RECORD.relative_to(ROOT)}: say where to by --out")
    seed = options.seed if options.seed is not None else 2 if options.train else 1
    out = Path(options.out) if options.out else None
    if out is None and options.device == "gpu":
        out = PROJECT.results / machine_name() / TRAINED if options.train else RECORD
    try:
        shapes = Shapes(options.device, seed, options.train, options.steps)
    except MeasureError as error:
        raise UserError(str(error)) from None
    drawn = chosen(seed, options.shapes, options.only, options.device, options.train, options.steps)
    before = read(out) if out and out.exists() else []
    kept = before if options.train else []
    others = [line for line in kept if not shapes.drew(line)]
    own = {line["number"]: line for line in kept if shapes.drew(line)}  # until a shape is measured anew
    known = shapes.kept(before) if options.resume else {}
    by_number = {one.number: known[one.number] for one in drawn if one.number in known}
    for line in run(shapes, [one for one in drawn if one.number not in by_number], options.budget):
        by_number[line["number"]] = line
        if out:
            of_seed = own | by_number
            ordered = [*others, *(of_seed[number] for number in sorted(of_seed))]
            write_whole(out, "".join(f"{json.dumps(each)}\n" for each in ordered))
    lines = [by_number[number] for number in sorted(by_number)]
    if all("error" in line for line in lines):
        print("nothing could be measured", file=sys.stderr)
        return CANNOT
    if not options.train:
        print(text(lines))
    return 2 if any("error" in line for line in lines) else 0
