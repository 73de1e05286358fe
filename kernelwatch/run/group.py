"""Measures a group of cells in several fresh processes; a kernel that crashes or hangs costs only its own cells."""

import importlib.util
import os
import statistics
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from kernelwatch.analysis.compiled import DEVICE
from kernelwatch.plan.cells import Cell, plan
from kernelwatch.plan.devices import Budget
from kernelwatch.plan.problem import dtypes
from kernelwatch.plan.project import Project
from kernelwatch.run import ahead, checkpoint, outcome
from kernelwatch.run.codes import note_codes, of_sources
from kernelwatch.run.outcome import Group
from kernelwatch.run.processes import ENDLESS_S, Run, workers_of
from kernelwatch.run.progress import Progress
from kernelwatch.system.options import Options
from kernelwatch.timing import clocks, nvml
from kernelwatch.timing.record import Facts

AWAKE_S = 0.2
LOST = "lost"  # the file beside the groups of a run of asv that says that its device was lost
CELLS_LEAST = 4  # for a parallel worker: it takes most of a second to start
PROCESSES_MAX = 8  # parallel workers for noise-free figures


def measured_tree(project: Project, options: Options) -> str:
    """The folder of the tree under test: the commit's if the options name it (another version may be installed), else
    the checkout if the package's sources lie in it, in whatever layout; else the folder from which Python imports the
    package; "" if there is none."""
    if options.tree:
        return options.tree
    checkout = str(project.repository)
    if not project.package or (not project.build and project.is_in(project.places(checkout))):
        return checkout
    spec = importlib.util.find_spec(project.package)
    return str(Path(spec.origin).parent.parent) if spec and spec.origin else ""


Peaks = dict[tuple[str, str], list[tuple[str, float]]]


def vendor_peaks(run: Run) -> Peaks:
    """By op and element type, the cells of the vendor's rung in a run, and the rate of each in FLOP/s."""
    found: Peaks = {}
    for cell in run.cells:
        problem = run.project.ops[cell.op]
        if cell.rung == problem.vendor.get(cell.device):
            seconds = run.group.outcomes[cell.key].by_process("seconds").values()
            if seconds:
                rate = problem.flops(cell.rung, cell.shape) / statistics.median(seconds)
                found.setdefault((cell.op, cell.type), []).append((cell.key, rate))
    return found


def roofline(cell: Cell, run: Run, vendor: Peaks) -> dict[str, float | str]:
    """The figures that place a cell under its ceilings; {} if it only moves data.

    These are the operations, the compulsory bytes and their ratio; the rate in bytes/s of the harness's copy; and the
    peak of the cell's type in FLOP/s: the rate of multiply-adds in registers, or the rate of the vendor's fastest cell
    of this type in the same run if that is higher, as on tensor cores. `vendor`: of `vendor_peaks`.
    """
    problem = run.project.ops[cell.op]
    flops, amount = problem.flops(cell.rung, cell.shape), problem.bytes_moved(cell.rung, cell.type, cell.shape)
    if not flops or run.project.devices[cell.device].holds == "GPUs":  # the ceilings are those of one GPU
        return {}
    figures: dict[str, float | str] = {"flops": flops, "bytes": amount, "intensity_flops_per_byte": flops / amount}
    ceilings = run.group.facts.get("ceilings", {})
    registers = ("multiply-adds", ceilings.get(f"{dtypes(cell.type)[0].name}_flops_per_s", 0.0))
    peak_of, peak = max([registers, *vendor.get((cell.op, cell.type), [])], key=lambda pair: pair[1])
    if peak:
        figures |= {"peak_flops_per_s": peak, "peak_of": peak_of}
    if "copy_bytes_per_s" in ceilings:
        figures |= {"copy_bytes_per_s": ceilings["copy_bytes_per_s"]}
    return figures


def save(group: Group, options: Options) -> None:
    """Write the group's sidecar lines to the folder `options.facts`; asv's plugin saves them with the results."""
    if options.facts:
        text = "".join(f"{line}\n" for line in group.lines())
        _sidecar(group.name, options).write_text(text, encoding="utf-8")


def lost(options: Options) -> str:
    """Why no GPU can be used any more, if this run of asv has lost the one that it measures on; else ""."""
    path = Path(options.facts, LOST)
    return path.read_text(encoding="utf-8") if options.facts and path.is_file() else ""


def _share_loss(run: Run, options: Options) -> None:
    """Tell the groups that follow in this run of asv that the device was lost, or heed what one before has told."""
    if run.lost and options.facts:
        Path(options.facts, LOST).write_text(run.unavailable, encoding="utf-8")
    elif run.on_gpu and (why := lost(options)):
        run.lose(why)


def _sidecar(name: str, options: Options) -> Path:
    return Path(options.facts, f"{name.replace(' ', '.')}.jsonl")


def measure_once(
    project: Project,
    op: str,
    device: str,
    cells: Sequence[Cell],
    options: Options | None = None,
    endless_s: float = ENDLESS_S,
    count: int = 0,
) -> Group:
    """Measure each cell once at the commit under test, with as many parallel processes as there are cores. This is for
    exact figures, which do not depend on what else runs. The caller saves the group. `options`: by default those of
    this process; `endless_s`: a cell that works for this long has failed; `count`: the number of processes, if the
    caller decides it."""
    options = options or Options.here()
    count = count or max(1, min(len(os.sched_getaffinity(0)), PROCESSES_MAX, len(cells) // CELLS_LEAST))
    shares = [list(cells[at::count]) for at in range(min(count, len(cells)))]
    tree = measured_tree(project, options)
    runs = [
        Run(
            project, share, device, tree, Budget(0, 0.0), endless_s=endless_s,
            workers=workers_of(project, tree, device, options.python),
        )
        for share in shares
    ]  # fmt: skip
    progress = Progress(f"{op} {device}", len(cells), options)
    with ThreadPoolExecutor(count) as pool:
        try:
            pending = {pool.submit(run.measure_all, 0, progress.tick) for run in runs}
            while pending:  # an interrupt may reach another thread than this one, which sees it when it next wakes up
                done, pending = wait(pending, timeout=AWAKE_S, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
        except BaseException:  # interrupted: the threads would go on to the last cell
            for run in runs:
                run.leave()
            raise
    progress.end()
    outcomes = {key: one for run in runs for key, one in run.group.outcomes.items()}
    facts = next((run.group.facts for run in runs if run.group.facts), Facts())
    return Group(progress.group, {cell.key: outcomes[cell.key] for cell in cells}, facts)


def _compile_ahead(run: Run, options: Options) -> None:
    """Let parallel processes compile what the cells of a GPU need, if that saves time and this machine has not done it
    yet. What does not compile is reported by its own cell."""
    arch = nvml.architecture() if run.on_gpu and run.tree and not run.unavailable else ""
    targets = ahead.targets(run.project, run.cells, arch) if arch else []
    if (count := ahead.workers(targets)) < 2:
        return
    try:
        if ahead.known(run, targets):
            return
        run.note(f"{count} processes compile {len(targets)} kernels for {arch} before the first is measured")
        # The interpreter, and with it the caches, are those of the processes that measure. The progress is the group's.
        own = replace(options, python="", progress="")
        compiled = measure_once(run.project, run.group.name, DEVICE, targets, own, ahead.ENDLESS_S, count)
        ahead.note(run, targets, compiled)
    except Exception as error:  # such as a full disk: the first process compiles what is missing
        run.note(f"not all kernels could be compiled ahead: {type(error).__name__}: {error}")


def _groups(run: Run) -> list[Group]:
    """What a run has measured, by op."""
    return [
        Group(
            f"{op} {run.device}",
            {cell.key: run.group.outcomes[cell.key] for cell in run.cells if cell.op == op},
            cast(Facts, dict(run.group.facts)),
        )
        for op in run.ops
    ]


def _resumed(run: Run, options: Options, processes: int) -> dict[str, Facts]:
    """Take what an interrupted run kept, as far as it was measured under the present conditions. Returns the facts of
    these groups by name; "resumed" says how many of the processes have measured a group."""
    resumed: dict[str, Facts] = {}
    present: dict[str, Any] | None = None
    for group in _groups(run):
        kept = checkpoint.there(group.name, group.outcomes, options)
        if kept is None:
            continue
        present = run.conditions() if present is None else present
        if outcome.conditions(kept.facts) == present:
            done = checkpoint.taken(kept)
            resumed[group.name] = {**kept.facts, "resumed": processes if done is None else done}
            run.group.outcomes.update(kept.outcomes)
            run.group.facts = kept.facts
    return resumed


def doubtful(run: Run) -> list[Cell]:
    """The cells that `retake` would measure once more after what is known so far: their clock was limited, or another
    one in one process."""
    outcomes, others = run.group.outcomes, run.group.facts.get("others")

    def is_doubtful(cell: Cell) -> bool:
        known = clocks.settled(outcomes[cell.key].measurements)
        return bool(clocks.clock(known, others).limits) or clocks.odd(known) is not None

    return [cell for cell in run.cells if is_doubtful(cell)]


def retake(run: Run, process: int, *, more: int = 0) -> None:
    """Leave out what ran at another clock than all others, where enough processes are left. Then measure the cells
    that are still doubtful once more in one more process.

    Its measurement takes the place of the one that agreed least, if all agree better then. A cell that stays limited is
    marked. `more`: how many processes will follow, as in `Run.measure_all`.
    """
    outcomes, cells = run.group.outcomes, doubtful(run)
    for each in outcomes.values():
        each.measurements = clocks.settled(each.measurements)
    if not cells or run.unavailable:
        return
    budget = run.budget_for(cells)
    again = Run(run.project, cells, run.device, run.tree, budget, run.silence_s, run.endless_s, workers=run.workers)
    again.note, again.group.facts = run.note, run.group.facts
    run.note(
        f"{len(cells)} of {len(run.cells)} cells of {run.group.name} are measured again: the SM clock was limited, "
        "or differs between processes"
    )
    again.measure_all(process, more=more)
    run.lost = again.lost
    for key, fresh in again.group.outcomes.items():
        if again.unavailable and fresh.reason == again.unavailable:  # it was not reached
            continue
        if fresh.state == "failed":  # one wrong result is enough
            outcomes[key].state, outcomes[key].reason = fresh.state, fresh.reason
            outcomes[key].measurements.clear()
        for measurement in fresh.measurements:
            outcomes[key].measurements = clocks.retaken(outcomes[key].measurements, measurement)


def measure(
    project: Project, op: str, device: str, options: Options | None = None, together: Iterable[str] = ()
) -> Group:
    """Measure all cells of an op on a device of the project at the commit under test, and save
    the group.

    Several processes measure the cells in orders of their own, so that drift affects all cells alike. A cell is left
    out as soon as it is known well enough. A kernel's failure is recorded in its outcome, not raised. What the
    processes of an interrupted run measured of the same commit under the same conditions is taken up.
    `options`: by default those of this process. `together`: the ops that are measured in the same processes, since they
    are asked for next; their groups are saved as well, and are then only read.

    Raises: UserError if the project has no such op.
    """
    options = options or Options.here()
    ready = _saved(f"{op} {device}", options)
    if ready:
        return ready
    ops = [problem.name for problem in project.problems if problem.name in {op, *together}] or [op]
    cells = {each: plan(project.op(each), device, quick=options.quick, only=options.only) for each in ops}
    groups = _measure(project, [cell for own in cells.values() for cell in own], device, options)
    for group in groups.values():
        save(group, options)
    empty = {each: Group(f"{each} {device}", {}, {}) for each in ops if not cells[each]}
    for none in empty.values():
        save(none, options)
    return groups[op] if op in groups else empty[op]


def _saved(name: str, options: Options) -> Group | None:
    """The group that was saved for the commit under test in this run of asv, whose results are not written yet."""
    if not options.facts:
        return None
    with suppress(OSError, ValueError):
        groups = outcome.read(_sidecar(name, options).read_text(encoding="utf-8").splitlines())
        return next((group for group in groups if group.name == name), None)
    return None


def _measure(project: Project, cells: list[Cell], device: str, options: Options) -> dict[str, Group]:
    """Measure cells of a device in several processes; their groups by op."""
    way = project.devices[device]
    processes = way.quick_processes if options.quick else way.processes
    budget = way.quick_budget if options.quick else way.budget
    run = Run(project, cells, device, measured_tree(project, options), budget, way.silence_s)
    progress = Progress(run.group.name, len(cells) * processes, options)
    run.note = progress.note
    _share_loss(run, options)
    resumed = _resumed(run, options, processes)
    counts = {group.name: resumed.get(group.name, Facts()).get("resumed", 0) for group in _groups(run)}
    done = min(counts.values(), default=0)
    progress.reach(done * len(cells))
    if done < processes:
        try:
            _compile_ahead(run, options)
            for seed in range(done, processes):
                afterwards = 0 if options.quick else bool(doubtful(run)) + bool(of_sources(run))
                run.measure_all(seed, progress.tick, more=processes - 1 - seed + afterwards)
                progress.reach((seed + 1) * len(cells))
                if run.unavailable:  # what an earlier process kept may go on on another day
                    break
                for group in _groups(run):
                    checkpoint.keep(group, options, processes=max(seed + 1, counts[group.name]))
            if not (options.quick or run.unavailable):
                retake(run, processes, more=bool(of_sources(run)))
                note_codes(run)
        finally:
            run.workers.close()
        vendor = vendor_peaks(run)
        for cell in cells:
            run.group.outcomes[cell.key].roofline = roofline(cell, run, vendor)
        if run.group.facts:
            run.group.facts["measured_at"] = datetime.now(UTC).isoformat(timespec="seconds")
    progress.end()
    _share_loss(run, options)
    groups = dict(zip(run.ops, _groups(run), strict=True))
    for group in groups.values():
        if counts[group.name] == processes:  # nothing of it was measured here
            group.facts = resumed[group.name]
        elif group.facts and counts[group.name]:
            group.facts["resumed"] = counts[group.name]
        if counts[group.name] < processes and not run.unavailable:
            checkpoint.keep(group, options)
    return groups
