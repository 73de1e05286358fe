"""asv plugin: `asv publish` is this engine's (kernelwatch/publish/command.py), in which asv writes its own pages.

asv's pages judge nothing: the events do. Its Regressions page leads to this engine's.
"""

import functools
import math
from typing import Any

from asv import util
from asv.commands.publish import Publish
from asv.graph import Graph
from asv.plugins.git import Git

from kernelwatch.asv.patches import replace
from kernelwatch.publish import cleaning

_run = Publish.run
_tags = Git.get_tags
_reduce = Graph.get_data
_escape = functools.cache(util.sanitize_filename)


def _publish_nothing(cls: Any, conf: Any, repo: Any, benchmarks: Any, graphs: Any, revisions: dict[str, int]) -> None:
    """asv.plugins.regressions.Regressions.publish."""


def _reduced(graph: Any) -> list[tuple[int, Any, Any]]:
    """asv.graph.Graph.get_data, which asv calls up to three times for each graph: computed once, and again if points
    are added."""
    size = len(graph.data_points), sum(map(len, graph.data_points.values()))
    known = vars(graph).get("_reduced")
    if known is None or known[0] != size:
        known = graph._reduced = size, _reduce(graph)
    reduced: list[tuple[int, Any, Any]] = known[1]
    return reduced


def _file_name(text: str) -> str:
    """asv.util.sanitize_filename, which asv calls with the same few words for each graph and each line of its list."""
    name: str = _escape(text)
    return name


def _newest_only(graph: Any, pool: object = None) -> None:
    """asv.graph.Graph.detect_steps. asv's list takes values and changes from these steps: the newest value of each
    series is its only one, so that the list shows it and judges nothing."""
    columns = [(at, values if isinstance(values, list) else [values]) for at, values, _ in graph.get_data()]
    newest: list[list[tuple[int, int, float, float, float]]] = [[] for _ in range(graph.n_series)]
    for at, values in columns:
        for index, value in enumerate(values):
            if value is not None and not math.isnan(value):
                newest[index] = [(at, at + 1, value, value, 0.0)]
    graph._steps = newest


def _steps(graph: Any) -> Any:
    """asv.graph.Graph.get_steps, after `_newest_only`, which leaves nothing to wait for."""
    if graph._steps is None:
        graph.detect_steps()
    return graph._steps[0] if graph.scalar_series else graph._steps


def _own_pages(*arguments: Any, **options: Any) -> Any:
    """asv's own Publish.run, in which the name of a tag cannot contain markup, and may be that of a file as well."""
    replace("asv.plugins.git:Git.get_tags", _plain_tags)
    try:
        return _run(*arguments, **options)
    finally:
        Git.get_tags = _tags


def _plain_tags(self: Git) -> dict[str, str]:
    """asv.plugins.git.Git.get_tags, without the tags of what is no commit, such as a file."""
    names = self._run_git(["tag", "-l", "--sort=taggerdate"]).splitlines()
    commits = {name: self._run_git(["rev-list", "-n", "1", f"refs/tags/{name}", "--"]).strip() for name in names}
    return {cleaning.plain(name): commit for name, commit in commits.items() if commit}


def _publish(*arguments: Any, **options: Any) -> None:
    """asv.commands.publish.Publish.run. Only here, so that asv's other commands do not wait for what it imports."""
    from kernelwatch.publish.command import publish

    publish(_own_pages, *arguments, **options)


def setup() -> None:
    """Called by asv when it loads the plugin."""
    replace("asv.graph:Graph.get_data", _reduced)
    replace("asv.util:sanitize_filename", _file_name)
    replace("asv.graph:Graph.detect_steps", _newest_only)
    replace("asv.graph:Graph.get_steps", _steps)
    replace("asv.plugins.regressions:Regressions.publish", classmethod(_publish_nothing))
    replace("asv.commands.publish:Publish.run", staticmethod(_publish))
