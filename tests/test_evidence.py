"""Green needs evidence: what was not judged, what failed, and what lies on no configured branch is said."""

import json
import math
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kernelwatch.commands.confirming import Events
from kernelwatch.commands.shown import code_of, has_figures
from kernelwatch.detect.evidence import ABSENT
from kernelwatch.history.failures import SuiteFailure
from kernelwatch.system.errors import CANNOT
from tests.pages import marks, opened, view
from tests.repositories import PERSON, ROOT, Project, link_engine, new_project, rewrite
from tests.sums_of_rows import FAST, TABLE, Rows
from tests.test_site import benchmark, browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser"]  # a fixture

CELL = "transpose/{} float32 256x256 cold"
RUNGS = ("padded", "tiled", "copy")
SERIES = "transpose.GPU.track_seconds"
FACTS = {"gpu": "H200", "nvml_driver": "580.2", "packages": {"numpy": "2.5"}}
PARAMS = [[f"'{rung}'" for rung in RUNGS], ["'256x256'"], ["'cold'"]]


@dataclass
class Small:
    """A project of which one suite with three rungs was measured. `days`: of its commits so far."""

    project: Project
    machine: str = "host"
    days: dict[str, int] = field(default_factory=dict)

    @classmethod
    def made(cls, base: Path, branches: list[str]) -> "Small":
        project = new_project(base)
        link_engine(project.folder)
        (project.folder / "benchmarks").symlink_to(ROOT / "benchmarks")
        conf = {
            "version": 1, "project": "small", "repo": ".", "branches": branches, "html_dir": "html",
            "environment_type": "existing", "plugins": [".kernelwatch.asv"],
        }  # fmt: skip
        (project.folder / "asv.conf.json").write_text(json.dumps(conf))
        listed = {"version": 2, SERIES: benchmark(SERIES) | {
            "unit": "seconds", "higher_is_better": False, "judged": "seconds", "version": "1",
            "param_names": ["rung", "shape", "cache"], "params": PARAMS,
        }}  # fmt: skip
        (project.folder / "results" / "host").mkdir(parents=True)
        (project.folder / "results" / "benchmarks.json").write_text(json.dumps(listed))
        (project.folder / "results" / "host" / "machine.json").write_text('{"machine": "host", "version": 1}')
        return cls(project)

    def commit(self, message: str = "change") -> str:
        day = len(self.days)
        dates = {f"GIT_{role}_DATE": f"{self._date(day)} +0000" for role in ("AUTHOR", "COMMITTER")}
        done = self.project.run("git", "commit", "-q", "--allow-empty", "-m", message, **PERSON, **dates)
        assert done.returncode == 0, done.stderr
        commit = self.project.git("rev-parse", "HEAD")
        self.days[commit] = day
        return commit

    def _date(self, day: int) -> int:
        return 1704067200 + day * 86400

    def measure(
        self, commit: str, seconds: float | None, binary: str = "", failed: Iterable[str] = (), **facts: Any
    ) -> str:
        """Record a commit. `seconds`: of the first rung; the others take as long as ever; None: asv has null for all.
        `failed`: lines of the sidecar."""
        noise = 1 + 3e-4 * math.sin(self.days[commit])
        known = [] if seconds is None else [seconds * noise, 1e-5 * noise, 1e-5 * noise]
        values: list[float | None] = [*known] or [None] * 3
        result = {
            "version": 2, "commit_hash": commit, "env_name": "existing", "date": 1000 * self._date(self.days[commit]),
            "params": {"machine": self.machine}, "python": "3", "requirements": {}, "env_vars": {}, "durations": {},
            "result_columns": ["result", "params", "version"],
            "results": {SERIES: [values, PARAMS, "1"]},
        }  # fmt: skip
        lines = [*failed]
        if seconds is not None:
            lines.append(json.dumps({"group": "transpose gpu", "record": "run", "facts": FACTS | facts}))
            for rung, value in zip(RUNGS, known, strict=True):
                visits = (
                    []
                    if math.isnan(value)
                    else [
                        {
                            "process": process,
                            "seconds": value * (1 + 1e-4 * (process - 2.5)),
                            "identity": f"{rung} {binary}",
                        }
                        for process in range(6)
                    ]
                )
                told = {
                    "key": CELL.format(rung),
                    "state": "ok" if visits else "failed",
                    "reason": "" if visits else "wrong",
                    "visits": visits,
                }
                lines.append(json.dumps({"group": "transpose gpu", "record": "cell"} | told))
        stem = self.project.folder / "results" / self.machine / f"{commit[:8]}-existing"
        stem.with_suffix(".json").write_text(json.dumps(result))
        stem.with_suffix(".facts.jsonl").write_text("".join(f"{line}\n" for line in lines))
        return commit

    def publish(self) -> dict[str, Any]:
        """Publish; data/events.json."""
        done = self.project.asv("publish", "--no-pull", KERNELWATCH_CACHE=str(self.project.home / "cache"))
        assert done.returncode == 0, done.stdout + done.stderr
        return dict(self.data("events"))

    def data(self, name: str) -> Any:
        return json.loads((self.project.folder / "html" / "data" / f"{name}.json").read_text())

    def main(self, count: int = 6) -> list[str]:
        """Commits on main, all as fast."""
        return [self.measure(self.commit(), 1e-5) for _ in range(count)]

    def slow(self, count: int = 3) -> list[str]:
        """Commits that are ten times slower."""
        return [self.measure(self.commit("slow"), 1e-4, "slow") for _ in range(count)]

    def new_code(self, commits: Iterable[str]) -> int:
        """The exit code of the command bench for these commits."""
        return code_of(Events(self.project.folder / "html/data/events.json", commits, self.machine).now())


def regressions(events: dict[str, Any]) -> list[tuple[str, str, bool]]:
    return [(e["last"]["hash"], e["branch"], e["configured"]) for e in events["events"] if e["kind"] == "regression"]


# --- measured commits on no configured branch ------------------------------------------------------------------------


def test_a_slower_commit_on_a_branch_that_is_not_listed_is_a_regression(tmp_path: Path) -> None:
    small = Small.made(tmp_path, ["main"])
    main = small.main()
    small.project.git("checkout", "-q", "-b", "feature")
    feature = small.slow()
    small.project.git("checkout", "-q", "main")
    later = small.main(2)
    events = small.publish()
    assert regressions(events) == [(feature[0], "feature", False)]
    assert small.new_code(feature) == 1
    (configured, line) = events["lines"]
    assert configured == {"name": "main", "configured": True}
    assert (line["name"], line["tip"]["hash"], line["fork"]["hash"]) == ("feature", feature[-1], main[-1])
    assert (line["commits"], line["merged"]) == (feature, False)
    assert {(each["branch"], each["newest"], each["judged"]) for each in events["evidence"]} == {
        ("main", later[-1], 3),
        ("feature", feature[-1], 3),
    }


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_branch_is_judged_only_against_commits_before_it(tmp_path: Path, before: int) -> None:
    small = Small.made(tmp_path, ["main"])
    small.main(before) if before else small.commit()
    small.project.git("checkout", "-q", "-b", "feature")
    slow = small.slow(4)
    small.project.git("checkout", "-q", "main")
    events = small.publish()
    told = next(each for each in events["evidence"] if each["branch"] == "feature")
    if before < 2:
        assert told["unjudged"] == [["too few comparable commits before the branch began", 3]]
    else:
        assert (told["judged"], regressions(events)) == (3, [(slow[0], "feature", False)])


def test_what_main_did_is_told_once(tmp_path: Path) -> None:
    """A branch that began after a regression of main has it in its history, and is not blamed for it."""
    small = Small.made(tmp_path, ["main"])
    small.main()
    slow = small.slow()
    small.project.git("checkout", "-q", "-b", "feature")
    for _ in range(3):
        small.measure(small.commit(), 1e-4, "slow")
    assert regressions(small.publish()) == [(slow[0], "main", True)]


def test_commits_of_a_detached_head_are_judged(tmp_path: Path) -> None:
    small = Small.made(tmp_path, ["main"])
    small.main()
    small.project.git("checkout", "-q", "--detach")
    slow = small.slow()
    events = small.publish()
    assert regressions(events) == [(slow[0], slow[-1][:8], False)]
    small.project.git("checkout", "-q", "main")  # now nothing but the reflog knows them
    assert regressions(small.publish()) == [(slow[0], slow[-1][:8], False)]
    assert small.new_code(slow) == 1


def test_a_merge_is_judged_on_main_and_what_it_brought_beside_it(tmp_path: Path) -> None:
    small = Small.made(tmp_path, ["main"])
    small.main()
    small.project.git("checkout", "-q", "-b", "feature")
    slow = small.slow()
    small.project.git("checkout", "-q", "main")
    small.measure(small.commit(), 1e-5)
    small.project.git("merge", "-q", "--no-ff", "-m", "merged", "feature")
    merge = small.project.git("rev-parse", "HEAD")
    small.days[merge] = len(small.days)
    small.measure(merge, 1e-4, "slow")
    for _ in range(2):
        small.measure(small.commit(), 1e-4, "slow")
    events = small.publish()
    assert sorted(regressions(events)) == sorted([(merge, "main", True), (slow[0], "feature", False)])
    assert [line["merged"] for line in events["lines"] if not line["configured"]] == [True]


def test_commits_that_git_does_not_know_are_said(tmp_path: Path) -> None:
    small = Small.made(tmp_path, ["main"])
    small.main()
    small.days["0123456789" * 4] = 3
    small.measure("0123456789" * 4, 1e-5)
    assert small.publish()["unknown"] == ["0123456789" * 4]


@pytest.mark.parametrize("lost", ["*-existing.json", "*.facts.jsonl", "*.links.jsonl", "machine.json", ""])
def test_what_cannot_be_read_is_said(tmp_path: Path, lost: str) -> None:
    """A file that was cut, or without machine.json all of a machine's: its regression must not go without a word."""
    small = Small.made(tmp_path, ["main"])
    small.main()
    folder = small.project.folder / "results" / small.machine
    (folder / f"{small.project.git('rev-parse', '--short=8', 'HEAD')}.12345678.links.jsonl").write_text("{}\n")
    path = next(folder.glob(lost or "machine.json"))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    if not lost:
        path.unlink()
    told = [text for text in small.publish()["unread"] if ".links." not in text or ".links." in lost]
    named = path.with_name(path.name.replace(".facts.jsonl", ".json")) if lost else folder  # the file of the commit
    assert [text.partition(": ")[0] for text in told] == [str(named.relative_to(folder.parent))]


def test_status_and_regressions_say_what_cannot_be_read(browser: "Browser", tmp_path: Path) -> None:
    small = Small.made(tmp_path, ["main"])
    small.main()
    name = f"{small.machine}/{small.measure(small.commit(), 1e-5)[:8]}-existing.json"
    (small.project.folder / "results" / name).write_text("{")
    small.publish()
    for view_name in ("status", "regressions"):
        with opened(browser, small.project.folder / "html", view_name, fresh=True) as page:
            told = page.locator("[data-unread='1']").inner_text()
            assert "1 file of the results cannot be read. What is in there is not shown and not judged" in told
            assert f"{name}: it is not shown: " in told


@pytest.mark.parametrize("file", ["project", "row_sum"])
def test_what_is_imported_ends_no_command_with_a_verdict(rows: Rows, file: str) -> None:
    """A description, which each command imports itself, or a suite, which asv's publish imports."""
    rows.write_files({"rows/__init__.py": TABLE, "rows/sums.py": FAST})
    rows.describe()
    rows.commit_all("first")
    rows.kernelwatch("link", code=0)  # pages that could be taken for new ones
    with (rows.folder / "benchmarks" / f"{file}.py").open("a") as module:
        module.write("\nimport os\n\nos._exit(0)\n")
    for command in (("link",), ("versus", "HEAD", "HEAD", "--exact")):
        told = rows.kernelwatch(*command, code=CANNOT)
        assert "os._exit(0)" in told or "made no pages" in told


# --- what was not judged ---------------------------------------------------------------------------------------------


def test_nothing_to_compare_is_said_with_numbers(tmp_path: Path) -> None:
    small = Small.made(tmp_path, ["main"])
    small.main()
    small.measure(newest := small.commit(), 1e-5, nvml_driver="590.1")
    (told,) = small.publish()["evidence"]
    assert told == {
        "machine": "host", "branch": "main", "newest": newest, "series": 3, "judged": 0,
        "unjudged": [["one commit under the newest conditions", 3]],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("count", "why"),
    [(1, "one commit is measured"), (3, "too few commits under the newest conditions: 4 are enough"), (4, "")],
)
def test_a_short_history_is_not_judged(tmp_path: Path, count: int, why: str) -> None:
    small = Small.made(tmp_path, ["main"])
    small.main(count)
    (told,) = small.publish()["evidence"]
    assert (told["judged"], told["unjudged"]) == ((0, [[why, 3]]) if why else (3, []))


def test_the_level_of_the_detectable_change_is_said(tmp_path: Path) -> None:
    """The stripe is drawn over these commits: those since the last change or turn of the conditions."""
    small = Small.made(tmp_path, ["main"])
    small.main()
    turned = [small.measure(small.commit(), 1e-5, nvml_driver="590.1") for _ in range(5)]
    slow = [small.measure(small.commit(), 1e-4, "slow", nvml_driver="590.1") for _ in range(5)]
    small.commit("not measured")
    small.publish()
    told = small.data("series")
    ends = {each["cell"]: tuple(told["levels"][each["level"]]) for each in told["series"]}
    assert {told["places"][each["place"]]["machine"] for each in told["series"]} == {"host"}
    assert (len(told["places"]), len(told["levels"])) == (1, 2)  # each stands there once
    assert ends == {
        CELL.format("padded"): (slow[0], slow[-1]),
        CELL.format("tiled"): (turned[0], slow[-1]),
        CELL.format("copy"): (turned[0], slow[-1]),
    }


# --- what failed -----------------------------------------------------------------------------------------------------


RAISES = "raise ValueError('no table of rows')"
DIES = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


@dataclass(frozen=True)
class Measuring(Project):
    """A project that this copy of the engine measures."""

    engine: Path

    def kernelwatch(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        variables = {"PYTHONPATH": str(self.engine), "KERNELWATCH_CACHE": str(self.home / "cache")}
        return self.run(sys.executable, "-m", "kernelwatch", *arguments, **variables)


def rows(base: Path, engine: Path, body: str) -> Measuring:
    """The project that `kernelwatch init` writes, whose one suite prepares itself so."""
    empty = new_project(base, "rows")
    project = Measuring(empty.folder, empty.home, engine)
    project.git("commit", "-q", "--allow-empty", "-m", "Begin")
    done = project.kernelwatch("init")
    assert done.returncode == 0, done.stdout + done.stderr
    rewrite(
        project.folder, {"benchmarks/row_sum.py": {"return self.measure()": f"{body}\n        return self.measure()"}}
    )
    project.commit_all("Measure")
    return project


def bench(project: Measuring) -> "subprocess.CompletedProcess[str]":
    return project.kernelwatch("bench", "--no-gate", "--no-confirm")


def events_of(project: Project) -> dict[str, Any]:
    return dict(json.loads((project.folder / ".asv/html/data/events.json").read_text()))


@pytest.mark.parametrize(
    ("body", "reason"), [(RAISES, "ValueError: no table of rows"), (DIES, "asv: setup_cache failed (exit status -9)")]
)
def test_a_suite_that_dies_is_told_with_its_reason(tmp_path: Path, small_engine: Path, body: str, reason: str) -> None:
    project = rows(tmp_path, small_engine, body)
    done = bench(project)
    assert done.returncode == 2, done.stdout + done.stderr
    for words in ("failed at", reason, "; its output: .asv/failed/", "verdict: 1 suite failed"):
        assert words in done.stdout
    (told,) = events_of(project)["failures"]
    assert (told["suite"], told["reason"], told["series"]) == ("row_sum.CPU", reason, 3)
    assert told["commit"] == project.git("rev-parse", "HEAD")
    log = (project.folder / told["log"]).read_text()
    assert reason in log
    if body != RAISES:
        return
    rewrite(project.folder, {"benchmarks/row_sum.py": {body: "pass"}})
    done = bench(project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert events_of(project)["failures"] == []
    assert '"suite"' not in next(project.folder.glob("results/*/*.facts.jsonl")).read_text()


def test_nulls_without_a_reason_are_failures(tmp_path: Path) -> None:
    """Records of older versions of the engine keep no reason."""
    small = Small.made(tmp_path, ["main"])
    small.main()
    dead = small.measure(small.commit(), None)
    (told,) = small.publish()["failures"]
    assert told == {
        "machine": "host", "commit": dead, "suite": "transpose.GPU", "series": 1, "log": "",
        "reason": "asv recorded null, and no reason is kept",
    }  # fmt: skip


def test_a_run_without_a_figure_is_not_green(rows: Rows) -> None:
    """This machine lacks what the kernels of a commit need, so that no cell has failed."""
    rows.write_files({"rows/__init__.py": TABLE, "rows/sums.py": FAST})
    rows.write_files({"benchmarks/own.py": "def track_it():\n    return 1\n"})  # asv's own, which shows no kernel
    rows.describe()
    rows.commit_all("first")
    rows.write_files({"rows/__init__.py": f"import pycuda\n{TABLE}"})
    rows.commit_all("second")
    said = rows.kernelwatch("bench", "--all", "--no-gate", code=2)
    assert "verdict: nothing was judged" in said
    assert "no cell gave a figure" in said
    assert "no cell gave a figure" in rows.kernelwatch("bench", "--quick", "--no-gate", code=2)
    said = rows.kernelwatch("bench", "--all", "--no-gate", "HEAD~1^!")  # which has figures, and the newest has none
    assert "no cell gave a figure" not in said


def test_a_run_whose_cells_are_all_not_taken_is_not_green(rows: Rows) -> None:
    """Its series have figures of an earlier commit."""
    rows.write_files({"rows/__init__.py": TABLE, "rows/sums.py": FAST})
    rows.describe()
    rows.commit_all("first")
    rows.kernelwatch("bench", "--all", "--no-gate", code=0)
    rows.describe('Rung("plain", "cpu", ("float32",), takes=lambda shape, type: "never"),')
    rows.commit_all("second")
    said = rows.kernelwatch("bench", "--all", "--no-gate", code=2)
    assert "row_sum/plain float32 64x64 cold: never" in said
    assert "no cell gave a figure" in said


def test_one_value_of_one_benchmark_is_a_figure(tmp_path: Path) -> None:
    for unjudged, is_figure in (([["one commit is measured", 1]], True), ([[ABSENT, 1]], False)):
        assert has_figures(tmp_path, [], [], [{"series": 1, "unjudged": unjudged}]) is is_figure


def test_a_fault_of_a_description_is_told_by_its_line(rows: Rows) -> None:
    rows.write_files({"rows/__init__.py": TABLE, "rows/sums.py": FAST})
    rows.describe()
    rows.commit_all("first")
    rows.commit_all("second", "--allow-empty")
    path = rows.folder / "benchmarks" / "project.py"
    path.write_text(path.read_text().replace("lambda shape: (shape,),", "lambda shape: (shape / 2,),"))
    for command in ("versus HEAD~1 HEAD --all", "link HEAD", "bench --all"):
        told = rows.kernelwatch(*command.split(), code=CANNOT)
        assert "Traceback" not in told
        assert f"{path}:12 raises TypeError: unsupported operand" in told


def test_a_choice_of_cells_that_matches_none_is_not_green(rows: Rows) -> None:
    rows.write_files({"rows/__init__.py": TABLE, "rows/sums.py": FAST})
    rows.describe()
    rows.commit_all("first")
    for chosen in (("--only", "nothing"), ("--type", "float16"), ("row_sum/plain", "--shape", "3x3")):
        assert "no cell matches" in rows.kernelwatch("bench", "--worktree", *chosen, code=CANNOT)


def test_a_process_that_was_killed_is_no_mistake_that_was_mended(rows: Rows) -> None:
    """By the system, say, where memory runs out: what it would have told is not known."""
    killed = FAST.replace("    for _", "    os.kill(os.getpid(), 9)\n    for _").replace(
        "import numpy", "import os\nimport numpy"
    )
    rows.write_files({"rows/__init__.py": TABLE, "rows/sums.py": killed})
    rows.describe()
    rows.commit_all("killed")
    rows.write_files({"rows/sums.py": FAST})
    rows.commit_all("fast")
    said = rows.kernelwatch("versus", "HEAD~1", "HEAD", code=2)
    assert "cannot tell: row_sum/plain float32 64x64 cold: BASE: its process died with exit code -9" in said, said
    rows.kernelwatch("link", "HEAD^!", code=2)


def test_what_a_suite_said_before_it_ran_counts_no_more(tmp_path: Path) -> None:
    small = Small.made(tmp_path, ["main"])
    small.main()
    line = SuiteFailure("transpose.GPU", "it was killed", "", 1).line()
    small.measure(small.commit(), 1e-5, failed=[line])
    assert small.publish()["failures"] == []
    small.measure(commit := small.commit(), None, failed=[line, "{", '{"record": "suite", "suite": 3}'])
    assert [(told["commit"], told["reason"]) for told in small.publish()["failures"]] == [(commit, "it was killed")]


# --- on the pages ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def told_site(tmp_path_factory: pytest.TempPathFactory) -> Small:
    """Two machines: on one a driver changed at the newest commit, on the other a suite died there; a feature branch."""
    small = Small.made(tmp_path_factory.mktemp("told"), ["main"])
    small.main()
    small.measure(newest := small.commit("Another driver"), 1e-5, nvml_driver="590.1")
    other = small.project.folder / "results" / "other"
    other.mkdir()
    (other / "machine.json").write_text('{"machine": "other", "version": 1}')
    small.machine = "other"
    for commit in list(small.days)[:-1]:
        small.measure(commit, 1e-5)
    failure = SuiteFailure("transpose.GPU", "ModuleNotFoundError: No module named 'rows'", ".asv/failed/a.log", 1)
    small.measure(newest, None, failed=[failure.line()])
    small.machine = "host"
    small.project.git("checkout", "-q", "-b", "feature")
    for _ in range(4):
        small.measure(small.commit("Slower by ten"), 1e-4, "slow", nvml_driver="590.1")
    small.project.git("checkout", "-q", "main")
    small.publish()
    return small


def test_the_status_is_green_only_with_evidence(browser: "Browser", told_site: Small) -> None:
    with opened(browser, told_site.project.folder / "html", "status") as page:
        cards = {name: page.locator(f".machine[data-machine={name}]").inner_text() for name in ("host", "other")}
        assert "Nothing is judged at" in cards["host"]
        assert "0 of 3 series; not judged: 3 series: one commit under the newest conditions" in cards["host"]
        assert "1 suite failed at the newest measured commit." in cards["other"]
        assert "transpose.GPU: ModuleNotFoundError: No module named 'rows' (.asv/failed/a.log)" in cards["other"]
        assert "3 series: no figure at the newest commit" in cards["other"]
        assert not any("No open regression" in card for card in cards.values())
        line = page.locator(".line[data-line=feature]")
        assert "not on a configured branch" in line.inner_text()
        assert "No open regression" not in line.inner_text()
        why = "0 of 3 series; not judged: 3 series: too few comparable commits before the branch began"
        assert f"judged along its own first parents\n{why}" in line.inner_text()


def test_devices_and_the_commit_say_which_suite_failed(browser: "Browser", told_site: Small) -> None:
    site = told_site.project.folder / "html"
    for address in ("devices?machine=other", "commit"):
        with opened(browser, site, address) as page:
            table = page.get_by_role("region", name="Failed suites")
            row = "transpose.GPU\tModuleNotFoundError: No module named 'rows'\t1\t.asv/failed/a.log"
            assert row in table.inner_text()
            assert "No cell and no suite failed" not in page.locator("main").inner_text()
    with opened(browser, site, "devices?machine=host") as page:
        assert (
            "No cell and no suite failed at the newest commit, nor at any other." in page.locator("main").inner_text()
        )


def test_the_regressions_page_names_the_branch(browser: "Browser", tmp_path: Path) -> None:
    small = Small.made(tmp_path, ["main"])
    small.main()
    small.project.git("checkout", "-q", "-b", "feature")
    slow = small.slow()
    small.project.git("checkout", "-q", "main")
    small.publish()
    with opened(browser, small.project.folder / "html", "regressions", fresh=True) as page:
        event = page.locator(f".event[data-commit='{slow[0]}']").inner_text()
        assert "on feature, which is not a configured branch" in event
        assert "judged: 3 of 3 series" in page.locator("main").inner_text()


def test_the_stripe_lies_over_what_it_was_computed_from(browser: "Browser", tmp_path: Path) -> None:
    small = Small.made(tmp_path, ["main"])
    small.main()
    for _ in range(6):
        small.measure(small.commit(), 1e-5, nvml_driver="590.1")
    for _ in range(3):  # at which this rung failed
        small.measure(small.commit(), math.nan, nvml_driver="590.1")
    small.publish()
    key = CELL.format("padded")
    with opened(browser, small.project.folder / "html", view("history", cell=key, y="absolute"), fresh=True) as page:
        points = marks(page.locator(".point > *"))
        (stripe,) = page.locator(".unseen rect").evaluate_all(
            "all => all.map(each => each.getBoundingClientRect().toJSON())"
        )
    assert len(points) == 12
    assert stripe["left"] == pytest.approx(points[6]["x"], abs=1)
    assert stripe["right"] == pytest.approx(points[11]["x"], abs=1)


def test_the_feed_says_that_nothing_was_judged(told_site: Small) -> None:
    feed = (told_site.project.folder / "html" / "regressions.xml").read_text()
    newest = told_site.data("events")["evidence"][0]["newest"]
    assert f"nothing judged: {newest[:8]} on host, main" in feed
    assert f"failed: transpose.GPU at {newest[:8]} on other" in feed
