"""The results that a command records, and the pages that asv publishes of them."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from kernelwatch.asv import running
from kernelwatch.plan.project import CONFIGURATION, PLUGIN, Project, Repository
from kernelwatch.system.errors import UserError

RESULTS = "*-checkout-*.json"  # the file of a commit in a machine's folder
QUICK = {"results_dir": ".asv/quick/results", "html_dir": ".asv/quick/html"}


@contextmanager
def configuration(project: Project, quick: bool) -> Iterator[Path]:
    """asv's configuration file: the project's own, or for a quick look a temporary one with its own results."""
    own = project.root / CONFIGURATION
    if not quick:
        yield own
        return
    values = project.configuration | QUICK
    path = project.root / ".asv.quick.conf.json"  # in the root, since asv works in the folder of its configuration
    path.write_text(json.dumps(values))
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def check_plugin(configuration: Mapping[str, Any]) -> None:
    """Raises: UserError if asv's configuration does not name this engine's plugin, before minutes of measuring."""
    if PLUGIN not in (configuration.get("plugins") or ()):
        raise UserError(f'{CONFIGURATION} needs "plugins": ["{PLUGIN}"], without which asv makes pages of its own')


def publish(project: Project | Repository, conf: Path, console: Console) -> Path:
    """Run `asv publish`; the path of the first page. Raises: UserError."""
    check_plugin(project.configuration)
    values = project.configuration | (QUICK if conf.name != CONFIGURATION else {})
    page = Path(project.root, str(values.get("html_dir", "html")), "index.html")
    before = _stamp(page)
    command = running.asv_command(conf, "publish", "--no-pull")
    done = subprocess.run(command, cwd=project.root, capture_output=True, text=True, check=False)
    if done.returncode:
        console.print(done.stdout + done.stderr, markup=False, highlight=False)
        raise UserError(f"asv publish failed with exit code {done.returncode}; its output is above")
    if _stamp(page) == before:  # what it imports may end its process, with any exit code
        console.print(done.stdout + done.stderr, markup=False, highlight=False)
        raise UserError(f"asv publish ended with exit code 0 and made no pages in {page.parent}; its output is above")
    return page


def _stamp(page: Path) -> tuple[int, int] | None:
    """What differs once a page was made anew, even if it says the same; None if there is none."""
    try:
        told = page.stat()
    except FileNotFoundError:
        return None
    return told.st_ino, told.st_ctime_ns


def has_record(folder: Path) -> bool:
    """Whether a machine's folder has the results of a full run."""
    return any(folder.glob(RESULTS))


def have_results(folder: Path, commits: list[str]) -> list[str]:
    """The commits of which a machine's folder has a result file."""
    names = [path.name for path in folder.glob(RESULTS)]
    return [commit for commit in commits if any(name.startswith(commit[:8]) for name in names)]
