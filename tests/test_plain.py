"""Projects that asv benchmarks and that have no description: one line publishes them, and nothing else changes."""

import copy
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kernelwatch.publish import plain as plain_module
from tests.pages import NARROW, WIDE, fits, opened
from tests.repositories import ROOT, Project, new_project
from tests.test_site import browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser"]  # a fixture

pytestmark = pytest.mark.xdist_group("plain")  # one history for all of these

SUITE = """
class Sort:
    params = [["small", "large"], [1, 2]]
    param_names = ["size", "copies"]
    number, repeat, warmup_time = 1, 5, 0

    def time_sort(self, size, copies):
        sorted(range({"small": 100, "large": 10000}[size] * copies))

    def peakmem_sort(self, size, copies):
        sorted(range(100))


def mem_list():
    return [0] * 1000


def track_iterations():
    return 100.0


def track_rate():
    return 5.0


track_rate.higher_is_better = True
track_rate.unit = "GB/s"


def time_fails():
    raise ValueError("always")
"""
COMMITS, STEP = 12, 7
PLUS = [".kernelwatch.asv"]


@dataclass
class Plain:
    project: Project
    commits: list[str]

    def configure(self, plugins: list[str]) -> None:
        conf = {
            "version": 1, "project": "plain", "repo": ".", "branches": ["main"], "html_dir": "html",
            "environment_type": "existing", "plugins": plugins,
        }  # fmt: skip
        (self.project.folder / "asv.conf.json").write_text(json.dumps(conf))

    def asv(self, *arguments: str) -> Any:
        return self.project.asv(*arguments, PYTHONPATH=str(ROOT), KERNELWATCH_CACHE=str(self.project.home / "cache"))

    def publish(self) -> dict[str, Any]:
        done = self.asv("publish", "--no-pull")
        assert done.returncode == 0, done.stdout + done.stderr
        return dict(self.data("events"))

    def data(self, name: str) -> Any:
        return json.loads((self.project.folder / "html" / "data" / f"{name}.json").read_text())

    def results(self) -> list[Path]:
        return sorted(path for path in self.project.folder.glob("results/*/*.json") if path.name != "machine.json")

    def run(self, commit: str) -> Any:
        """Measure a commit by asv itself, in this interpreter."""
        return self.asv("run", "--set-commit-hash", commit, "--python", sys.executable, "--machine", "mine")


# What asv says of samples that differ by some percent, as shares of their median: how far they differed here depends on
# what else ran on the machine.
STATISTICS = {"stats_ci_99_a": 0.98, "stats_ci_99_b": 1.02, "stats_q_25": 0.995, "stats_q_75": 1.005}


def scaled(result: dict[str, Any], name: str, factors: list[float]) -> None:
    """Multiply the values of a benchmark, and set asv's statistics of them, if it has any."""
    row = result["results"][name]
    row[0] = [value * factor for value, factor in zip(row[0], factors, strict=True)]
    for index, column in enumerate(result["result_columns"][: len(row)]):
        if column in STATISTICS and row[index]:
            row[index] = [value * STATISTICS[column] for value in row[0]]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    """A project whose newest commit asv measured; the older ones have the same results, but faster, in two
    environments and on two machines."""
    project = new_project(tmp_path_factory.mktemp("plain"))
    (project.folder / "benchmarks").mkdir()
    (project.folder / "benchmarks" / "__init__.py").write_text("")
    (project.folder / "benchmarks" / "suite.py").write_text(SUITE)
    commits = []
    for at in range(COMMITS):
        (project.folder / "sort.py").write_text(f"# {at}\n")
        commits.append(project.commit_all(f"Change {at}"))
    found = Plain(project, commits)
    found.configure(PLUS)
    done = found.asv("machine", "--yes", "--machine", "mine")
    assert done.returncode == 0, done.stderr
    done = found.run(commits[-1])
    assert done.returncode == 2, done.stdout + done.stderr  # time_fails
    (path,) = [each for each in found.results() if each.parent.name == "mine"]
    written = json.loads(path.read_text())
    for machine, environment in (("mine", ""), ("mine", "2.0"), ("yours", "")):
        folder = path.parent.with_name(machine)
        folder.mkdir(exist_ok=True)
        known = json.loads((path.parent / "machine.json").read_text())
        (folder / "machine.json").write_text(json.dumps(known | {"machine": machine}))
        for at, commit in enumerate(commits):
            result = copy.deepcopy(written)
            noise, later = 1 + 1e-3 * math.sin(7 * at), at >= STEP
            slow = 1.3 if later and machine == "mine" else 1.0
            scaled(result, "suite.Sort.time_sort", [noise, noise * slow, noise, noise])
            scaled(result, "suite.Sort.peakmem_sort", [1.0, 1.0, 1.0, 1.2 if later else 1.0])
            scaled(result, "suite.mem_list", [0.5 if later else 1.0])
            scaled(result, "suite.track_iterations", [1.4 if later else 1.0])
            scaled(result, "suite.track_rate", [1.4 if later else 1.0])
            result |= {"commit_hash": commit, "date": written["date"] - (COMMITS - at) * 86_400_000}
            result["params"] |= {"machine": machine} | ({"numpy": environment} if environment else {})
            result["requirements"] = {"numpy": environment} if environment else {}
            result["env_name"] = f"existing-numpy{environment}" if environment else written["env_name"]
            (folder / f"{commit[:8]}-{result['env_name'].replace('/', '_')}.json").write_text(json.dumps(result))
    if path.name.partition("-")[2] != f"{written['env_name'].replace('/', '_')}.json":
        path.unlink()
    found.publish()
    return found


def test_changes_are_judged_in_the_right_direction(plain: Plain) -> None:
    events = plain.data("events")
    told = {
        (event["kind"], change["place"]["machine"], change["place"].get("numpy"), change["benchmark"],
         *change["params"].values())
        for event in events["events"] for change in event["changes"]
    }  # fmt: skip
    slower = [("mine", None), ("mine", "2.0")]
    every = [*slower, ("yours", None)]
    assert told == {
        *(("regression", *place, "suite.Sort.time_sort", "'small'", "2") for place in slower),
        *(("regression", *place, "suite.Sort.peakmem_sort", "'large'", "2") for place in every),
        *(("improvement", *place, "suite.mem_list") for place in every),
        *(("change", *place, "suite.track_iterations") for place in every),
        *(("improvement", *place, "suite.track_rate") for place in every),
    }
    assert {event["last"]["hash"] for event in events["events"]} == {plain.commits[STEP]}


def test_the_spread_is_of_asvs_samples(plain: Plain) -> None:
    """The interval that the pages show is that of a median of samples with these quartiles."""
    series = next(each for each in plain.data("series")["series"] if each["benchmark"] == "suite.Sort.time_sort")
    columns = plain.data(series["file"])["series"][series["index"]]
    path = next(each for each in plain.results() if each.name.startswith(plain.commits[0][:8]))
    row = json.loads(path.read_text())
    known = dict(zip(row["result_columns"], row["results"]["suite.Sort.time_sort"], strict=False))
    value, low, high = (known[name][0] for name in ("result", "stats_ci_99_a", "stats_ci_99_b"))
    quartiles = 2 * 1.96 * 1.2533 * 0.01 * value / 1.349 / known["stats_repeat"][0] ** 0.5
    assert columns["high"][0] - columns["low"][0] == pytest.approx(quartiles, rel=1e-3)
    assert quartiles < (high - low) * 1.96 / 2.576
    assert columns["low"][0] < columns["value"][0] == pytest.approx(value, rel=1e-5)


QUARTILES = {"q_25": 0.995, "q_75": 1.005, "repeat": 25}


@pytest.mark.parametrize(
    ("statistics", "spread"),
    [
        ({"ci_99_a": 0.98, "ci_99_b": 1.02}, 0.02 / 2.576),
        ({"ci_99_a": 0.98, "ci_99_b": 1.02} | QUARTILES, 1.2533 * 0.01 / 1.349 / 5),
        ({"ci_99_a": -math.inf, "ci_99_b": math.inf} | QUARTILES, 1.2533 * 0.01 / 1.349 / 5),
        ({"ci_99_a": None, "ci_99_b": 1.02}, 0.0),
        ({}, 0.0),
    ],
)
def test_a_spread_is_the_standard_error_of_a_median(statistics: dict[str, float | None], spread: float) -> None:
    entry = {f"stats_{name}": [value] for name, value in statistics.items()}
    (found,) = plain_module.spreads(entry, [1.0])
    assert found == pytest.approx(spread)


def test_what_is_not_judged_and_what_failed_is_said(plain: Plain) -> None:
    events = plain.data("events")
    assert {(told["machine"], told["suite"], told["reason"]) for told in events["failures"]} == {
        (machine, "suite.time_fails", "asv recorded null, and no reason is kept") for machine in ("mine", "yours")
    }
    mine = next(each for each in events["evidence"] if each["machine"] == "mine")
    why = "no better direction is declared, so no change is a regression"
    assert (mine["series"], mine["judged"], mine["unjudged"]) == (2 * 11, 2 * 10, [[why, 2]])


def test_the_pages_have_what_there_is(browser: "Browser", plain: Plain) -> None:
    site = plain.project.folder / "html"
    newest = plain.data("site")["head"]
    for size in (WIDE, NARROW):
        for address in ("status", "history", "regressions", f"commit?at={newest}", "event", "search?q=sort"):
            with opened(browser, site, address, size) as page:
                assert page.locator("#nav a:not(.project)").all_inner_texts() == ["Status", "History", "Regressions"]
                assert fits(page), (address, size)
                linked = page.locator("a[href^='#/']").evaluate_all("all => all.map(each => each.getAttribute('href'))")
                views = {link.removeprefix("#/").partition("?")[0] for link in linked}
                assert views <= {"status", "history", "regressions", "commit", "event", "search"}
                assert not page.locator(".error").count()
                text = page.locator("main").inner_text()
                assert "undefined" not in text
                assert "confirmed" not in text.replace("Confirmed: both", "")


def test_the_pages_lead_from_an_event_to_its_history(browser: "Browser", plain: Plain) -> None:
    with opened(browser, plain.project.folder / "html", "regressions") as page:
        page.locator(".regression").get_by_role("link", name="suite.Sort.time_sort (small, 2)").first.click()
        page.locator("main[data-shown=history]").wait_for()
        assert page.locator("h1").inner_text() == "suite.Sort.time_sort (small, 2)"
        assert page.locator(".mark[data-kind=regression]").count() == 1
        assert "+29.99 %" in page.locator("[data-kind=regression]").last.inner_text()
        page.get_by_label("copies").select_option("1")
        page.locator("h1", has_text="small, 1").wait_for()
        assert "No change was found between these commits." in page.locator("main").inner_text()
    with opened(browser, plain.project.folder / "html", "status") as page:
        told = page.locator("[data-machine=mine]").inner_text()
        assert "1 benchmark failed at the newest measured commit; 1 regression open." in told
        assert "suite.time_fails" in page.locator("[data-machine=yours]").inner_text()
    with opened(browser, plain.project.folder / "html", "search?q=iterations") as page:
        assert page.locator("[data-kind=series] li").count() == 3


def test_run_and_compare_stay_asvs_own(plain: Plain) -> None:
    """With and without the line: the same output, exit codes, and names of files."""
    said = {}
    for plugins in ([], PLUS):
        plain.configure(plugins)
        done = plain.asv("compare", plain.commits[0], plain.commits[-1], "--machine", "mine")
        listed = plain.asv("show", "--machine", "mine")
        run = plain.asv(
            "run", "--dry-run", "--quick", "--bench", "time_fails", "--python", sys.executable, "--machine", "mine"
        )
        asked = plain.asv("run", "--dry-run", "--quick", "--bench", "mem_list", "--python", sys.executable)
        said[bool(plugins)] = (
            done.returncode, done.stdout, listed.returncode, listed.stdout, run.returncode, run.stdout.splitlines()[-1],
            asked.returncode, asked.stdout.splitlines()[-1],
        )  # fmt: skip
    assert said[False] == said[True]
    assert said[True][0] == 0
    assert "1.3" in said[True][1]


def test_the_plugin_needs_nothing_of_cuda(plain: Plain) -> None:
    plain.configure(PLUS)
    code = (
        "import sys; sys.argv = ['asv', 'publish']; from asv.plugin_manager import plugin_manager;"
        "plugin_manager.import_plugin('.kernelwatch.asv'); from asv.commands import compare;"
        "print(compare._is_result_better.__module__, *sorted({name.partition('.')[0] for name in sys.modules}"
        " & {'cupy', 'cuda', 'pynvml', 'torch', 'triton', 'virtualenv'}))"
    )
    # With an option, it is an interpreter of its own and no fork of one that has imported much.
    done = plain.project.run(sys.executable, "-P", "-c", code, PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stdout.strip()) == (0, "asv.commands.compare"), done.stderr


def test_without_the_dot_asv_ignores_the_name(plain: Plain) -> None:
    """docs/asv.md says so."""
    plain.configure([PLUS[0].removeprefix(".")])
    done = plain.asv("publish", "--no-pull", "--html-dir", str(plain.project.home / "stock"))
    assert done.returncode == 0, done.stderr
    assert not (plain.project.home / "stock" / "data").exists()
    plain.configure(PLUS)


def test_a_module_called_project_is_no_description(plain: Plain) -> None:
    path = plain.project.folder / "benchmarks" / "project.py"
    path.write_text("def time_project():\n    pass\n")
    plain.configure(PLUS)
    try:
        assert plain.publish()["events"]
    finally:
        path.unlink()


def test_a_regression_is_accepted_without_a_description(plain: Plain) -> None:
    """It is not open any more on the pages that the command makes, and nothing but the decision is added."""
    event = next(event for event in plain.publish()["events"] if event["kind"] == "regression" and event["open"])
    variables = {"PYTHONPATH": str(ROOT), "KERNELWATCH_CACHE": str(plain.project.home / "cache")}
    command = [sys.executable, "-m", "kernelwatch", "accept", event["id"], "--reason", "worth it"]
    decisions = plain.project.folder / "results" / "decisions.toml"
    try:
        done = plain.project.run(*command, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "commit it: results/decisions.toml" in done.stdout
        (accepted,) = (each for each in plain.data("events")["events"] if each["id"] == event["id"])
        assert (accepted["state"], accepted["open"], accepted["decision"]["reason"]) == ("accepted", False, "worth it")
        assert "worth it" in decisions.read_text()
    finally:
        decisions.unlink(missing_ok=True)
