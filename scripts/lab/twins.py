#!/usr/bin/env python3
"""A/A of links: links a commit with itself on the GPU at hand, as if the launches on both sides were different.

Both sides take turns beside controls, as those of a change do. The session is kept in results/ as one of two
environments that do not differ, so that it is no link of two commits. `scripts/lab/links` writes the figures into
docs/research/links.md.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.project import PROJECT
from kernelwatch.asv import running
from kernelwatch.asv.machine_names import machine_name
from kernelwatch.commands import link as linking_command
from kernelwatch.comparison import linking
from kernelwatch.comparison.changes import Changes
from kernelwatch.comparison.linking import Step
from kernelwatch.history import links
from kernelwatch.history.links import Session
from kernelwatch.plan.cells import Cell
from kernelwatch.plan.project import Project
from kernelwatch.report.arguments import Output, Parser, add_selection, selected, stop_on_signals
from kernelwatch.system import lifeline
from kernelwatch.system.git import resolve

SIDES = ("first", "second")  # what both sides launch is called, so that it is measured as a change is
CELLS = (
    r"^(vector_add/elementwise float32 16777216 (cold|hot)"
    r"|transpose/(tiled|padded) float32 (1024x1024 (cold|hot)|4096x4096 cold)"
    r"|matmul/(tiled_32|thread_tile_2d|pipelined) float32 1024x1024x1024 cold"
    r"|matmul/pipelined float32 (256x256x256 hot|4096x4096x4096 cold)"
    r"|matmul/wgmma(_128x128)? float16->float32 (256x256x256 hot|(1024x1024x1024|4096x4096x4096) cold))$"
)


def twins(
    project: Project, commit: str, cells: Sequence[Cell], budget_s: float, tell: Callable[[str], None] = lambda _: None
) -> Session:
    """Link cells of a commit with themselves. Raises: UserError."""
    one = Step(commit, commit, Changes(), cells, launches={cell.key: SIDES for cell in cells})
    with linking.trees(project) as made:
        found = linking.link(project, one, made, budget_s, "environment", tell)
    return replace(found, links=tuple(replace(link, identities=("", "")) for link in found.links))


def main(arguments: list[str] | None = None) -> int:
    """Measure and keep one session; the exit code: 1 if a link is called slower or faster."""
    parser = Parser("scripts/lab/twins", __doc__)
    parser.add_argument("commit", nargs="?", default="HEAD", help="default: HEAD")
    parser.add_argument("--budget", type=float, default=20.0, metavar="SECONDS", help="time limit (default: 20)")
    add_selection(parser, "only some cells (default: 19 of all kinds)")
    options = parser.parse_args(arguments)
    cells, console = linking.asked_of(PROJECT, selected(options) or CELLS), Output()
    commit = resolve(PROJECT.root, options.commit)
    stop_on_signals()
    with lifeline.tied(), running.alone(PROJECT.results):
        session = twins(PROJECT, commit, cells, options.budget)
        if session.links:
            links.save(PROJECT.results / machine_name(), session)
    linking_command.show(f"{commit[:8]} and itself", session, console)
    return linking_command.code_of([session]) or (0 if session.links else 2)
