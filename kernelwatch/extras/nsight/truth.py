"""Compare the harness's seconds with Nsight Compute's gpu__time_duration, for the same cells and rotating buffers.

ncu times a single kernel from its start to its end; a graph replay also contains the gap between kernels (a little
under 1 us). ncu does not fix the clocks. The table shows ncu with its own cache flush before every kernel ("flushed")
and with the harness's rotation alone ("rotated"); the two differ in whether a kernel's time includes the write-back of
what the kernel before it left dirty.
"""

import statistics

from rich.table import Table

from kernelwatch.extras.nsight import profiler
from kernelwatch.plan.project import Project, import_package
from kernelwatch.report.arguments import Output, Parser
from kernelwatch.run.processes import Run
from kernelwatch.system.errors import UserError
from kernelwatch.system.tools import ncu

DURATION = "gpu__time_duration.sum"
SKIP, COUNT = 20, 15


def main(project: Project, prog: str, arguments: list[str] | None = None) -> int:
    parser = Parser(prog, __doc__)
    parser.add_argument("cell", nargs="*", help="keys of cells (default: those that the project's description names)")
    parsed = parser.parse_args(arguments)
    ncu()
    package = import_package(project, str(project.repository))
    table = Table("cell", "harness", "ncu, flushed", "ncu, rotated", "harness - flushed", "harness - rotated")
    for key in parsed.cell or project.truth_cells:
        cell = profiler.find(project, key)
        run = Run(project, [cell], "gpu", str(project.repository), project.devices["gpu"].budget)
        for process in range(3):
            run.measure_all(process)
        outcome = run.group.outcomes[cell.key]
        if not outcome.measurements:
            raise UserError(f"{cell.key}: {outcome.reason}")
        ours = statistics.median(outcome.by_process("seconds").values())
        flushed, rotated = (
            profiler.counters(project, package, cell, [DURATION], flush=flush, skip=SKIP, count=COUNT)[DURATION] * 1e-9
            for flush in ("all", "none")
        )
        figures = (ours, flushed, rotated, ours - flushed, ours - rotated)
        table.add_row(cell.key, *(f"{1e6 * value:.2f} us" for value in figures))
    Output().print(table)
    return 0
