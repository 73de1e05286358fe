"""What publishing costs: `asv publish` of histories of many commits, then of one commit more.

The histories are made from this project's newest record on a GPU: its figures, with noise, at every commit of an empty
repository. `--timed` leaves out the exact figures. CPU seconds and peak memory are those of `asv publish` and its
children.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from benchmarks.project import PROJECT
from kernelwatch.commands.arguments import Output, Parser
from kernelwatch.history import records

ROOT = Path(__file__).resolve().parent.parent.parent
START = 1_767_225_600  # the date of the first commit
NOISE = 2e-4  # relative, of a cell from commit to commit


class Cost(NamedTuple):
    """Of one publication: CPU seconds, peak resident bytes, bytes and number of the site's files."""

    cpu_s: float
    memory_bytes: int
    site_bytes: int
    files: int


def repository(folder: Path, commits: int) -> list[str]:
    """Make a repository with so many empty commits; their hashes, the oldest first."""
    subprocess.run(["git", "init", "-q", "-b", "main", folder], check=True)
    stream = "".join(
        f"commit refs/heads/main\nmark :{at + 1}\ncommitter a <a@b.org> {START + 3600 * at} +0000\n"
        f"data {len(f'commit {at}')}\ncommit {at}\n" + (f"from :{at}\n" if at else "")
        for at in range(commits)
    )
    subprocess.run(["git", "-C", folder, "fast-import", "--quiet"], input=stream, text=True, check=True)
    listed = subprocess.run(
        ["git", "-C", folder, "rev-list", "--reverse", "main"], capture_output=True, text=True, check=True
    )
    return listed.stdout.split()


def _jittered(values: list[Any], noise: random.Random) -> list[Any]:
    return [value and value * (1 + noise.gauss(0, NOISE)) for value in values]


class Recorder:
    """Records commits as the newest record of a machine has it."""

    def __init__(self, results: Path, timed: bool) -> None:
        sidecar = records.sidecars(PROJECT.results)[-1]
        self.machine = results / sidecar.parent.name
        self.machine.mkdir(parents=True)
        shutil.copy(sidecar.parent / "machine.json", self.machine)
        shutil.copy(PROJECT.results / "benchmarks.json", results)
        self.environment = sidecar.name.removesuffix(".facts.jsonl").split("-", 1)[1]
        self.result = json.loads(sidecar.with_name(sidecar.name.replace(".facts.jsonl", ".json")).read_text())
        self.lines = [json.loads(line) for line in sidecar.read_text(encoding="utf-8").splitlines()]
        if timed:
            keep = {name for name in self.result["results"] if name.endswith("track_seconds")}
            self.result["results"] = {name: self.result["results"][name] for name in keep}
            self.lines = [line for line in self.lines if line["group"].endswith((" gpu", " cpu"))]

    def record(self, commit: str, at: int) -> None:
        """Write a commit's two files."""
        noise = random.Random(at)
        result = self.result | {"commit_hash": commit, "date": 1000 * (START + 3600 * at)}
        result["results"] = {
            name: [_jittered(entry[0], noise) if name.endswith("seconds") else entry[0], *entry[1:]]
            for name, entry in self.result["results"].items()
        }
        stem = self.machine / f"{commit[:8]}-{self.environment}"
        stem.with_name(stem.name + ".json").write_text(json.dumps(result))
        stem.with_name(stem.name + ".facts.jsonl").write_text("".join(self._lines(noise)), encoding="utf-8")

    def _lines(self, noise: random.Random) -> Iterator[str]:
        for line in self.lines:
            own = dict(line)
            if "visits" in own:
                factor = 1 + noise.gauss(0, NOISE)
                own["visits"] = [
                    visit | {"seconds": visit["seconds"] * factor} if "seconds" in visit else visit
                    for visit in own["visits"]
                ]
            yield json.dumps(own) + "\n"


def publish(folder: Path) -> Cost:
    """Publish, in a process of its own. Raises: CalledProcessError."""
    command = [sys.executable, "-m", "asv", "--config", str(folder / "asv.conf.json"), "publish", "--no-pull"]
    code = (
        "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL);"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN);"
        "print(used.ru_utime + used.ru_stime, used.ru_maxrss); sys.exit(done.returncode)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    cpu_s, kilobytes = done.stdout.split()
    files = [path for path in (folder / "html").rglob("*") if path.is_file()]
    return Cost(float(cpu_s), 1024 * int(kilobytes), sum(path.stat().st_size for path in files), len(files))


def costs(commits: int, timed: bool) -> tuple[Cost, Cost]:
    """The cost of publishing so many commits, and of publishing again with one commit more."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        hashes = repository(folder / "repository", commits + 1)
        recorder = Recorder(folder / "results", timed)
        conf = json.loads((ROOT / "asv.conf.json").read_text(encoding="utf-8")) | {
            "repo": str(folder / "repository"),
            "benchmark_dir": str(ROOT / "benchmarks"),
            "results_dir": str(folder / "results"),
            "html_dir": str(folder / "html"),
        }
        (folder / "asv.conf.json").write_text(json.dumps(conf))
        for at, commit in enumerate(hashes[:-1]):
            recorder.record(commit, at)
        first = publish(folder)
        recorder.record(hashes[-1], commits)
        return first, publish(folder)


def main(arguments: list[str] | None = None) -> int:
    """Print the costs of histories of several lengths."""
    parser = Parser("scripts/scale", __doc__)
    parser.add_argument("commits", nargs="*", type=int, default=[50, 200], help="lengths (default: 50 200)")
    parser.add_argument("--timed", action="store_true", help="timed series only")
    options = parser.parse_args(arguments)
    if any(commits < 1 for commits in options.commits):
        parser.error("a history has at least one commit")
    console = Output()
    table = Table(title="asv publish", title_justify="left")
    for header in ("commits", "CPU", "one commit more, CPU", "peak memory", "site", "files"):
        table.add_column(header, justify="right")
    for commits in options.commits:
        first, again = costs(commits, options.timed)
        memory = f"{max(first.memory_bytes, again.memory_bytes) / 2**20:.0f} MiB"
        site = f"{again.site_bytes / 2**20:.0f} MiB"
        table.add_row(str(commits), f"{first.cpu_s:.1f} s", f"{again.cpu_s:.1f} s", memory, site, str(again.files))
    console.print(table)
    return 0
