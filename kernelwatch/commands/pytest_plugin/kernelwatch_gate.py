"""The plugin by which pytest tells the gate of its tests, in lines of JSON; the gate puts its folder on the path.

A gate needs the last line, "finished": an exit code of 0 is also what a test leaves that ends the process.
"""

import json
import os
from collections.abc import Generator
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kernelwatch-gate", type=int, metavar="FD", help="the pipe to which the plugin writes")


def pytest_configure(config: pytest.Config) -> None:
    pipe = config.getoption("--kernelwatch-gate")
    if not hasattr(config, "workerinput"):  # a worker of pytest-xdist tells the process that has started it
        os.set_inheritable(pipe, False)
        os.register_at_fork(after_in_child=lambda: os.close(pipe))  # the gate reads until nobody holds it
        config.pluginmanager.register(_Teller(pipe))


class _Teller:
    def __init__(self, pipe: int) -> None:
        self._pipe, self._process = pipe, os.getpid()

    def _tell(self, event: str, of: str | int = "") -> None:
        if os.getpid() == self._process:  # and no fork that a test has left
            os.write(self._pipe, json.dumps([event, of]).encode() + b"\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._tell("started", nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._tell("failed", report.nodeid)
        elif report.when == "call" and report.passed:
            self._tell("checked", report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._tell("ended", nodeid)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        self._tell("left", excinfo.exconly())  # by pytest.exit, whose exit code may be 0

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._tell("begun", len(ids))  # each worker collects all tests, and the session none

    @pytest.hookimpl(hookwrapper=True)  # older versions of pytest have no `wrapper`
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, Any, None]:
        self._tell("begun", session.testscollected)
        if not (yield).excinfo:
            self._tell("finished")
