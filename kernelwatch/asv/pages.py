"""asv plugin: this engine's pages are the way into the published site; asv's own pages lie in its folder ``asv``.

    index.html, pages/    the pages (kernelwatch/site/pages)
    data/                 what they read (docs/data.md), each file also as a script, for pages opened from a file
    regressions.xml       a feed
    asv/                  asv's grid, list and plots

It is set up after `offline`, which makes asv's pages work without a network, and before `untrusted`.
"""

import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from asv.commands.publish import Publish
from asv.publishing import OutputPublisher
from asv.results import iter_results

from kernelwatch.asv.offline import write_scripts
from kernelwatch.asv.patches import replace
from kernelwatch.asv.regressions import cell_of, commits_of, positions, sidecar, site_of, values_of
from kernelwatch.history.records import noise_of
from kernelwatch.plan import project as projects
from kernelwatch.plan.project import Project
from kernelwatch.site import data
from kernelwatch.site.data import Figure, Machine

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
        project = projects.load(Path(conf.benchmark_dir).resolve().parent)
        branch = conf.branches[0]
        at = positions(repo, branch)
        machines = machines_of(conf, project, benchmarks, at)
        folder = site_of(conf) / "data"
        for name, content in _files(conf, repo, project, benchmarks, machines, at, repo.get_branch_name(branch)):
            path = folder / f"{name}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content, allow_nan=False, separators=(",", ":")), encoding="utf-8")


def _files(
    conf: Any, repo: Any, project: Project, benchmarks: Any, machines: list[Machine], at: dict[str, int], branch: str
) -> data.Files:
    head = max(at.values(), default=0)
    by_position = {position: commit for commit, position in at.items()}
    wanted = {by_position[position] for machine in machines for position in machine.records} | {by_position[head]}
    remote = remote_page(conf)
    yield (
        "site",
        {
            "version": data.VERSION,
            "project": conf.project,
            "published": datetime.now(UTC).isoformat(timespec="seconds"),
            "branch": _branch(conf, branch),
            "head": head,
            "commit_url": own if re.match("https?://", own := conf.show_commit_url) else remote and f"{remote}/commit/",
            "source_url": remote and f"{remote}/blob/",
            "ops": data.ops(project),
            "machines": [data.summary(machine, head) for machine in machines],
            "figures": {
                name: {key: found.get(key) for key in ("unit", "higher_is_better", "judged")}
                for name, found in benchmarks.items()
            },
        },
    )
    yield "commits", {str(at[commit]): found for commit, found in commits_of(repo, wanted).items()}
    yield "cells", data.cells(project, machines)
    for machine in machines:
        for name, content in data.of_machine(machine):
            yield f"{machine.folder}/{name}", content


def machines_of(conf: Any, project: Project, benchmarks: Any, at: dict[str, int]) -> list[Machine]:
    """The recorded machines, the one with the newest commit first. Results of another environment of asv on the same
    machine are a machine of their own."""
    found: dict[tuple[str, str], Machine] = {}
    figures = list(_exact_series(Path(conf.benchmark_dir), benchmarks))
    for results in iter_results(conf.results_dir):
        record = sidecar(conf, results)
        if record is None or results.commit_hash not in at:
            continue
        name, position = results.params["machine"], at[results.commit_hash]
        machine = found.setdefault((name, results.env_name), Machine(name, "", {}))
        machine.records[position] = record
        machine.exact[position] = [
            Figure(benchmark, op, rung, place, value if isinstance(value, int | float) else None)
            for benchmark, op, places in figures
            if benchmark in results.get_all_result_keys()
            for (rung, place), value in zip(
                places, (value for _, value in values_of(results, benchmarks[benchmark])), strict=False
            )
            if rung
        ]
    names: set[str] = set()
    folders: set[str] = set()
    for (name, environment), machine in found.items():
        machine.name = f"{name} ({environment})" if name in names else name
        machine.folder = folder_of(machine.name, folders)
        machine.noise = noise_of(Path(conf.results_dir, next(iter(machine.records.values())).machine))
        names.add(name)
        folders.add(machine.folder)
    return sorted(found.values(), key=lambda machine: (-max(machine.records), -len(machine.records), machine.name))


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
    match = _REMOTE.fullmatch(done.stdout.strip())
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
        write_scripts(site / "data")
    return code


def setup() -> None:
    """Called by asv when it loads the plugin."""
    global _publish  # noqa: PLW0603
    _publish = Publish.run
    replace("asv.commands.publish:Publish.run", staticmethod(_publish_pages))
