"""asv plugin: `asv run` loses nothing, leaves nothing behind and measures alone in its results folder.

One measuring run a results folder, by a lock file beside it. Groups that were measured are kept under .asv/kept until
their commit is saved (benchmarks/_kept.py), and taken up by the run after an interruption. Result files that cannot be
read, at which asv would stop, are set aside. What was started ends with asv (scripts/_lifeline.py). A full disk, and an
interrupt by any signal, end the run with a sentence.

asv is patched under one name, Run.run, through which also `asv continuous` measures; tests/test_running.py fails when
it is gone.
"""

import errno
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from asv import util
from asv.commands.run import Run
from asv.console import log

from benchmarks._files import Busy, locked
from scripts import _lifeline
from scripts.asv_plugins.recording import identity
from scripts.asv_plugins.untrusted import problem

KEPT = Path(".asv", "kept")
LOCKED = "GPUKERNELS_LOCKED"  # the results folder that scripts/bench, which started this asv, holds already
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
GOES_ON = (
    "commits that were finished are in the results, groups of cells that were finished are kept; the same call goes on "
    "from there"
)


@contextmanager
def alone(results: Path) -> Iterator[None]:
    """One measuring run a results folder. Raises: Busy."""
    results = results.resolve()
    if os.environ.get(LOCKED) == str(results):
        yield
        return
    with locked(results.with_name(f"{results.name}.lock")):
        os.environ[LOCKED] = str(results)
        try:
            yield
        finally:
            del os.environ[LOCKED]


def busy_text(results: Path, error: Busy) -> str:
    """What to say to whom wants to measure where another does."""
    where = results.resolve()
    return f"{error} measures into {where}; wait for it or end it: two at once would disturb each other's figures"


def set_aside_broken(folder: Path, pattern: str = "*.json") -> list[str]:
    """Move result files that asv could not use out of its way, which stops at them; what was moved, and why. Their
    commits are measured again."""
    said = []
    for path in sorted(folder.glob(pattern)):
        if os.access(path, os.R_OK) and (why := problem(path)):
            broken = path.rename(path.with_name(path.name + ".broken"))
            said.append(f"{path.name} cannot be used ({why}); it is now {broken.name}")
    return said


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP are Ctrl-C, so that asv ends what it started and cleans up."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_run = Run.run.__func__


def _measure(cls: type[Run], /, conf: Any, *args: Any, dry_run: bool | None = False, **kwargs: Any) -> Any:
    results = Path(conf.results_dir)
    try:
        with alone(results), _interruptible(), _lifeline.tied():
            mine = results / (kwargs.get("machine") or identity()["machine"])
            for said in set_aside_broken(mine) + set_aside_broken(results, "benchmarks.json"):
                log.warning(said)
            if not dry_run:  # what is not saved is no part of a run that goes on
                os.environ["GPUKERNELS_KEPT"] = str(KEPT.absolute())
            return _run(cls, conf, *args, dry_run=dry_run, **kwargs)
    except util.UserError as error:
        if str(error) != "Interrupted.":  # asv's word where a benchmark ran
            raise
        raise util.UserError(f"interrupted; {GOES_ON}") from None
    except Busy as error:
        raise util.UserError(busy_text(results, error)) from None
    except KeyboardInterrupt:
        raise util.UserError(f"interrupted; {GOES_ON}") from None
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise util.UserError(f"{error}; every file is as it was before: make room; {GOES_ON}") from None


def setup() -> None:
    """Called by asv when it loads the plugin."""
    Run.run = classmethod(_measure)
