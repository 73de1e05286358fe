"""Writes the data files of the pages, besides those of the events."""

import hashlib
import itertools
import re
import subprocess
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from kernelwatch.publish import data, plain
from kernelwatch.publish.benchmarks import direction
from kernelwatch.publish.commits import Commit, commits_of
from kernelwatch.publish.exact import Exact
from kernelwatch.publish.machines import machines_of, measured_on, plain_machine
from kernelwatch.publish.publication import Publication
from kernelwatch.publish.record import Json
from kernelwatch.publish.series import positions
from kernelwatch.publish.writer import Writer, as_text

HOSTS = ("github.com", "gitlab.com", "codeberg.org")  # which show a commit at <repository>/commit/<hash>
_REMOTE = re.compile(r"(?:https://(?:[^@/]*@)?|(?:ssh://)?git@)(?P<host>[\w.]+)[:/](?P<path>[\w./-]+?)(?:\.git)?/?")


def write(publication: Publication, linked: Collection[str] = ()) -> None:
    """Write the data files of the machines, the commits and the site. `linked`: the commits that links tell of, which
    have pages, too."""
    conf, repo, history = publication.conf, publication.repo, publication.history
    project, writer = publication.project, publication.writer
    at = positions(repo, conf.branches[0])
    head = max(at.values(), default=0)
    ops: list[Json] = []
    cells: dict[str, Any] = {}
    by_machine = measured_on(history, at)
    measured = {position for places in by_machine.values() for position in places}
    if project:
        exact = Exact.of(publication.suites, publication.benchmarks)
        machines = machines_of(history, at, publication.renamed)
        summaries = [data.write_machine(machine, exact, project, cells, writer, head) for machine in machines]
        summaries.sort(key=lambda summary: not summary["trend"])  # pages open on the first machine: one with times
        ops = data.ops(project)
    else:
        summaries = [plain_machine(name, places, head) for name, places in by_machine.items()]
    writer.write("cells", cells)
    by_position = {position: commit for commit, position in at.items()}
    wanted = {by_position[position] for position in measured} | {by_position[head]} | {*linked} & at.keys()
    commits = {at[commit]: found for commit, found in commits_of(repo, wanted, history.store).items()}
    _write_commits(writer, commits)
    branch = _branch(conf, repo.get_branch_name(conf.branches[0]))
    site = _site(conf, ops, publication.benchmarks, summaries, commits)
    described = project is not None
    writer.write("site", {**site, "branch": branch, "described": described, "shallow": _is_shallow(repo)})


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
            name: {"unit": found.get("unit"), "higher_is_better": direction(found), "judged": plain.judged(found)}
            for name, found in benchmarks.items()
        },
    }


def _is_shallow(repo: Any) -> bool:
    """Whether the repository lacks the older commits of its branches."""
    return str(repo._run_git(["rev-parse", "--is-shallow-repository"], dots=False)).strip() == "true"


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
