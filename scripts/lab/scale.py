#!/usr/bin/env python3
"""What publishing costs: `asv publish` of histories of many commits, then of one commit more, and what its pages load.

The histories are made from this project's most complete record, whose timed series come first: VARIANTS records with
noise, of which each commit of an empty repository has one. CPU seconds and peak memory are those of `asv publish` and
its children; a page is opened from its file, in a fresh browser.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import itertools
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from rich.table import Table

from benchmarks.project import PROJECT
from kernelwatch.publish.recorded import sidecar_of
from kernelwatch.publish.series import cell_of
from kernelwatch.report import markdown
from kernelwatch.report.arguments import Output, Parser
from kernelwatch.timing.cpu import cpu_name
from lab import figures, picture
from lab.loading import VIEWS, Loaded, load

ROOT = Path(__file__).resolve().parent.parent.parent
START = 1_767_225_600  # the date of the first commit
NOISE = 2e-4  # relative, of a cell from commit to commit
VARIANTS = 64
SERIES = 5000  # judged ones of a commit
HEADERS = (
    "commits", "CPU", "one commit more", "peak memory", "site", "files", "Status", "History", "slowest page",
)  # fmt: skip
CELL = "transpose/padded float32 4096x4096 cold"  # whose history is opened


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


def by_series(results: Path) -> list[Path]:
    """The result files that have a sidecar, those with the most series first."""

    def size(path: Path) -> int:
        recorded = json.loads(path.read_text(encoding="utf-8"))["results"].values()
        return sum(value is not None for values, *_ in recorded for value in values or ())

    paths = [path for path in sorted(results.glob("*/*-*.json")) if sidecar_of(path).exists()]
    return sorted(paths, key=size, reverse=True)


class Recorder:
    """Records commits like the most complete record of all, with the first `series` of its judged series and the first
    `exact` exact ones of the others."""

    def __init__(self, results: Path, series: int, exact: int = 0) -> None:
        path = by_series(PROJECT.results)[0]
        sidecar = sidecar_of(path)
        self.machine = results / sidecar.parent.name
        self.machine.mkdir(parents=True)
        self.variants = results.parent / "variants"
        self.variants.mkdir()
        shutil.copy(sidecar.parent / "machine.json", self.machine)
        self.environment = path.stem.split("-", 1)[1]
        self.result = json.loads(path.read_text(encoding="utf-8"))
        self.lines = [json.loads(line) for line in sidecar.read_text(encoding="utf-8").splitlines()]
        benchmarks = json.loads((PROJECT.results / "benchmarks.json").read_text(encoding="utf-8"))
        cells = self._keep(benchmarks, series, exact)
        kept = {
            name: entry for name, entry in benchmarks.items() if name in self.result["results"] or name == "version"
        }
        (results / "benchmarks.json").write_text(json.dumps(kept))
        self.lines = [line for line in self.lines if line["record"] == "run" or line["key"] in cells]

    def _keep(self, benchmarks: dict[str, Any], series: int, exact: int) -> set[str]:
        """Leave these judged series in the result; the keys of their cells."""
        names = [name for name in self.result["results"] if benchmarks.get(name, {}).get("judged")]
        names.sort(key=lambda name: (benchmarks[name]["judged"] == "exact", ".GPU." not in name, name))
        cells: set[str] = set()
        kept = {}
        for name in names:
            values, params, *others = self.result["results"][name]
            for at, combination in enumerate(itertools.product(*params)):
                if values is None or values[at] is None:
                    continue
                beside = not series and exact > 0 and benchmarks[name]["judged"] == "exact"
                if series or beside:
                    series, exact = series - (not beside), exact - beside
                    cells.add(cell_of(ROOT / "benchmarks", name, combination)[0])
                else:
                    values[at] = None
            if values and any(value is not None for value in values):
                kept[name] = [values, params, *others]
        self.result["results"] = kept
        return cells

    def record(self, commit: str, at: int) -> None:
        """Write a commit's two files."""
        result, sidecar = (self.variants / f"{at % VARIANTS}{suffix}" for suffix in (".json", ".facts.jsonl"))
        if not result.exists():
            noise = random.Random(at)
            factors = {line["key"]: 1 + noise.gauss(0, NOISE) for line in self.lines if line["record"] == "cell"}
            result.write_text(json.dumps(self._result(factors)))
            sidecar.write_text("".join(self._lines(factors)), encoding="utf-8")
        stem = self.machine / f"{commit[:8]}-{self.environment}"
        text = (
            result.read_text().replace('"<commit>"', f'"{commit}"').replace('"<date>"', str(1000 * (START + 3600 * at)))
        )
        stem.with_name(f"{stem.name}.json").write_text(text)
        os.link(sidecar, stem.with_name(f"{stem.name}.facts.jsonl"))

    def _result(self, factors: dict[str, float]) -> dict[str, Any]:
        results = {}
        for name, (values, params, *others) in self.result["results"].items():
            keys = (cell_of(ROOT / "benchmarks", name, each)[0] for each in itertools.product(*params))
            timed = name.endswith("seconds")
            moved = [value and value * factors.get(key, 1.0) for value, key in zip(values, keys, strict=True)]
            results[name] = [moved if timed else values, params, *others]
        return {**self.result, "commit_hash": "<commit>", "date": "<date>", "results": results}

    def _lines(self, factors: dict[str, float]) -> Iterator[str]:
        for line in self.lines:
            own = dict(line)
            if "visits" in own:
                own["visits"] = [
                    visit | {"seconds": visit["seconds"] * factors[line["key"]]} if "seconds" in visit else visit
                    for visit in own["visits"]
                ]
            yield json.dumps(own) + "\n"


class History:
    """A synthetic history in a folder, with `commits` of its commits recorded."""

    def __init__(self, folder: Path, commits: int, series: int, exact: int = 0) -> None:
        self.folder = folder
        self.hashes = repository(folder / "repository", commits + 1)
        self.recorder = Recorder(folder / "results", series, exact)
        conf = json.loads((ROOT / "asv.conf.json").read_text(encoding="utf-8")) | {
            "repo": str(folder / "repository"),
            "benchmark_dir": str(ROOT / "benchmarks"),
            "results_dir": str(folder / "results"),
            "html_dir": str(folder / "html"),
        }
        (folder / "asv.conf.json").write_text(json.dumps(conf))
        self.recorded = 0
        for _ in range(commits):
            self.more()

    def more(self) -> None:
        """Record the next commit."""
        self.recorder.record(self.hashes[self.recorded], self.recorded)
        self.recorded += 1

    def publish(self) -> Cost:
        """Publish, in a process of its own. Raises: CalledProcessError."""
        command = [sys.executable, "-m", "asv", "--config", str(self.folder / "asv.conf.json"), "publish", "--no-pull"]
        code = (
            "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL);"
            "used = resource.getrusage(resource.RUSAGE_CHILDREN);"
            "print(used.ru_utime + used.ru_stime, used.ru_maxrss); sys.exit(done.returncode)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, *command],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "KERNELWATCH_CACHE": str(self.folder / "cache")},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        cpu_s, kilobytes = done.stdout.split()
        files = [path for path in (self.folder / "html").rglob("*") if path.is_file()]
        return Cost(float(cpu_s), 1024 * int(kilobytes), sum(path.stat().st_size for path in files), len(files))

    def opened(self) -> list[Loaded]:
        """The Status page, the history of a cell, and the other pages."""
        from playwright.sync_api import sync_playwright

        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=picture.browser(), args=["--no-sandbox", "--disable-gpu"])
            views = dict.fromkeys(["status", f"history?cell={quote(CELL)}", *VIEWS])
            found = [load(browser, self.folder / "html", view) for view in views]
            browser.close()
        return found


def measure(commits: int, series: int, folder: Path | None) -> list[str]:
    """The costs of a history, as in HEADERS."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        history = History(Path(temporary), commits, series)
        first = history.publish()
        history.more()
        return row(commits, first, history.publish(), history.opened())


def row(commits: int, first: Cost, again: Cost, pages: list[Loaded]) -> list[str]:
    """A line of the table."""
    memory = max(first.memory_bytes, again.memory_bytes)
    slowest = max(pages, key=lambda page: page.shown_ms)
    return [
        f"{commits:,}",
        f"{first.cpu_s:.1f} s",
        f"{again.cpu_s:.1f} s",
        f"{memory / 2**20:,.0f} MiB",
        f"{again.site_bytes / 2**20:,.0f} MiB",
        f"{again.files:,}",
        *(f"{(page.drawn_ms or 0) / 1000:.1f} s, {page.bytes / 2**20:.1f} MiB" for page in pages[:2]),
        f"{slowest.view.partition('?')[0].capitalize()}: {slowest.shown_ms / 1000:.1f} s",
    ]


def machine(series: int) -> str:
    """Where and of what the table was measured, in a sentence."""
    python = f"Python {platform.python_version()}"
    return f"On {cpu_name()} with {os.cpu_count()} cores that others used as well, {python}; {series:,} judged series."


def main(arguments: list[str] | None = None) -> int:
    """Print the costs of histories of several lengths."""
    parser = Parser("scripts/lab/scale", __doc__)
    parser.add_argument("commits", nargs="*", type=int, default=[200, 1000], help="lengths (default: 200 1000)")
    parser.add_argument("--series", type=int, default=SERIES, help="judged series of a commit (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where the histories are made (default: the temporary folder)")
    parser.add_argument("--write", action="store_true", help="write the table into docs/data.md")
    options = parser.parse_args(arguments)
    if any(commits < 1 for commits in options.commits) or options.series < 1:
        parser.error("a history has at least one commit and one series")
    table = Table(title=f"asv publish, {options.series:,} series", title_justify="left")
    for header in HEADERS:
        table.add_column(header, justify="right")
    rows = [measure(commits, options.series, options.folder) for commits in options.commits]
    for cells in rows:
        table.add_row(*cells)
    Output().print(table)
    if options.write:
        text = f"{markdown.table(list(HEADERS), rows)}\n\n{machine(options.series)}"
        figures.write_block(ROOT / "docs" / "data.md", "scale", text, "scripts/lab/scale --write")
    return 0
