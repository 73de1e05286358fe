"""Run every GPU rung, element type and configuration at a ragged shape under compute-sanitizer's tools: memcheck (out
of bounds, misaligned), racecheck (shared-memory hazards), initcheck (reads of unwritten memory), synccheck (barriers).
"""

import re
import subprocess
import sys
from pathlib import Path

from kernelwatch.plan.project import Project
from kernelwatch.report.arguments import Parser
from kernelwatch.system.tools import compute_sanitizer
from kernelwatch.timing.launches import CHILD

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
FOUND = 17  # the exit code of compute-sanitizer if it reports an error


def command(sanitizer: str, tool: str, root: Path, only: str) -> list[str]:
    """The command line that runs a tool over the rungs whose op/name contains `only`. Its exit code is FOUND if the
    tool reports an error.

    Errors of API calls are left to the program: CUDA's Python bindings ask the driver for functions that are newer than
    it, which is none, and what fails to launch raises an exception.
    """
    report = ("--report-api-errors", "no") if tool == "memcheck" else ()
    exit_code = ("--error-exitcode", str(FOUND))
    return [sanitizer, "--tool", tool, *report, *exit_code, sys.executable, *CHILD, "all", str(root), only, tool]


def main(project: Project, prog: str, arguments: list[str] | None = None) -> int:
    parser = Parser(prog, __doc__)
    parser.add_argument("--tool", choices=TOOLS, action="append", help="only some tools (default: all)")
    parser.add_argument("--only", default="", help="rungs whose op/name contains this text")
    parsed = parser.parse_args(arguments)
    sanitizer, worst = compute_sanitizer(), 0
    for tool in parsed.tool or TOOLS:
        done = subprocess.run(
            command(sanitizer, tool, project.root, parsed.only),
            capture_output=True,
            text=True,
            check=False,
            cwd=project.root,
        )
        last = [line for line in done.stdout.splitlines() if re.search("SUMMARY|launches$|^left out", line)]
        # A program that makes no call of CUDA is an error for the tool, which then has no summary.
        empty = last[-1:] == ["0 launches"] and len(last) > 1
        found = done.returncode != 0 and not empty
        verdict = "FOUND" if found else "not judged" if "0 launches" in last else "clean"
        print(f"{tool}: {verdict}: {'; '.join(line.strip('= ') for line in last)}")
        if found:
            print(done.stdout[-6000:], done.stderr[-2000:], sep="\n")
        worst = max(worst, int(found))
    return worst
