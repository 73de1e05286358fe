"""Commits of a project without a description: their environments take turns on asv's benchmarks."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from asv.config import Config

from kernelwatch.comparison import benchmarks
from kernelwatch.comparison.paired import KILLED, Judged, Side
from kernelwatch.history import links
from kernelwatch.history.links import UNDIRECTED, Session
from kernelwatch.system.errors import CANNOT
from tests.pages import NARROW, WIDE, fits, opened
from tests.repositories import ROOT, Project, new_project
from tests.test_site import browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser"]  # a fixture

pytestmark = pytest.mark.xdist_group("plain turns")  # one project with its links for all of these

# The time of a benchmark is that of a clock of its own, which the measured package moves: what is planted shows in two
# turns, however busy the machine is.
PACKAGE = """
clock = 0.0


def work(seconds):
    global clock
    clock += {factor} * seconds
"""
SUITE = """
import work


class Common:
    number, repeat, warmup_time, rounds = 1, 3, 0, 1
    timer = staticmethod(lambda: work.clock)


class Sort(Common):
    params = [["small", "large"], [1, 2]]
    param_names = ["size", "copies"]

    def setup(self, size, copies):
        getattr(work, "prepare", lambda: None)()
        self.seconds = {"small": 1e-3, "large": 1e-2}[size] * copies

    def time_sort(self, size, copies):
        work.work(self.seconds)


class Cached(Common):
    def setup_cache(self):
        getattr(work, "prepare_all", lambda: None)()
        with open(work.__file__ + ".log", "a") as file:
            file.write("made\\n")
        return 2e-3

    def time_cached(self, seconds):
        work.work(seconds)


class Skipped(Common):
    def setup(self):
        raise NotImplementedError

    def time_skipped(self):
        pass


if hasattr(work, "merge"):
    class Merge(Common):
        def time_merge(self):
            work.work(1.0)


def track_rate():
    return getattr(work, "RATE", 5.0)


track_rate.higher_is_better = True
track_rate.unit = "GB/s"


def track_calls():
    return getattr(work, "CALLS", 7.0)
"""
# As the system does where memory runs out.
KILLS = """

import os


def prepare():
    os.kill(os.getpid(), 9)


prepare_all = prepare
"""
SORTS = [f"suite.Sort.time_sort('{size}', {copies})" for size in ("large", "small") for copies in (1, 2)]
EVERY = [*SORTS, "suite.Cached.time_cached"]
UNASKED = [*SORTS, "suite.Merge.time_merge", "suite.Skipped.time_skipped", "suite.track_rate"]


CONFIGURATION = {
    "version": 1, "project": "plain", "repo": ".", "branches": ["main"], "html_dir": "html",
    "environment_type": "existing", "plugins": [".kernelwatch.asv"],
}  # fmt: skip


@dataclass
class Plain:
    project: Project
    commits: dict[str, str]
    engine: Path

    def run(self, name: str, *arguments: str, code: int, path: str = "") -> str:
        done = self.project.run(
            sys.executable, "-m", "kernelwatch", name, "-E", "checkout", *arguments,
            PYTHONPATH=f"{self.engine}{os.pathsep}{path}", KERNELWATCH_CACHE=str(self.project.home / "cache"),
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def versus(self, base: str, head: str, *arguments: str, code: int) -> Any:
        """The report as data."""
        out = self.project.home / "report.json"
        self.run("versus", self.commits[base], self.commits[head], "--comment", str(out), *arguments, code=code)
        return json.loads(out.read_text())

    def sessions(self) -> list[Session]:
        found, messages = links.read(self.project.folder / "results" / "mine")
        assert not messages
        return found


def verdicts(report: Any) -> dict[str, str]:
    return {row[0]: row[-1] for table in report["tables"] for row in table["rows"]}


def new_plain(base: Path, engine: Path) -> Plain:
    """A project with asv's suites and the one line for the plugin, without a commit, on a machine that asv knows."""
    project = new_project(base)
    (project.folder / "asv.conf.json").write_text(json.dumps(CONFIGURATION))
    (project.folder / ".gitignore").write_text("env\nresults\nhtml\n")
    (project.folder / "benchmarks").mkdir()
    (project.folder / "benchmarks" / "__init__.py").touch()
    (project.folder / "benchmarks" / "suite.py").write_text(SUITE)
    done = project.asv("machine", "--yes", "--machine", "mine", PYTHONPATH=str(engine))
    assert done.returncode == 0, done.stderr
    return Plain(project, {}, engine)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, small_engine: Path) -> Plain:
    """The project, and its commits by what they do."""
    found = new_plain(tmp_path_factory.mktemp("turns"), small_engine)
    merge = "\n\ndef merge(): ...\n"
    for name, text in {
        "first": PACKAGE.format(factor=1) + merge,
        "same": "# A comment.\n" + PACKAGE.format(factor=1) + merge,
        "slower": PACKAGE.format(factor=1.2) + merge + "\n\nRATE, CALLS = 4.0, 8.0\n",
        "gone": PACKAGE.format(factor=1.2),
        "broken": PACKAGE.format(factor=1.2) + "\n\ndef prepare():\n    raise RuntimeError('no data')\n",
        "killed": PACKAGE.format(factor=1.2) + KILLS,
        "unusable": "import nothing_like_it\n",
    }.items():
        (found.project.folder / "work.py").write_text(text)
        found.commits[name] = found.project.commit_all(name)
    return found


def test_what_became_slower_is_worse_and_a_rate_has_its_own_direction(plain: Plain) -> None:
    report = plain.versus("first", "slower", code=1)
    told = verdicts(report)
    assert told == dict.fromkeys([*EVERY, "suite.Merge.time_merge", "suite.track_rate"], "worse") | {
        "suite.track_calls": "changed"
    }
    row = next(row for row in report["tables"][0]["rows"] if row[0] == SORTS[0])
    assert row[1:5] == ["10 ms", "12 ms", "+20.0 %", "+20.0..+20.0 %"], row
    assert report["lines"][-1].startswith("2 turns; ")
    skipped = "asv skips it (its setup raises NotImplementedError, or its value is NaN)"
    assert f"n/a: suite.Skipped.time_skipped: {skipped}" in report["lines"]
    back = verdicts(plain.versus("slower", "first", "--bench", "track|large", code=0))
    assert back == {
        SORTS[0]: "better",
        SORTS[1]: "better",
        "suite.track_rate": "better",
        "suite.track_calls": "changed",
    }


def test_a_comment_changes_nothing(plain: Plain) -> None:
    report = plain.versus("first", "same", code=0)
    assert set(verdicts(report).values()) == {"no change"}
    assert report["summary"] == "no change: 8 benchmarks"


def test_setup_cache_is_made_once_for_each_side(plain: Plain) -> None:
    plain.versus("first", "same", "--bench", "cached", code=0)
    logs = list((plain.project.folder / "env").glob("versus-*/*/project/work.py.log"))
    assert [log.read_text() for log in logs] == ["made\n"] * 2


def test_a_benchmark_that_is_gone_cannot_be_told(plain: Plain) -> None:
    report = plain.versus("slower", "gone", "--bench", "merge|small", code=2)
    assert verdicts(report) == dict.fromkeys(SORTS[2:], "no change")
    assert report["lines"][0] == "gone: suite.Merge.time_merge: HEAD has no such benchmark"
    assert report["summary"] == "cannot tell: 1 benchmark of BASE gone"
    report = plain.versus("gone", "slower", "--bench", "merge", code=0)
    assert report["summary"] == "new: 1 benchmark"


def test_a_broken_setup_fails_and_the_others_are_compared(plain: Plain) -> None:
    report = plain.versus("gone", "broken", code=2)
    assert report["lines"][0] == f"failed: 4 benchmarks ({SORTS[0]}, ...): RuntimeError: no data"
    assert verdicts(report)["suite.Cached.time_cached"] == "no change"
    assert report["summary"] == "HEAD failed: 4 benchmarks"
    report = plain.versus("broken", "gone", "--bench", "small", code=0)
    assert report["summary"] == "repaired: 2 benchmarks"
    report = plain.versus("broken", "broken", "--bench", "small.*1", code=2)
    assert report["lines"][0] == f"cannot tell: {SORTS[2]}: it fails on both sides: RuntimeError: no data"


def test_what_a_killed_process_would_have_told_is_not_known(plain: Plain) -> None:
    report = plain.versus("killed", "gone", "--bench", "small.*1|cached", code=2)
    assert dict(line.split(": BASE: ") for line in report["lines"][:2]) == {
        f"cannot tell: {SORTS[2]}": KILLED,
        "cannot tell: suite.Cached.time_cached": f"{KILLED} in setup_cache",
    }


def test_a_commit_whose_benchmarks_cannot_be_imported(plain: Plain) -> None:
    why = "its benchmarks cannot be imported: ModuleNotFoundError: No module named 'nothing_like_it'"
    assert plain.versus("first", "unusable", code=2)["summary"] == f"HEAD failed: {why}"
    assert plain.versus("unusable", "first", code=2)["summary"] == f"cannot tell: BASE: {why}"


def test_what_cannot_be_compared_is_no_verdict(plain: Plain) -> None:
    first, same = plain.commits["first"], plain.commits["same"]
    assert "no benchmark matches 'nothing'" in plain.run("versus", first, same, "--bench", "nothing", code=CANNOT)
    assert "the repository has no commit nobody" in plain.run("versus", first, "nobody", code=CANNOT)
    said = plain.run("link", "nobody..HEAD", code=CANNOT)
    assert "Traceback" not in said
    assert "kernelwatch link: no range of commits nobody..HEAD: fatal: bad revision" in said
    said = plain.run("link", f"{same}..{first}", code=CANNOT)
    assert f"no commits in {same}..{first}: it ends before it begins" in said
    said = plain.run("link", f"{same}..{same}", code=CANNOT)
    assert f"no commits in {same}..{same}: it begins and ends at one commit" in said
    done = plain.project.run(sys.executable, "-m", "kernelwatch", "versus", first, same, PYTHONPATH=str(plain.engine))
    assert done.returncode == CANNOT
    assert "holds one version of the project" in done.stderr


def test_the_engine_imports_nothing_of_asv_for_its_own_commands() -> None:
    """asv takes a quarter of the time in which such a command would start."""
    commands = ", ".join(
        f"kernelwatch.commands.{name}" for name in ("campaign", "ladder", "measure", "noise", "versus")
    )
    code = (
        f"import sys, kernelwatch.__main__, kernelwatch.plan.project, {commands};"
        "print([name for name in sys.modules if name.partition('.')[0] == 'asv'])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).strip() == "[]"


@pytest.fixture(scope="module")
def linked(plain: Plain) -> tuple[Plain, str]:
    """The project with its links, and what the command printed. Of one commit a part is linked first."""
    part = plain.run("link", plain.commits["same"], "--bench", "time_cached", "--no-publish", code=0)
    assert f"1 linked, 0 the same, {len(UNASKED)} not asked for, " in part
    assert "not measured" not in part
    return plain, plain.run("link", f"{plain.commits['first']}..{plain.commits['broken']}", code=2)


def test_each_commit_is_linked_with_its_parent(linked: tuple[Plain, str]) -> None:
    plain, said = linked
    by_commit = {session.after: session for session in plain.sessions()}
    part, rest = (session for session in plain.sessions() if session.after == plain.commits["same"])
    assert [link.cell for link in part.links] == ["suite.Cached.time_cached"]
    assert part.unjudged == dict.fromkeys(UNASKED, "it was not asked for") | {"suite.track_calls": UNDIRECTED}
    assert {link.cell for link in rest.links} == {*SORTS, "suite.Merge.time_merge", "suite.track_rate"}
    asked_before = {link.cell: "it was not asked for" for link in part.links}
    assert rest.unjudged == asked_before | {"suite.track_calls": UNDIRECTED}
    assert set(by_commit) == {plain.commits[name] for name in ("same", "slower", "gone", "broken")}
    slower = by_commit[plain.commits["slower"]]
    assert {link.cell for link in slower.links} == {*EVERY, "suite.Merge.time_merge", "suite.track_rate"}
    assert {round(link.log, 1) for link in slower.links} == {0.2}
    assert slower.conditions["environment"].startswith("checkout-py3")
    assert by_commit[plain.commits["gone"]].gone == ("suite.Merge.time_merge",)
    failed = dict.fromkeys(SORTS, "failed: RuntimeError: no data")
    assert by_commit[plain.commits["broken"]].unjudged == failed | {"suite.track_calls": UNDIRECTED}
    assert f"worse: {SORTS[0]} +" in said
    assert "suite.track_calls without a better direction" in said
    (rate,) = (link for link in slower.links if link.rate)
    assert (rate.cell, rate.seconds) == ("suite.track_rate", (5.0, 4.0))  # worse is more than 0, as of a time
    assert "worse: suite.track_rate -20.0 % (-20.0 % to -20.0 %)" in said
    again = plain.run("link", f"{plain.commits['first']}..{plain.commits['broken']}", "--no-publish", code=2)
    assert "4 of 4 are linked already" in again
    assert again.count(f"not measured: {SORTS[0]}: failed: RuntimeError: no data") == 1


def test_a_choice_of_benchmarks_that_matches_none_is_not_green(linked: tuple[Plain, str]) -> None:
    plain, _ = linked
    for chosen in ("no_such_benchmark", "track_calls"):  # which has no links
        said = plain.run("link", plain.commits["same"], "--bench", chosen, "--no-publish", code=2)
        assert "nothing could be compared" in said


def test_bench_links_as_in_a_project_with_a_description(linked: tuple[Plain, str]) -> None:
    plain, _ = linked
    said = plain.run("bench", f"{plain.commits['first']}..{plain.commits['same']}", "--no-publish", code=0)
    assert "1 of 1 are linked already" in said


@pytest.mark.parametrize("plugins", [[], ["kernelwatch.asv"]])  # asv ignores a name without the dot
def test_without_the_plugin_nothing_is_measured_for_pages_that_cannot_be_made(
    linked: tuple[Plain, str], plugins: list[str]
) -> None:
    plain, _ = linked
    path = plain.project.folder / "asv.conf.json"
    path.write_text(json.dumps(CONFIGURATION | {"plugins": plugins}))
    try:
        span = f"{plain.commits['first']}..{plain.commits['same']}"
        said = plain.run("bench", span, "--again", code=CANNOT)
        asked = 'asv.conf.json needs "plugins": [".kernelwatch.asv"], without which asv makes pages of its own'
        assert said == f"kernelwatch bench: {asked}\n"
        assert "1 of 1 are linked already" in plain.run("bench", span, "--no-publish", code=0)
    finally:
        path.write_text(json.dumps(CONFIGURATION))


def test_links_of_another_machine_are_merged(linked: tuple[Plain, str], tmp_path: Path) -> None:
    """As a job of CI leaves them, under the name that asv has for its machine."""
    plain, _ = linked
    came = tmp_path / "runner-1.ci"
    shutil.copytree(plain.project.folder / "results" / "mine", came)

    def merge() -> str:
        done = plain.project.run(
            sys.executable, "-m", "kernelwatch", "merge", str(tmp_path), PYTHONPATH=str(plain.engine)
        )
        return f"{done.returncode} {done.stdout}{done.stderr}"

    try:
        assert f"{len(plain.sessions())} sessions came, 0 were there already" in merge()
        found, messages = links.read(plain.project.folder / "results" / came.name)
        assert not messages
        assert found == plain.sessions()
        came.rename(tmp_path / "-rf")
        assert "128 " in (told := merge())
        assert "should be called as a machine, such as runner-1" in told
    finally:
        shutil.rmtree(plain.project.folder / "results" / came.name)


def test_the_pages_tell_links_of_benchmarks(linked: tuple[Plain, str], browser: "Browser") -> None:
    plain, _ = linked
    site = plain.project.folder / "html"
    events = json.loads((site / "data" / "events.json").read_text())
    by_kind = {event["kind"]: event for event in events["events"]}
    assert {kind: event["last"]["hash"] for kind, event in by_kind.items()} == {
        "regression": plain.commits["slower"], "improvement": plain.commits["gone"],
    }  # fmt: skip
    event = by_kind["regression"]
    assert {(change["benchmark"], *change["params"].values()) for change in event["changes"]} == {
        *(("suite.Sort.time_sort", f"'{size}'", str(copies)) for size in ("small", "large") for copies in (1, 2)),
        ("suite.Cached.time_cached",),
        ("suite.Merge.time_merge",),
        ("suite.track_rate",),
    }
    (rate,) = (each for each in event["changes"] if each["benchmark"] == "suite.track_rate")
    assert [round(rate[name], 6) for name in ("before", "after", "size")] == [5, 4, -0.2]
    assert (rate["state"], rate["ended"]["commit"]) == ("fixed", plain.commits["gone"])
    for size in (WIDE, NARROW):
        for address in ("status", "history", "regressions", f"commit?hash={plain.commits['slower'][:8]}"):
            with opened(browser, site, address, size) as page:
                assert fits(page), (address, size)
                text = page.locator("main").inner_text()
                assert "launch" not in text, (address, text)
                assert "undefined" not in text
                assert not page.locator(".error").count()
    with opened(browser, site, "regressions") as page:
        page.locator(".regression").get_by_role("link", name="suite.Sort.time_sort (small, 2)").first.click()
        page.locator("main[data-shown=history]").wait_for()
        assert page.locator("h1").inner_text() == "suite.Sort.time_sort (small, 2)"
        assert page.locator(".mark[data-kind=regression]").count() == 1
        assert "by links" in page.locator("main").inner_text()


def test_an_accepted_regression_of_benchmarks_is_not_red(linked: tuple[Plain, str]) -> None:
    plain, _ = linked
    slower = plain.commits["slower"]
    assert "regression, confirmed at " in plain.run("link", slower, code=1)
    assert "gone: suite.Merge.time_merge" in plain.run("link", plain.commits["gone"], code=2)
    for commit in (slower, plain.commits["gone"]):
        accept = [sys.executable, "-m", "kernelwatch", "accept", commit, "--reason", "meant", "--no-publish"]
        done = plain.project.run(*accept, PYTHONPATH=str(plain.engine))
        assert done.returncode == 0, done.stderr
    assert "gone: suite.Merge.time_merge" in done.stdout
    assert "; meant" in plain.run("link", slower, code=0)
    plain.run("link", plain.commits["gone"], code=0)
    (reach,) = json.loads((plain.project.folder / "html" / "data" / "events.json").read_text())["links"]
    assert not reach["gone"]


# --- without asv's processes ------------------------------------------------------------------------------------------


class Replies(benchmarks.Installed):
    """A side whose benchmark answers what it is told, one reply a turn."""

    def __init__(self, name: str, *replies: float | str) -> None:
        super().__init__(Side(name, ""), None, {"one": ({"name": "one", "type": "track"}, 0)})
        self.replies = list(replies)

    def measure(self, cell: benchmarks.Benchmark) -> tuple[str, float, str]:
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, str):
            return ("na", 0.0, benchmarks.SKIPPED) if reply == "na" else ("failed", 0.0, reply)
        return "ok", reply, ""


def judged(before: Replies, after: Replies, **entry: Any) -> Judged:
    for side in (before, after):
        side.entries["one"][0].update(entry)
    turns = benchmarks.BenchmarkTurns(before, after, benchmarks.cells_of(before, after))
    turns.run(60)
    ((_, verdict),) = turns.verdicts()
    return verdict


@pytest.mark.parametrize(
    ("before", "after", "word"),
    [
        ([1.0], [2.0], "changed"),
        ([1.0], [1.0], "no change"),
        ([0.0], [0.0], "no change"),
        ([0.0], [1.0], "cannot tell"),
        ([-1.0], [2.0], "cannot tell"),
        ([0.0], [0.0, 5.0], "cannot tell"),
        ([5.0, 0.0], [50.0, 0.0], "cannot tell"),
        ([0.0, 5.0], [0.0, 50.0], "cannot tell"),
        ([5.0, "na"], [50.0, "na"], "cannot tell"),
        ([0.0], [0.0, "it broke"], "failed"),
        ([1.0], ["na"], "gone"),
        (["na"], ["na"], "n/a"),
        (["na"], [1.0], "new"),
        (["it broke"], [1.0], "repaired"),
        ([KILLED], [1.0], "cannot tell"),
        (["it broke"], ["it broke"], "cannot tell"),
        (["na"], ["it broke"], "failed"),
        ([1.0], [1.0, "it broke"], "failed"),
        ([1.0, "it broke"], [1.0], "cannot tell"),
        ([1.0, "it broke"], [1.0, "it broke"], "failed"),
    ],
)
def test_the_verdict_on_a_benchmark(before: list[float | str], after: list[float | str], word: str) -> None:
    assert judged(Replies("BASE", *before), Replies("HEAD", *after)).word == word


@pytest.mark.parametrize(("higher_is_better", "word"), [(True, "better"), (False, "worse"), (None, "changed")])
def test_a_better_direction_is_the_benchmarks_own(higher_is_better: bool | None, word: str) -> None:
    entry = {} if higher_is_better is None else {"higher_is_better": higher_is_better}
    assert judged(Replies("BASE", 1.0), Replies("HEAD", 2.0), **entry).word == word
    assert judged(Replies("BASE", 1.0), Replies("HEAD", 2.0), type="peakmemory").word == "worse"


def test_a_benchmark_gets_as_many_turns_as_it_asks_for_rounds() -> None:
    base, head = Replies("BASE", 1.0), Replies("HEAD", 2.0)
    base.entries["one"][0]["rounds"] = 5
    turns = benchmarks.BenchmarkTurns(base, head, benchmarks.cells_of(base, head))
    turns.run(60)
    assert turns.turns == 6  # the first look after five turns


def test_a_commit_that_mends_what_could_not_be_installed_has_not_failed(tmp_path: Path) -> None:
    (tmp_path / "benchmarks.json").write_text('{"version": 2}')
    sides = [Side(name * 8, "") for name in "ab"]

    def unjudged(*why: str) -> Any:
        both = [benchmarks.Installed(side, None, broken=each) for side, each in zip(sides, why, strict=True)]
        place: Any = SimpleNamespace(name="here", install=lambda *_: both)
        conf = Config.from_json({"repo": ".", "results_dir": str(tmp_path), "benchmark_dir": str(tmp_path / "suites")})
        return benchmarks.link(conf, None, place, "a" * 40, "b" * 40, "", (), 0.0, {}).unjudged

    assert unjudged("", "no") == {"b" * 8: "failed: no"}
    assert unjudged("no", "") == {"a" * 8: "no"}


def test_benchmarks_that_end_their_process_are_those_of_a_broken_commit(tmp_path: Path) -> None:
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "__init__.py").write_text("import sys\n\nsys.exit(0)\n")

    def run(arguments: list[str], cwd: str, **_: object) -> tuple[str, str, int]:
        done = subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False)
        return done.stderr, "", done.returncode

    functions = {"create": lambda: None, "install_project": lambda *_: None, "run": run}
    place: Any = SimpleNamespace(**functions, env_vars={}, _path=str(tmp_path))
    conf = SimpleNamespace(benchmark_dir=str(tmp_path / "suites"))
    installed = benchmarks._installed(conf, None, Side("HEAD", "0123"), place, "")
    assert installed.broken == "its benchmarks end the process that imports them, with exit code 0"


def test_intervals_hold_for_all_environments_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two there are twice as many verdicts that may be false."""
    monkeypatch.setattr(benchmarks.BenchmarkTurns, "run", lambda *_: None)
    tests = []
    for count in (1, 2):
        report = benchmarks.Report(("BASE", "HEAD"), "")
        sides = lambda *_: [Replies("BASE", 1.0), Replies("HEAD", 1.0)]  # noqa: E731
        places = [SimpleNamespace(name=str(at), install=sides) for at in range(count)]
        benchmarks.compare(report, None, None, cast(Any, places), ("1", "2"), "", 1.0, None, lambda _: None)
        tests.append(report.turns["0"].tests)
    assert tests[1] == 2 * tests[0]


def test_both_sides_make_as_many_calls_in_a_sample() -> None:
    """Each side would choose a number of its own, and the time of a call may depend on that: on a list that grows."""

    class Growing(Replies):
        def measure(self, cell: benchmarks.Benchmark) -> tuple[str, float, str]:
            own = self.numbers.setdefault(cell.key, 1000 if self.side.name == "BASE" else 700)
            return "ok", 1e-6 * own, ""

    assert judged(Growing("BASE"), Growing("HEAD"), type="time").word == "no change"


def test_sides_take_turns() -> None:
    order: list[str] = []

    class Noted(Replies):
        def measure(self, cell: benchmarks.Benchmark) -> tuple[str, float, str]:
            order.append(self.side.name)
            return super().measure(cell)

    judged(Noted("A", 1.0), Noted("B", 1.0))
    assert "".join(order) == "ABBAABBA"


@pytest.mark.parametrize(
    ("known", "places"),
    [((None, None), "12"), (("one", "two"), "12"), (("two", None), "21"), (("zero", "one"), "21")],
)
def test_what_is_installed_already_stays_where_it_is(
    known: tuple[str | None, str | None], places: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a range, each commit is the second side once, and then the first."""
    both = tuple(SimpleNamespace(name=name, installed_commit_hash=at) for name, at in zip("12", known, strict=True))
    monkeypatch.setattr(benchmarks, "_installed", lambda conf, repo, side, place, only: (side.tree, place.name))
    installed: Any = benchmarks.Place("x", (both[0], both[1])).install(None, None, "BH", ("one", "two"), "")
    assert installed == [("one", places[0]), ("two", places[1])]


def test_several_environments_are_told_apart(tmp_path: Path) -> None:
    from kernelwatch.history.links import Link
    from kernelwatch.publish.linked_benchmarks import by_environment

    def session(environment: str) -> Session:
        link = Link("one", 0.1, 0.01, 3, (0.1,) * 4, (1.0, 1.1))
        conditions = {"environment": environment}
        return Session("step", "a" * 40, "b" * 40, "", 1.0, conditions, 0, 0, (link,), unjudged={"b" * 8: "broken"})

    alone = by_environment({"mine": [session("py3.11")]})["mine"]
    assert [link.cell for each in alone for link in each.links] == ["one"]
    both = by_environment({"mine": [session("py3.11"), session("py3.12")]})["mine"]
    assert [link.cell for each in both for link in each.links] == ["one [py3.11]", "one [py3.12]"]
    assert [list(each.unjudged) for each in both] == [["b" * 8]] * 2
