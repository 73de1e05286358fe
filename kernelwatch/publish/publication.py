"""What the steps of one publication share: the project, what is recorded of it, and the writer of the data files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelwatch.history.links import Session
from kernelwatch.plan.project import Project
from kernelwatch.plan.renamed import NONE, Renamed
from kernelwatch.publish.recorded import History
from kernelwatch.publish.writer import Writer


@dataclass(frozen=True)
class Publication:
    """One `asv publish`.

    `conf`, `repo`, `benchmarks`: asv's. Its folder of results is the cleaned copy.
    `project`: the description; None for a project without one.
    `history`: the results, as they are; `sessions`: of links, by machine; `unread`: why files of these are left out.
    `site`: the folder in which the site is made; `writer`: of its data files.
    """

    conf: Any
    repo: Any
    benchmarks: Any
    project: Project | None
    history: History
    sessions: Mapping[str, Sequence[Session]]
    unread: Sequence[str]
    site: Path
    writer: Writer

    @property
    def renamed(self) -> Renamed:
        """The rungs that had other names in earlier commits."""
        return self.project.renamed if self.project else NONE

    @property
    def suites(self) -> Path:
        """The folder of the benchmarks."""
        return Path(self.conf.benchmark_dir)
