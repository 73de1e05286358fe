"""The options that a process of a measuring run passes to the processes it starts, as environment variables.

asv runs between a command and the suites and passes on nothing but the environment. A process reads its options once,
at its entry point (a suite's `setup_cache`, a plugin); from there on they are arguments. No other module reads these
variables.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

PREFIX = "KERNELWATCH_"


@dataclass(frozen=True)
class Options:
    """The options of a run.

    `quick`: a first look with fewer cells and processes, which is not saved.
    `again`: also measure what an interrupted run had finished.
    `only`: a regular expression on cell keys, "" for all cells.
    `suites`: the suites that asv runs for this commit, separated by commas, as asv names them.
    `tree`: the folder that holds the measured commit's files.
    `python`: the interpreter of the processes that measure exact figures, by default this one.
    `facts`: a folder; a measured group writes its sidecar lines there, and asv's plugin saves them with the results.
    `kept`: a folder; a measured group is kept there until its commit is saved.
    `progress`: a file to which a run appends its progress.
    `locks`: the folder of the GPUs' lock files.
    """

    quick: bool = False
    again: bool = False
    only: str = ""
    suites: str = ""
    tree: str = ""
    python: str = ""
    facts: str = ""
    kept: str = ""
    progress: str = ""
    locks: str = "/tmp"  # not $TMPDIR, which may differ between users

    @classmethod
    def here(cls, environment: Mapping[str, str] | None = None) -> "Options":
        """The options in an environment, by default in that of this process."""
        variables = os.environ if environment is None else environment
        values: dict[str, Any] = {}
        for field in fields(cls):
            value = variables.get(PREFIX + field.name.upper(), "")
            if field.type is bool:
                values[field.name] = value not in ("", "0")
            elif value:
                values[field.name] = value
        return cls(**values)

    def environment(self) -> dict[str, str]:
        """This process's environment with these options in it."""
        variables = {}
        for field in fields(self):
            value = getattr(self, field.name)
            text = ("1" if value else "") if isinstance(value, bool) else value
            variables[PREFIX + field.name.upper()] = text
        return {**os.environ, **variables}

    def hand_on(self) -> None:
        """Pass these options to every process that this one starts from now on."""
        os.environ.update(self.environment())


def hand_on(**changed: str | bool) -> None:
    """Change some of the options that this process passes on."""
    replace(Options.here(), **changed).hand_on()  # type: ignore[arg-type]
