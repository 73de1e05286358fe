"""Run the gate: the kernels' tests that the project names, which must pass before anything is timed.

Exit code: 0, they passed, or the project names none; 1, a test failed.
"""

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

from rich.console import Console

from kernelwatch.commands.phases import Minutes
from kernelwatch.plan.project import Project
from kernelwatch.report.arguments import Output, Parser, stop_on_signals
from kernelwatch.system.errors import UserError
from kernelwatch.system.patience import Patience, Stuck, output

GATE_IDLE_S, GATE_ENDLESS_S = 300.0, 600.0  # a test that does not work for so long hangs; that works for so long, too
PERCENT, PERCENT_BYTES = re.compile(rb"\[ *(\d+)%\]"), 4096  # of the tests, at the end of each one's line
OUTCOMES = "PASSED|SKIPPED|XFAIL|FAILED|ERROR|XPASS"
# A test that passed, by itself and in a process of pytest-xdist. Settings of a project may leave its percent out.
PASSED = re.compile(r"^\S+::\S.* (PASSED|SKIPPED|XFAIL)\b|^\[gw\d+\] (\[.*?\] )?(PASSED|SKIPPED|XFAIL) ")
# A test that runs, and in a process of pytest-xdist, which names it once more, one that has ended.
STARTED = re.compile(rf"^(?!.* ({OUTCOMES})\b)(?P<name>\S+::\S.*?) *$")
ENDED = re.compile(rf"^\[gw\d+\] (\[.*?\] )?({OUTCOMES}) (?P<name>\S+::\S.*?) *$")
# What pytest ends with after pytest.exit, whose exit code may be 0.
LEFT = re.compile(r"^!+ _pytest\.outcomes\.Exit: ")
# What pytest ends with otherwise; -p no:junitxml, in settings of a project, leaves out its report.
SUMMARY = re.compile(r"^=+ .* in [\d.]+s( \(.*\))? =+$")


class GateFailed(UserError):
    """A test of the gate failed, or ended before the others."""


def gate(project: Project, console: Console) -> None:
    """Run the kernels' tests, if the project names any. Raises: GateFailed; UserError if they do not end."""
    if not project.gate:
        return
    console.print("gate: every rung against its reference ...")
    # With -v, pytest names a test before it runs it: what is written last says which one does not end.
    written, minutes = b"", Minutes(console)
    with TemporaryDirectory() as folder:
        # pytest writes its report when its session ends: a test that ends the process with 0 leaves none.
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-v", "-x", *project.gate, f"--junitxml={report}"]
        tests = subprocess.Popen(
            command, cwd=project.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        with tests:
            assert tests.stdout is not None
            try:
                for chunk in output(tests.stdout.fileno(), Patience(tests.pid, GATE_IDLE_S, GATE_ENDLESS_S)):
                    written += chunk
                    if done := PERCENT.findall(written[-PERCENT_BYTES:]):
                        minutes.tell("gate", int(done[-1]), 100, "%")
                code = tests.wait()
            except Stuck as error:
                hanging = ", ".join(_running(written.decode(errors="replace").splitlines()))
                raise UserError(f"the gate did not end: {hanging}: {error}; nothing was measured") from None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(tests.pid, signal.SIGKILL)
        suite = ElementTree.parse(report).find("testsuite") if report.is_file() else None
    lines = written.decode(errors="replace").splitlines()
    running = _running(lines)
    ended = {begun["name"] for line in lines if (begun := STARTED.match(line))}.difference(running)
    lines = [line for line in lines if line.strip() not in ended and not PASSED.search(line)]
    if code:
        console.print("\n".join(lines), markup=False, highlight=False)
        raise GateFailed("the gate failed; nothing was measured (its output is above)")
    if not lines:
        raise GateFailed("pytest prints nothing, so nothing shows that all tests ran (-p no:terminal?); leave that out")
    if left := next(filter(LEFT.match, lines), ""):
        raise GateFailed(f"the gate ended before all of its tests: {left.strip('! ')}; nothing was measured")
    if suite is None and not (lines and SUMMARY.match(lines[-1])):
        console.print("\n".join(lines), markup=False, highlight=False)
        raise GateFailed(f"a test of the gate ended pytest, with code 0: {', '.join(running)}; nothing was measured")
    console.print(f"gate: {lines[-1].strip('= ')}", markup=False)
    if suite is not None and suite.get("tests") == suite.get("skipped"):
        console.print("gate: every test was skipped, so no kernel was checked", style="yellow")


def _running(lines: list[str]) -> list[str]:
    """The tests that have begun and not ended."""
    found: dict[str, None] = {}
    for line in lines:
        if begun := STARTED.match(line):
            found[begun["name"]] = None
        elif ended := ENDED.match(line):
            found.pop(ended["name"], None)
    return list(found) if found else lines[-1:]


def main(project: Project, prog: str, arguments: list[str] | None = None) -> int:
    Parser(prog, __doc__).parse_args(arguments)
    console = Output()
    stop_on_signals()
    if not project.gate:
        console.print(f"{project.here.name} names no gate: nothing to test")
    try:
        gate(project, console)
    except GateFailed:
        return 1
    return 0
