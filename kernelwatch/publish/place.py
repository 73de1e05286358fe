"""Where a site is published: a new one is made beside the one that is there, and replaces it when it is complete."""

import glob
import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asv.console import log

from kernelwatch.system import cache
from kernelwatch.system.files import locked


@contextmanager
def alone(site: Path) -> Iterator[None]:
    """Admit one publication at a time into a folder. What publications that were killed have left is removed."""
    site.parent.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(str(site).encode()).hexdigest()[:16]

    def waiting(holder: str) -> None:
        log.info(f"waiting: {holder} publishes into {site}")

    with locked(cache.folder() / f"publishing-{name}.lock", waiting):
        _clear(site)
        yield


@contextmanager
def fresh(site: Path) -> Iterator[Path]:
    """A folder beside a site; what is in its folder `html` at the end replaces the site, unless an error is raised."""
    with tempfile.TemporaryDirectory(prefix=_prefix(site), dir=site.parent) as name:
        folder = Path(name)
        yield folder
        if site.exists():
            site.rename(folder / "before")
        (folder / "html").rename(site)


def _prefix(site: Path) -> str:
    """Of the names of the folders in which new pages are made."""
    return f".{site.name}.publishing-"


def _clear(site: Path) -> None:
    """Remove what publications that were killed have left. If one was killed while it replaced the pages, they are put
    back."""
    for left in site.parent.glob(f"{glob.escape(_prefix(site))}*"):
        if not site.exists() and (left / "before").is_dir():
            (left / "before").rename(site)
        shutil.rmtree(left, ignore_errors=True)
