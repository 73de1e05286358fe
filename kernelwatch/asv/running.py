"""asv plugin: `asv run` loses no measurement, leaves no process behind and measures alone in its results folder.

A lock file beside the results folder admits one measuring run. Measured groups are kept under .asv/kept until their
commit is saved (kernelwatch/run/checkpoint.py), and the next run after an interruption continues from them. Unreadable
result files, at which asv would stop, are renamed. Child processes end with asv (kernelwatch/system/lifeline.py).
A full disk or a signal ends the run with a message.
"""

import errno
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from asv import util
from asv.commands.run import Run
from asv.console import log

from kernelwatch.asv.environment import Checkout
from kernelwatch.asv.machine_names import machine_name
from kernelwatch.asv.patches import replace
from kernelwatch.asv.recording import DeviceLost
from kernelwatch.publish.cleaning import problem
from kernelwatch.system import lifeline
from kernelwatch.system.errors import UserError
from kernelwatch.system.files import Busy, locked
from kernelwatch.system.options import PREFIX, Options, hand_on

KEPT = Path(".asv", "kept")
LOCKED = f"{PREFIX}LOCKED"  # the results folder that the command which started this asv has already locked
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
GOES_ON = (
    "finished commits are in the results, what finished processes measured is kept; the same command goes on there"
)


def asv_command(configuration: Path, *arguments: str) -> list[str]:
    """The command line of asv with a configuration file."""
    return [sys.executable, "-P", "-m", "asv", "--config", str(configuration), *arguments]


def run_arguments(*arguments: str) -> list[str]:
    """What asv is given to measure each commit's checkout with this interpreter."""
    return ["run", "-E", Checkout.tool_name, "--show-stderr", *arguments]


def run_command(configuration: Path, *arguments: str) -> list[str]:
    """The command line of `asv run` with this interpreter and each commit's checkout."""
    return asv_command(configuration, *run_arguments(*arguments))


def chosen(names: Iterable[str]) -> str:
    """A regular expression for asv's --bench that matches these benchmarks."""
    return rf"^({'|'.join(map(re.escape, sorted(names)))})(\(|$)"  # asv adds the parameters to a name


def _lock_of(results: Path) -> Path:
    return results.resolve().with_name(f"{results.name}.lock")


@contextmanager
def alone(results: Path) -> Iterator[None]:
    """Admit one measuring run per results folder. Raises: UserError."""
    results = results.resolve()
    if os.environ.get(LOCKED) == str(results):
        yield
        return
    with _held(results):
        os.environ[LOCKED] = str(results)
        try:
            yield
        finally:
            del os.environ[LOCKED]


@contextmanager
def not_beside(recorded: Path) -> Iterator[None]:
    """Admit a run only if no recording run measures into the project's results, and no recording run while it lasts. It
    leaves no lock file where there was none. Raises: UserError."""
    if os.environ.get(LOCKED) == str(recorded.resolve()) or not _lock_of(recorded).exists():
        yield
        return
    with _held(recorded):
        yield


@contextmanager
def _held(results: Path) -> Iterator[None]:
    """Hold the lock of a results folder. Raises: UserError if another run does."""
    with ExitStack() as held:
        try:
            held.enter_context(locked(_lock_of(results)))
        except Busy as error:
            raise UserError(
                f"{error} measures into {results.resolve()}; wait for it or end it: two runs would disturb each "
                "other's figures"
            ) from None
        yield


def set_aside_broken(folder: Path, pattern: str = "*.json") -> list[str]:
    """Rename result files at which asv would stop; their commits are then measured again. Returns a sentence for each,
    with the reason."""
    messages = []
    for path in sorted(folder.glob(pattern)):
        why = problem(path) if os.access(path, os.R_OK) else ""
        if why:
            broken = path.rename(path.with_name(path.name + ".broken"))
            messages.append(f"{path.name} cannot be used ({why}); it is now {broken.name}")
    return messages


@contextmanager
def interruptible() -> Iterator[None]:
    """Handle SIGTERM and SIGHUP like Ctrl-C, so that asv ends its child processes and cleans up."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


FAILED = 2  # asv's exit code if a benchmark failed
_run = Run.run.__func__


def _measure(cls: type[Run], /, conf: Any, *args: Any, dry_run: bool | None = False, **kwargs: Any) -> Any:
    results = Path(conf.results_dir)
    try:
        re.compile(Options.here().only)
    except re.error as error:
        raise util.UserError(f"{PREFIX}ONLY={Options.here().only}: no regular expression: {error}") from None
    try:
        with alone(results), interruptible(), lifeline.tied():
            machine_folder = results / (kwargs.get("machine") or machine_name())
            for message in set_aside_broken(machine_folder) + set_aside_broken(results, "benchmarks.json"):
                log.warning(message)
            if kwargs.get("env_spec") == [Checkout.tool_name]:
                # asv makes the configured environment as well, only for its name; a virtualenv's imports virtualenv.
                conf.environment_type = Checkout.tool_name
            if not dry_run:  # a dry run saves no results, so a later run must not continue from it
                hand_on(kept=str(KEPT.absolute()))
            return _run(cls, conf, *args, dry_run=dry_run, **kwargs)
    except DeviceLost as error:
        log.error(f"the run ends: {error}")
        return FAILED
    except util.UserError as error:
        if str(error) != "Interrupted.":  # asv's message if a benchmark was running
            raise
        raise util.UserError(f"interrupted; {GOES_ON}") from None
    except UserError as error:
        raise util.UserError(str(error)) from None
    except KeyboardInterrupt:
        raise util.UserError(f"interrupted; {GOES_ON}") from None
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise util.UserError(f"{error}; every file is as it was before: make room; {GOES_ON}") from None


def setup() -> None:
    """Called by asv when it loads the plugin."""
    replace("asv.commands.run:Run.run", classmethod(_measure))
