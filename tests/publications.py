"""A synthetic history, and what `asv publish` makes of it."""

import copy
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import scale
from tests.preloaded import Background
from tests.repositories import PRELOADED, ROOT

COMMITS = 6
SERIES, EXACT = 100, 20  # timed series, and exact ones


class Project:
    """A synthetic history, and where it is published."""

    def __init__(self, folder: Path, commits: int = COMMITS) -> None:
        self.folder, self.html, self.cache = folder, folder / "html", folder / "cache"
        self.history = scale.History(folder, commits, SERIES, EXACT)

    def start(
        self, html: Path | None = None, cache: Path | None = None, command: Sequence[str] = ("-m", "asv")
    ) -> Background:
        """Publish in the background."""
        arguments, variables = self._publication(html, cache)
        return PRELOADED.start([*command, *arguments], ROOT, variables)

    def publish(self, html: Path | None = None, cache: Path | None = None) -> str:
        """Publish; what it said."""
        arguments, variables = self._publication(html, cache)
        done = PRELOADED.run(["-m", "asv", *arguments], ROOT, variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def _publication(self, html: Path | None, cache: Path | None) -> tuple[list[str], dict[str, str]]:
        """The arguments of asv, and the environment variables."""
        arguments = ["--config", str(self.folder / "asv.conf.json"), "publish", "--no-pull"]
        variables = {"PYTHONPATH": str(ROOT), "KERNELWATCH_CACHE": str(cache or self.cache)}
        return [*arguments, "--html-dir", str(html or self.html)], os.environ | variables

    def under_way(self, name: str) -> list[Path]:
        """What publications that have not ended have made of this name."""
        return list(self.folder.glob(f".html.publishing-*/{name}"))

    @property
    def store(self) -> Path:
        (path,) = self.cache.glob("*.sqlite")
        return path

    def results(self) -> list[Path]:
        """Result files, oldest first."""
        paths = (self.folder / "results").glob("*/*-*.json")
        return sorted(paths, key=lambda path: [commit[:8] for commit in self.history.hashes].index(path.name[:8]))


@dataclass(frozen=True)
class Published:
    """A history that was published for the first time, and a copy of its folder as it then was."""

    project: Project
    kept: Path

    def again(self) -> Project:
        """The project as it then was, times of files included, which publishing looks at."""
        shutil.rmtree(self.project.folder)
        shutil.copytree(self.kept, self.project.folder)
        project = copy.copy(self.project)
        project.history = copy.copy(self.project.history)
        return project


def contents(html: Path) -> dict[str, str]:
    """The data files, without the time of publication."""
    files = sorted((html / "data").rglob("*.json*"))
    texts = {path.relative_to(html).as_posix(): path.read_text(encoding="utf-8") for path in files}
    return {name: re.sub(r"published\W+[\d:T+-]+", "", text) for name, text in texts.items()}


def anew(project: Project) -> dict[str, str]:
    """What a publication says that knows of none before."""
    html, cache = project.folder / "anew" / "html", project.folder / "anew" / "cache"
    shutil.rmtree(html.parent, ignore_errors=True)
    project.publish(html, cache)
    return contents(html)
