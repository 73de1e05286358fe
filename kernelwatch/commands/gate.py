"""Run the gate: the kernels' tests that the project names, which must pass before anything is timed.

Exit code: 0, they passed, or the project names none; 1, a test failed.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile

from rich.console import Console

from kernelwatch.commands.phases import Minutes
from kernelwatch.plan.project import Project, Repository
from kernelwatch.report.arguments import Output, Parser, stop_on_signals
from kernelwatch.system.errors import UserError
from kernelwatch.system.patience import Patience, Stuck, output

PLUGIN = Path(__file__).parent / "pytest_plugin" / "kernelwatch_gate.py"
GATE_IDLE_S, GATE_ENDLESS_S = 300.0, 600.0  # a test that does not work for so long hangs; that works for so long, too


class GateFailed(UserError):
    """A test of the gate failed, or ended before the others."""


@dataclass
class Told:
    """What the plugin has told of a session.

    `collected`: the number of tests, 0 if it is not known yet; `checked`: those that passed, which the skipped and
    those expected to fail do not; `left`: why pytest.exit was called.
    """

    collected: int = 0
    ended: int = 0
    running: dict[str, None] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    checked: set[str] = field(default_factory=set)
    left: str = ""
    finished: bool = False

    def add(self, event: str, of: str | int) -> None:
        match event, of:
            case "begun", int():
                self.collected = of
            case "finished", str():
                self.finished = True
            case "started", str():
                self.running[of] = None
            case "ended", str():
                self.running.pop(of, None)
                self.ended += 1
            case "failed", str():
                self.failed.append(of)
            case "checked", str():
                self.checked.add(of)
            case "left", str():
                self.left = of

    def why_not(self) -> str:
        """Why a session whose exit code is 0 is no evidence that all tests passed; "" if it is."""
        if self.left:
            return f"the gate ended before all of its tests: {self.left}"
        if self.failed:
            return f"pytest ended with code 0, and yet {', '.join(self.failed)} failed"
        if not self.finished:
            return f"a test of the gate ended pytest, with code 0: {', '.join(self.running) or 'before the first test'}"
        if self.ended < self.collected:
            return f"the gate ran {self.ended} of its {self.collected} tests"
        return ""


def gate(project: Project, console: Console) -> None:
    """Run the kernels' tests, if the project names any. Raises: GateFailed; UserError if they do not end."""
    if not project.gate:
        return
    console.print("gate: every rung against its reference ...")
    told, minutes = Told(), Minutes(console)
    reading, writing = os.pipe()
    path = os.pathsep.join(filter(None, (str(PLUGIN.parent), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "pytest", "-x", "-p", PLUGIN.stem, f"--kernelwatch-gate={writing}", *project.gate]
    with TemporaryFile() as printed, open(reading, "rb", buffering=0) as events:
        try:
            tests = subprocess.Popen(
                command,
                cwd=project.root,
                env={**os.environ, "PYTHONPATH": path},
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(writing,),
            )
        finally:
            os.close(writing)
        with tests:
            try:
                for event, of in _lines(output(events.fileno(), Patience(tests.pid, GATE_IDLE_S, GATE_ENDLESS_S))):
                    told.add(event, of)
                    minutes.tell("gate", told.ended, told.collected, "tests")
                code = tests.wait()
            except Stuck as error:
                hanging = ", ".join(told.running) or "pytest, outside of its tests"
                raise UserError(f"the gate did not end: {hanging}: {error}; nothing was measured") from None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(tests.pid, signal.SIGKILL)
        if why := "the gate failed" if code else told.why_not():
            printed.seek(0)
            console.print(printed.read().decode(errors="replace"), markup=False, highlight=False)
            raise GateFailed(f"{why}; nothing was measured (its output is above)")
    passed = len(told.checked)
    others = f", {told.ended - passed} skipped or expected to fail" if told.ended > passed else ""
    console.print(f"gate: {passed} passed{others}", markup=False, highlight=False, soft_wrap=True)
    if not passed:
        console.print("gate: no test passed, so no kernel was checked", style="yellow")


def _lines(chunks: Iterable[bytes]) -> Iterator[tuple[str, str | int]]:
    """The events of the plugin, one a line."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from map(json.loads, lines)


def main(project: Project | Repository, prog: str, arguments: list[str] | None = None) -> int:
    Parser(prog, __doc__).parse_args(arguments)
    console = Output()
    if not isinstance(project, Project):  # asv's benchmarks alone
        folder = project.configuration.get("benchmark_dir", "benchmarks")
        console.print(f"{folder} has no project.py, which may name a gate: nothing to test", markup=False)
        return 0
    stop_on_signals()
    if not project.gate:
        console.print(f"{project.here.name} names no gate: nothing to test")
    try:
        gate(project, console)
    except GateFailed as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    return 0
