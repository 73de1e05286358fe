"""asv plugin: this engine's pages are the way into the published site; asv's own pages lie in its folder ``asv``.

    index.html, pages/    the pages (kernelwatch/site/pages)
    data/                 what they read (docs/data.md), each file also as a script, for pages opened from a file
    regressions.xml       a feed
    asv/                  asv's grid, list and plots

It is set up after `offline`, which makes asv's pages work without a network, and before `untrusted`.
"""

import functools
import hashlib
import itertools
import math
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from asv.commands.publish import Publish
from asv.publishing import OutputPublisher

from kernelwatch.asv.direction import direction
from kernelwatch.asv.patches import replace
from kernelwatch.asv.plain import is_described
from kernelwatch.asv.publication import publication
from kernelwatch.asv.recorded import Entry, Params, Recorded, Shape
from kernelwatch.asv.regressions import commits_of
from kernelwatch.asv.series import cell_of, positions
from kernelwatch.history.records import noise_of
from kernelwatch.plan import project as projects
from kernelwatch.site import data
from kernelwatch.site.columns import Columns
from kernelwatch.site.data import Commit, Exact, Machine
from kernelwatch.site.record import Json
from kernelwatch.site.writer import Writer, as_text

PAGES = Path(data.__file__).resolve().parent / "pages"
EXACT = re.compile(r" (counted|sm_\w+)$")  # the end of the keys of cells that are not timed
HOSTS = ("github.com", "gitlab.com", "codeberg.org")  # which show a commit at <repository>/commit/<hash>
_REMOTE = re.compile(r"(?:https://(?:[^@/]*@)?|(?:ssh://)?git@)(?P<host>[\w.]+)[:/](?P<path>[\w./-]+?)(?:\.git)?/?")


class Pages(OutputPublisher):
    """Write the data files of the pages."""

    name = "pages"
    button_label = ""
    description = "Write the data files of the pages"
    order = 4  # after the events

    @classmethod
    def publish(cls, conf: Any, repo: Any, benchmarks: Any, graphs: Any, revisions: dict[str, int]) -> None:
        at, own = positions(repo, conf.branches[0]), publication(conf)
        head = max(at.values(), default=0)
        ops: list[Json] = []
        cells: dict[str, Any] = {}
        if described := is_described(Path(conf.benchmark_dir).absolute()):
            project = projects.load(Path(conf.benchmark_dir).resolve().parent)
            exact = Series(Path(conf.benchmark_dir), benchmarks)
            machines = machines_of(conf, own.recorded, exact, at)
            summaries = [
                data.write_machine(machine, exact.exact, project, cells, own.writer, head) for machine in machines
            ]
            summaries.sort(key=lambda summary: not summary["trend"])  # pages open on the first machine: one with times
            measured = {position for machine in machines for position in machine.commits}
            ops = data.ops(project)
        else:
            by_machine = measured_on(own.recorded, at)
            summaries = [plain_machine(name, positions, head) for name, positions in by_machine.items()]
            measured = {position for positions in by_machine.values() for position in positions}
        own.writer.write("cells", cells)
        by_position = {position: commit for commit, position in at.items()}
        wanted = {by_position[position] for position in measured} | {by_position[head]}
        commits = {at[commit]: found for commit, found in commits_of(repo, wanted, own.recorded.store).items()}
        _write_commits(own.writer, commits)
        branch = _branch(conf, repo.get_branch_name(conf.branches[0]))
        site = _site(conf, ops, benchmarks, summaries, commits)
        own.writer.write("site", {**site, "branch": branch, "described": described})


def _write_commits(writer: Writer, commits: dict[int, Commit]) -> None:
    """The commits, and by blocks of positions the files that they changed, which only the page of a commit needs."""
    commits = dict(sorted(commits.items()))
    short = {at: {name: told for name, told in commit.items() if name != "files"} for at, commit in commits.items()}
    writer.write("commits", short)
    for block, group in itertools.groupby(commits, key=lambda at: at // data.BLOCK):
        content = {at: commits[at]["files"] for at in group}
        made_of = hashlib.sha256(as_text([commits[at]["hash"] for at in content]).encode()).hexdigest()
        if not writer.keep(f"files/{block}", made_of):
            writer.write(f"files/{block}", content, made_of)


def measured_on(recorded: Recorded, at: dict[str, int]) -> dict[str, set[int]]:
    """The positions of the measured commits of each machine, the one with the newest commit first."""
    found: dict[str, set[int]] = {}
    for entry in recorded.entries:
        if entry.commit in at:
            found.setdefault(entry.machine, set()).add(at[entry.commit])
    return dict(sorted(found.items(), key=lambda item: (-max(item[1]), -len(item[1]), item[0])))


def plain_machine(name: str, positions: set[int], head: int) -> Json:
    """What the pages say of a machine of a project without a description."""
    newest = max(positions)
    unknown: Json = {"gpu": "", "cpu": "", "cells": 0, "failed": [], "limited": [], "trend": {}}
    return {"name": name, "newest": newest, "commits": len(positions), "behind": head - newest} | unknown


def _site(conf: Any, ops: list[Json], benchmarks: Any, machines: list[Json], commits: dict[int, Commit]) -> Json:
    remote, head = remote_page(conf), max(commits)
    return {
        "version": data.VERSION,
        "project": conf.project,
        "published": datetime.now(UTC).isoformat(timespec="seconds"),
        "head": head,
        "newest": {at: commits[at] for at in sorted({head, *(machine["newest"] for machine in machines)})},
        "block": data.BLOCK,
        "commit_url": own if re.match("https?://", own := conf.show_commit_url) else remote and f"{remote}/commit/",
        "source_url": remote and f"{remote}/blob/",
        "ops": ops,
        "machines": machines,
        "figures": {
            name: {"unit": found.get("unit"), "higher_is_better": direction(found), "judged": found.get("judged")}
            for name, found in benchmarks.items()
        },
    }


class Series:
    """The series of exact figures, and where a result file has their values."""

    def __init__(self, folder: Path, benchmarks: Any) -> None:
        self.rows: list[tuple[str, Params]] = []
        told = []
        for name, op, places in _exact_series(folder, benchmarks):
            for params, (rung, where) in zip(itertools.product(*benchmarks[name]["params"]), places, strict=True):
                if rung:
                    self.rows.append((name, params))
                    told.append((name, op, rung, where))
        self.exact = Exact(told)
        self._found: dict[tuple[int, ...], Any] = {}

    def load(self, recorded: Recorded, entry: Entry) -> tuple[Columns, Any, Any]:
        """The record of an entry; for each row, whether the entry has its series, and the value."""
        shapes = [recorded.shape(entry, exact) for exact in (False, True)]
        key = tuple(map(id, shapes))
        if key not in self._found:
            self._found[key] = self._places(shapes)
        has, (others, judged) = self._found[key]
        values, record = recorded.load(entry)
        assert record is not None  # machines_of takes entries that have one
        exact = np.append(recorded.exact(entry), math.nan)[judged]
        return record, has, np.where(np.isnan(exact), np.append(values, math.nan)[others], exact)

    def _places(self, shapes: list[Shape]) -> tuple[Any, list[Any]]:
        has = np.array([any(name in shape.series for shape in shapes) for name, _ in self.rows], bool)
        return has, [np.array([shape.place(*row) for row in self.rows], np.int64) for shape in shapes]


def machines_of(conf: Any, recorded: Recorded, exact: Series, at: dict[str, int]) -> list[Machine]:
    """The recorded machines, the one with the newest commit first. Results of another environment of asv on the same
    machine are a machine of their own."""
    found: dict[tuple[str, str], dict[int, Entry]] = {}
    for entry in recorded.entries:
        if entry.head.get("record") and entry.commit in at:
            found.setdefault((entry.machine, entry.head["env_name"]), {})[at[entry.commit]] = entry
    machines: list[Machine] = []
    for (name, environment), entries in sorted(found.items()):
        known = [machine.name for machine in machines]
        full = f"{name} ({environment})" if name in known else name
        folder = folder_of(full, [machine.folder for machine in machines])
        commits = {
            position: data.Recorded(
                entry.digest,
                functools.partial(exact.load, recorded, entry),
                functools.partial(recorded.snapshot, entry),
            )
            for position, entry in entries.items()
        }
        noise = noise_of(next(iter(entries.values())).path.parent)
        machines.append(Machine(full, folder, commits, noise))
    return sorted(machines, key=lambda machine: (-max(machine.commits), -len(machine.commits), machine.name))


def folder_of(name: str, taken: Collection[str]) -> str:
    """A folder's name for a machine, like no other one's: people may call a machine what no folder can be called."""
    plain = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII).lstrip(".") or "_"
    numbered = (plain if number == 1 else f"{plain}-{number}" for number in itertools.count(1))
    return next(folder for folder in numbered if folder not in taken)


def _exact_series(folder: Path, benchmarks: Any) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """The series of exact figures: name, op, and for each of its values the rung and its other parameters."""
    for name, benchmark in benchmarks.items():
        if benchmark["param_names"][:1] != ["rung"]:
            continue
        places, op = [], ""
        for params in itertools.product(*benchmark["params"]):
            key = cell_of(folder, name, params)[0]
            rung, *others = (param.strip("'") for param in params)
            places.append((rung, " ".join(others)) if EXACT.search(key) else ("", ""))
            op = op or key.partition("/")[0]
        if any(rung for rung, _ in places):
            yield name, op, places


def _branch(conf: Any, name: str) -> str:
    """The name of a branch; that of the one which is checked out if it is called HEAD."""
    done = subprocess.run(
        ["git", "-C", conf.repo, "symbolic-ref", "--short", name], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or name


def remote_page(conf: Any) -> str:
    """The address of the repository's page, if its remote is on a known host; "" otherwise."""
    done = subprocess.run(
        ["git", "-C", conf.repo, "remote", "get-url", "origin"], capture_output=True, text=True, check=False
    )
    match = _REMOTE.fullmatch(done.stdout.strip() or conf.repo)
    return f"https://{match['host']}/{match['path']}" if match and match["host"] in HOSTS else ""


_publish = Publish.run


def _publish_pages(conf: Any, *args: Any, **kwargs: Any) -> Any:
    """Publish.run with asv's own pages in the folder asv, and this engine's pages above it."""
    site = Path(conf.html_dir)
    site.mkdir(parents=True, exist_ok=True)
    conf.site_dir, conf.html_dir = str(site), str(site / "asv")
    try:
        code = _publish(conf, *args, **kwargs)
    finally:
        conf.html_dir = conf.site_dir
        del conf.site_dir
    if not code:
        shutil.copytree(PAGES, site, dirs_exist_ok=True)
    return code


def setup() -> None:
    """Called by asv when it loads the plugin."""
    global _publish  # noqa: PLW0603
    _publish = Publish.run
    replace("asv.commands.publish:Publish.run", staticmethod(_publish_pages))
