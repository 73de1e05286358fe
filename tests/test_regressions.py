"""The Regressions page and its feed: what is judged and what is not, one event a commit, and the plots behind it."""

import json
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from asv.plugins import git as asv_git
from asv.plugins import regressions as asv_regressions

from kernelwatch.history import confirmations
from kernelwatch.history.confirmations import Confirmation
from kernelwatch.publish.offline import SITE
from tests.repositories import ROOT, alone, link_engine
from tests.test_site import ASV_INDEX, HOSTILE, benchmark, browser, git, publish, served, visit, wait_until_drawn

if TYPE_CHECKING:
    from playwright.sync_api import Browser


__all__ = ["browser"]  # a fixture

pytestmark = pytest.mark.xdist_group("regressions")  # one site and one browser for all of these

PLUGINS = [alone(name) for name in ("direction", "publishing", "plots")]
COMMITS = 16
STEP = 8  # the commit that changes kernels, counted from the oldest
DISTURBED = 13  # the first of the runs that were disturbed
DRIVER = 4  # the first that was measured with another driver
NOISE = (0.0, 4e-4, -3e-4, 1e-4, -4e-4, 3e-4, -1e-4)
Level = Callable[[int], float]


def stepped(before: float, after: float, at: int = STEP, noise: float = 1.0) -> Level:
    return lambda commit: (after if commit >= at else before) * (1 + noise * NOISE[commit * 5 % len(NOISE)])


@dataclass(frozen=True)
class History:
    """A series as it is recorded. `cell`: its key in the sidecar, "" where it has none; `changed`: the commit that
    changed its binary; `spread`: between the processes that visited it; `binary`: the identity of the binary at a
    commit, if that did not just change once."""

    name: str
    levels: Level
    attributes: dict[str, Any]
    params: dict[str, str]
    cell: str = ""
    changed: int = STEP
    spread: float = 3e-4
    machine: str = "host"
    binary: Callable[[int], str] | None = None


SECONDS = {"unit": "seconds", "higher_is_better": False, "judged": "seconds"}
RATE = {"unit": "GB/s", "higher_is_better": True, "judged": ""}
FEWER = {"unit": "bytes", "higher_is_better": False, "judged": "exact"}
MORE = {"unit": "% of warps", "higher_is_better": True, "judged": "exact"}


def cell(op: str, rung: str, shape: str, levels: Level, **more: Any) -> History:
    """A cell that is timed on the GPU."""
    params = {"rung": rung, "shape": shape, "cache": "cold"}
    more = {"cell": f"{op}/{rung} float32 {shape} cold"} | more
    return History(f"{op}.GPU.track_seconds", levels, SECONDS, params, **more)


HISTORIES = [
    cell("transpose", "padded", "256x256", stepped(1e-5, 1.1e-5)),  # slower by 10 %
    cell("transpose", "tiled", "256x256", stepped(2e-5, 2.3e-5)),  # by 15 %, at the same commit
    cell("transpose", "copy", "256x256", stepped(1e-5, 0.9e-5)),  # faster
    cell("transpose", "dynamic", "256x256", lambda at: 1.2e-5 if at == 11 else 1e-5),  # one outlier
    cell("transpose", "memcpy", "256x256", stepped(1e-5, 1e-5)),  # nothing
    cell("transpose", "naive_read", "256x256", stepped(1e-5, 1.1e-5, DRIVER), changed=DRIVER),  # the driver's doing
    cell("transpose", "naive_write", "256x256", stepped(1e-5, 1.1e-5), changed=99),  # the same binary, another time
    cell("transpose", "padded", "512x512", stepped(1e-5, 1.02e-5, DISTURBED), changed=DISTURBED),  # a disturbed run
    cell("vector_add", "scalar", "65536", stepped(1e-6, 1.05e-6), machine="other"),
    History("vector_add.GPU.track_bandwidth", stepped(500.0, 400.0), RATE, {"rung": "scalar", "shape": "65536"}),
    History(
        "transpose.CPU.track_seconds", stepped(1e-3, 1e-3, noise=300.0), SECONDS,
        {"rung": "c", "shape": "256x256", "cache": "cold"}, "transpose/c float32 256x256 cold", spread=0.1,
    ),
    History("static.Matmul.track_spill_bytes", lambda at: 4.0 * (at >= 12), FEWER, {"rung": "wmma"}),  # from 0
    History("static.Matmul.track_occupancy", lambda at: 75.0 - 1.5625 * (at >= 12), MORE, {"rung": "wmma"}),  # a warp
    History("static.VectorAdd.track_spill_bytes", lambda at: 8.0 * (at == 10), FEWER, {"rung": "scalar"}),
    History("static.Matmul.track_registers", stepped(32.0, 64.0), FEWER | {"judged": ""}, {"rung": "wmma"}),
    History("device.State.track_temperature", stepped(40.0, 60.0), {"type": "track", "judged": ""}, {}),
]  # fmt: skip


def visits(history: History, at: int) -> list[dict[str, Any]]:
    """What six processes noted."""
    scale = history.spread * math.sqrt(6) / 1.87  # of their relative standard error
    return [
        {
            "process": process,
            "seconds": history.levels(at) * (1 + scale * (process - 2.5)),
            "throttled": ["power"] if at == STEP and history.params["rung"] == "padded" else [],
            "identity": history.binary(at) if history.binary else f"binary {at >= history.changed}",
            "canary_s": {"memory": 3e-4, "compute": 3e-4},
        }
        for process in range(6)
    ]


def write_history(project: Path) -> list[str]:
    """A project in which all of HISTORIES were measured; the hashes of its commits, oldest first."""
    commits = write_commits(project, [f"change {at} {HOSTILE}\x07\x01" for at in range(COMMITS)])
    # One of them is not measured on the other machine: the step is at the next commit or at this one.
    write_results(project, commits, HISTORIES, {"host": commits, "other": [*commits[:STEP], *commits[STEP + 1 :]]})
    verdicts = [
        Confirmation("transpose/padded float32 256x256 cold", commits[STEP - 1], commits[STEP], "confirmed", 0.1, 0.1,
                     0.098, 0.102, 4, "", "2024-02-01T00:00:00+00:00"),
        Confirmation("transpose/padded float32 512x512 cold", commits[DISTURBED - 1], commits[DISTURBED], "refuted",
                     0.02, 1e-4, -2e-4, 4e-4, 4, "", "2024-02-01T00:00:00+00:00"),
    ]  # fmt: skip
    confirmations.save(project / "results" / "host", verdicts)
    return commits


def write_commits(project: Path, messages: Sequence[str]) -> list[str]:
    """A project with a commit for each message, and no results; the hashes, oldest first."""
    link_engine(project)
    (project / "benchmarks").symlink_to(ROOT / "benchmarks")
    conf = {
        "version": 1, "project": "small", "project_url": "#", "repo": ".", "branches": ["main"], "html_dir": "html",
        "environment_type": "existing", "show_commit_url": "javascript:alert(1)//", "plugins": PLUGINS,
        "regressions_first_commits": {},
        "explained_events": 0,  # the commits are empty: there are no kernels to look at
    }  # fmt: skip
    (project / "asv.conf.json").write_text(json.dumps(conf))
    git(project, "init", "--quiet", "--initial-branch=main")
    commits = []
    for at, message in enumerate(messages):
        git(project, "commit", "--quiet", "--allow-empty", "-m", message, day=at + 1)
        commits.append(git(project, "rev-parse", "HEAD"))
    return commits


def write_results(
    project: Path, commits: Sequence[str], histories: Sequence[History], measured: Mapping[str, Sequence[str]]
) -> None:
    """Record the histories. `measured`: by machine, the commits that it measured."""
    listed: dict[str, Any] = {"version": 2}
    for history in histories:
        found = listed.setdefault(history.name, benchmark(history.name) | history.attributes)
        found["param_names"] = list(history.params)
        found["params"] = [
            sorted({repr(of.params[name]) for of in histories if of.name == history.name}) for name in history.params
        ]
    (project / "results").mkdir(exist_ok=True)
    (project / "results" / "benchmarks.json").write_text(json.dumps(listed))
    for machine, own in measured.items():
        folder = project / "results" / machine
        folder.mkdir(exist_ok=True)
        (folder / "machine.json").write_text(json.dumps({"machine": machine, "version": 1}))
        for commit in own:
            write_result(folder, commits.index(commit), commit, listed, histories)


def write_result(folder: Path, at: int, commit: str, listed: dict[str, Any], histories: Sequence[History]) -> None:
    """What a machine recorded of a commit: asv's file and the sidecar."""
    result: dict[str, Any] = {
        "version": 2, "commit_hash": commit, "env_name": "existing", "date": 1704067200000 + at * 86400000,
        "params": {"machine": folder.name}, "python": "3", "requirements": {}, "env_vars": {}, "durations": {},
        "result_columns": ["result", "params", "version"], "results": {},
    }  # fmt: skip
    facts = {"gpu": "H200", "nvml_driver": "590.1" if at >= DRIVER else "580.2", "packages": {"numpy": "2.5"}}
    lines: list[dict[str, Any]] = [{"group": "all gpu", "record": "run", "facts": facts}]
    lines.append({"group": "all cpu", "record": "run", "facts": {"cpu": "Xeon"}})
    for history in histories:
        if history.machine != folder.name:
            continue
        params = listed[history.name]["params"]
        values = result["results"].setdefault(
            history.name, [[math.nan] * math.prod(map(len, params)), params, "1"]
        )  # fmt: skip
        index = 0
        for name, known in zip(history.params, params, strict=True):
            index = index * len(known) + known.index(repr(history.params[name]))
        values[0][index] = history.levels(at)
        if history.cell:
            group = "all cpu" if ".CPU." in history.name else "all gpu"
            told = {"key": history.cell, "state": "ok", "reason": "", "visits": visits(history, at)}
            lines.append({"group": group, "record": "cell", **told})
    stem = folder / f"{commit[:8]}-existing"
    stem.with_suffix(".json").write_text(json.dumps(result))
    stem.with_suffix(".facts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The pages of that project, only to be read, and its commits."""
    project = tmp_path_factory.mktemp("project")
    commits = write_history(project)
    run = publish(project)
    assert run.returncode == 0, run.stdout + run.stderr
    return project / "html", commits


@pytest.fixture(scope="module")
def found(published: tuple[Path, list[str]]) -> dict[str, Any]:
    """What the page reads."""
    events, series = (json.loads((published[0] / "data" / f"{name}.json").read_text()) for name in ("events", "series"))
    return {**events, **series}


@pytest.fixture(params=["http", "file"])
def address(request: pytest.FixtureRequest, published: tuple[Path, list[str]]) -> Iterator[str]:
    if request.param == "file":
        yield f"{published[0].as_uri()}/"
    else:
        with served(published[0]) as url:
            yield url


def told(found: dict[str, Any], kind: str, commits: list[str]) -> dict[int, dict[str, float | None]]:
    """The events of a kind: by the place of their commit, each series' rung or figure and its change."""
    return {
        commits.index(event["last"]["hash"]): {
            f"{change['benchmark']} {change['params'].get('rung', '')}": change["change"] and round(change["change"], 2)
            for change in event["changes"]
        }
        for event in found["events"]
        if event["kind"] == kind
    }


# --- what is found --------------------------------------------------------------------------------------------------


def test_regressions_are_one_event_a_commit(found: dict[str, Any], published: tuple[Path, list[str]]) -> None:
    assert told(found, "regression", published[1]) == {
        STEP: {
            "transpose.GPU.track_seconds 'tiled'": 0.15,
            "transpose.GPU.track_seconds 'padded'": 0.1,
            "vector_add.GPU.track_seconds 'scalar'": 0.05,  # on the machine that measured the commits round it
        },
        10: {"static.VectorAdd.track_spill_bytes 'scalar'": None},
        12: {"static.Matmul.track_spill_bytes 'wmma'": None, "static.Matmul.track_occupancy 'wmma'": -0.02},
        DISTURBED: {"transpose.GPU.track_seconds 'padded'": 0.02},
    }


def test_an_event_says_what_measuring_again_showed(found: dict[str, Any], published: tuple[Path, list[str]]) -> None:
    """One confirmed change confirms an event, exact figures need no confirmation, and a refuted one is a disturbed
    run."""
    commits = published[1]
    words = {(event["kind"], commits.index(event["last"]["hash"])): event["verdict"] for event in found["events"]}
    assert words == {
        ("regression", STEP): "confirmed",
        ("improvement", STEP): "not tried",
        ("environment", STEP): "not tried",
        ("environment", DRIVER): "not tried",
        ("regression", 10): "confirmed",
        ("improvement", 11): "confirmed",
        ("regression", 12): "confirmed",
        ("regression", DISTURBED): "refuted",
    }
    verdicts = {change["cell"]: change["verdict"] for event in found["events"] for change in event["changes"]}
    assert verdicts["transpose/padded float32 256x256 cold"]["low"] == 0.098
    assert verdicts["transpose/tiled float32 256x256 cold"] is None
    disturbed = next(event for event in found["events"] if event["verdict"] == "refuted")
    assert disturbed["changes"][0]["suspects"] == commits[DISTURBED:]


def test_a_change_says_which_tests_it_passed(found: dict[str, Any]) -> None:
    """An exact figure needs none."""
    for change in (change for event in found["events"] for change in event["changes"]):
        names = [test["name"] for test in change["tests"]]
        assert names == ([] if change["exact"] else ["floor", "noise and drift", "points", "evidence"])
        assert all(test["value"] >= test["bound"] > 0 for test in change["tests"])
        for floor in change["tests"][:1]:
            larger, smaller = sorted((change["before"], change["after"]))[::-1]
            assert floor["value"] == pytest.approx(larger / smaller - 1, abs=0.002)
            assert (floor["bound"], floor["unit"]) == (pytest.approx(0.005), "share")


def test_improvements_are_apart(found: dict[str, Any], published: tuple[Path, list[str]]) -> None:
    assert told(found, "improvement", published[1]) == {
        STEP: {"transpose.GPU.track_seconds 'copy'": -0.1},
        11: {"static.VectorAdd.track_spill_bytes 'scalar'": -1.0},
    }


def test_a_driver_or_an_unchanged_binary_is_not_blamed_on_the_commit(
    found: dict[str, Any], published: tuple[Path, list[str]]
) -> None:
    assert told(found, "environment", published[1]) == {
        DRIVER: {"transpose.GPU.track_seconds 'naive_read'": 0.1},
        STEP: {"transpose.GPU.track_seconds 'naive_write'": 0.1},
    }
    reasons = {event["why"] for event in found["events"] if event["kind"] == "environment"}
    assert reasons == {"driver 580.2 -> 590.1", "the binary is the same"}


def test_a_change_of_the_conditions_is_told_also_without_a_step(
    found: dict[str, Any], published: tuple[Path, list[str]]
) -> None:
    _, commits = published
    cells = [history for history in HISTORIES if history.cell and ".CPU." not in history.name]
    assert found["turns"] == [
        {
            "before": commits[DRIVER - 1],
            "commit": commits[DRIVER],
            "why": "driver 580.2 -> 590.1",
            "series": len(cells),
        }
    ]


def test_an_event_says_its_commit(found: dict[str, Any], published: tuple[Path, list[str]]) -> None:
    _, commits = published
    event = next(event for event in found["events"] if event["last"]["hash"] == commits[STEP])
    assert event["last"]["subject"].startswith(f"change {STEP} ")
    assert (event["last"]["author"], event["last"]["date"]) == ("someone", 1704067200000 + STEP * 86400000 + 43200000)
    assert (event["before"], event["commits"]) == (commits[STEP - 1], 1)


def test_commits_between_that_were_not_measured_are_said(
    found: dict[str, Any], published: tuple[Path, list[str]]
) -> None:
    _, commits = published
    change = next(
        c for event in found["events"] for c in event["changes"] if c["benchmark"].startswith("vector_add.GPU")
    )
    assert change["from"] == commits[STEP - 1]


def test_what_came_back_is_said(found: dict[str, Any], published: tuple[Path, list[str]]) -> None:
    changes = [(event, change) for event in found["events"] for change in event["changes"] if change["ended"]]
    ((event, change),) = changes
    assert change["benchmark"] == "static.VectorAdd.track_spill_bytes"
    assert event["ended"] == change["ended"] == {"commit": published[1][11], "how": "undone"}
    assert (event["state"], event["open"], change["state"]) == ("fixed", False, "fixed")
    assert event["words"] == f"undone by {published[1][11][:8]}"


def test_each_judged_series_says_the_smallest_step_it_can_show(found: dict[str, Any]) -> None:
    judged = [history for history in HISTORIES if history.attributes["judged"]]
    smallest = {(s["benchmark"], s["params"]["rung"].strip("'")): s["smallest"] for s in found["series"]}
    assert set(smallest) == {(history.name, history.params["rung"]) for history in judged}
    for history in judged:
        shown = smallest[history.name, history.params["rung"]]
        if history.attributes["judged"] == "exact":
            assert shown == 0
        elif history.params["rung"] == "dynamic":
            assert shown > 0.2  # what the outlier did once is no step
        else:
            low, high = {3e-4: (0.001, 0.02), 0.1: (0.2, 10)}[history.spread]
            assert low < shown < high
    assert all(change["smallest"] is not None for event in found["events"] for change in event["changes"])


def test_a_series_counts_from_its_first_commit_on(tmp_path: Path) -> None:
    """asv's own way to accept a change: regressions_first_commits."""
    commits = write_history(tmp_path)
    path = tmp_path / "asv.conf.json"
    first = {r"transpose\.GPU\..*": commits[STEP], r"static\..*": None}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"regressions_first_commits": first}))
    run = publish(tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    data = json.loads((tmp_path / "html/data/events.json").read_text())
    names = [(change["benchmark"], change["to"]) for event in data["events"] for change in event["changes"]]
    assert names == [
        ("transpose.GPU.track_seconds", commits[DISTURBED]),
        ("vector_add.GPU.track_seconds", commits[STEP + 1]),
    ]


def test_results_of_before_judged_are_told(tmp_path: Path) -> None:
    write_history(tmp_path)
    path = tmp_path / "results" / "benchmarks.json"
    listed = json.loads(path.read_text())
    for item in listed.values():
        if isinstance(item, dict):
            item.pop("judged")
    path.write_text(json.dumps(listed))
    run = publish(tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "no benchmark says that it is judged" in run.stdout + run.stderr


# --- the feed -------------------------------------------------------------------------------------------------------


def test_the_feed_has_an_entry_an_event(found: dict[str, Any], published: tuple[Path, list[str]]) -> None:
    atom = "{http://www.w3.org/2005/Atom}"
    entries = ET.parse(published[0] / "regressions.xml").getroot().findall(f"{atom}entry")
    events = [event for event in found["events"] if event["kind"] == "regression" and event["verdict"] != "refuted"]
    assert len(entries) == len({entry.findtext(f"{atom}id") for entry in entries}) == len(events) == 3
    for entry, event in zip(entries, events, strict=True):
        title, content = entry.findtext(f"{atom}title") or "", entry.findtext(f"{atom}content") or ""
        assert event["last"]["hash"][:8] in title
        assert title.startswith(f"regression, {event['words']}: ")
        assert event["last"]["subject"].split("<")[0] in title
        assert content.count("<li>") == len(event["changes"])
        assert "<script" not in content


# --- the page -------------------------------------------------------------------------------------------------------


def test_the_page_shows_each_event_once(browser: "Browser", address: str, found: dict[str, Any]) -> None:
    with visit(browser, address, "#/regressions") as page:
        page.locator("main[data-shown=regressions]").wait_for()
        for kind in ("regression", "improvement", "disturbed", "environment"):
            shown = [("disturbed" if event["verdict"] == "refuted" else event["kind"]) for event in found["events"]]
            events = [event for event, of in zip(found["events"], shown, strict=True) if of == kind]
            boxes = page.locator(f"section.{kind} .event")
            assert boxes.count() == len(events)
            for box, event in zip(boxes.all(), events, strict=True):
                text = event["last"]["subject"] if kind != "environment" else event["why"][1:]
                assert " ".join(text.split()) in " ".join(box.inner_text().split())
                badges = box.locator("h3 .verdict").all_inner_texts()
                assert badges == ([] if kind == "environment" else [event["words"]])
                assert box.locator("tbody tr").count() == len(event["changes"])
        assert page.locator("section.regression h2").inner_text() == "Regressions (3)"
        row = page.locator("section.regression tr", has_text="padded")
        cells = row.locator("td").all_inner_texts()
        assert cells[0].startswith("transpose/padded float32 256x256 cold")
        assert cells[0].splitlines()[-2:] == ["power", "why it was flagged"]  # the limit that it met
        assert "confirmed in 4 turns" in cells[0]
        assert cells[1] == "+10.00 %"  # as the turns measured it
        assert cells[2] == "+9.80 % to +10.20 %"
        changes = (change for event in found["events"] for change in event["changes"])
        change = next(each for each in changes if each["cell"] == "transpose/padded float32 256x256 cold")
        low, high = (f"{100 * end:+.2f} %" for end in change["interval"])
        assert cells[2] == f"{low} to {high}"
        row.get_by_text("why it was flagged").click()
        floor, *others = row.locator("details div").all_inner_texts()
        assert re.fullmatch(r"floor: 10\.\d\d %, at least 0\.50 % needed", floor)
        assert any(re.fullmatch(r"evidence: 10\^\d+\.\d to 1, at least 10\^\d+\.\d to 1 needed", one) for one in others)
        assert page.locator("section.environment > .wide tbody tr").count() == len(found["turns"])
        assert page.locator("a[href^=javascript]").count() == 0
        page.get_by_text(f"{len(found['series'])} series", exact=True).click()
        assert page.locator("tr", has_text="occupancy").last.inner_text().endswith("any")


def test_filters_are_in_the_address(browser: "Browser", address: str, found: dict[str, Any]) -> None:
    with visit(browser, address, "#/regressions") as page:
        page.locator("main[data-shown=regressions]").wait_for()
        page.get_by_label("state").select_option("refuted")
        page.wait_for_function("document.querySelectorAll('.event').length === 1")
        assert page.evaluate("location.hash") == "#/regressions?state=refuted"
        page.go_back()
        page.wait_for_function(f"document.querySelectorAll('.event').length === {len(found['events'])}")
        page.get_by_role("searchbox", name="words").fill("no such word")
        page.keyboard.press("Enter")
        page.get_by_text("None with these filters.").first.wait_for()


def test_an_event_is_copied_as_markdown(browser: "Browser", published: tuple[Path, list[str]]) -> None:
    with visit(browser, f"{published[0].as_uri()}/", "#/regressions") as page:
        page.locator("main[data-shown=regressions]").wait_for()
        page.evaluate("navigator.clipboard.writeText = async (said) => { window.said = said; }")
        page.locator("section.regression .event", has_text="padded").first.get_by_role("button").click()
        page.get_by_text("Copied").wait_for()
        lines = page.evaluate("window.said").splitlines()
        assert lines[0].startswith("**regression** (confirmed) of +")
        row = "| transpose/padded float32 256x256 cold | +10.00 % | +9.80 % to +10.20 % | confirmed | "
        assert [line for line in lines if line.startswith(row)]


def test_asvs_own_page_leads_there(browser: "Browser", address: str) -> None:
    with visit(browser, address) as page:
        page.goto(f"{address}asv/index.html#/regressions")
        page.wait_for_url(f"{address}index.html#/regressions")
        page.locator("main[data-shown=regressions]").wait_for()
        assert page.locator(".event").count() > 0


# --- the plots ------------------------------------------------------------------------------------------------------

LEGEND_COVERS = """() => {
    const plot = $("#main-graph").data("plot"), canvas = plot.getCanvas().getBoundingClientRect();
    const legend = $(".legendLabel").last()[0].getBoundingClientRect();
    return legend.left < canvas.right && legend.top < canvas.bottom;
}"""


@pytest.mark.parametrize("mended", [True, False], ids=["ours", "asv's own"])
def test_plots_ask_for_no_missing_graph_and_show_all_data(browser: "Browser", tmp_path: Path, mended: bool) -> None:
    """Of two machines, one of which did not measure the series; where asv's own does so too, its plugin may go."""
    write_history(tmp_path)
    path = tmp_path / "asv.conf.json"
    plugins = [plugin for plugin in PLUGINS if mended or not plugin.endswith("plots")]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"plugins": plugins}))
    run = publish(tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    missing: list[str] = []
    with served(tmp_path / "html/asv") as url, visit(browser, url, missing="machine-other") as page:
        page.on("response", lambda response: missing.append(response.url) if response.status == 404 else None)
        page.evaluate("location.hash = '#transpose.GPU.track_seconds'")
        wait_until_drawn(page, "#main-graph")
        assert page.evaluate(LEGEND_COVERS) is not mended
        page.locator("#show-legend").click()
        page.locator(".legendLabel").first.wait_for(state="hidden")
        page.evaluate("location.hash = '#vector_add.GPU.track_bandwidth'")
        page.wait_for_function(
            "() => $('#main-graph').data('plot').getData()[0].data[0][1] > 100"
        )  # of another plot: seconds
        assert (page.evaluate("$('#main-graph').data('plot').getAxes().yaxis.min") == 0) is mended
    assert bool(missing) is not mended


def test_a_series_that_nobody_measured_is_said_to_have_no_data(browser: "Browser", address: str) -> None:
    with visit(browser, f"{address}asv/", "#static.Matmul.track_spill_bytes?machine=other") as page:
        said = page.locator("#error-message", has_text="No data for this combination of filters.")
        said.wait_for()
        assert said.is_visible()


def test_asvs_list_shows_the_newest_value_and_judges_nothing(browser: "Browser", address: str) -> None:
    tiled = next(history for history in HISTORIES if history.params.get("rung") == "tiled")
    with visit(browser, f"{address}asv/", "#/summarylist") as page:
        row = page.locator("#summarylist-body tr", has_text="tiled").first
        row.wait_for()
        assert f"{1e6 * tiled.levels(COMMITS - 1):.3f}\u03bcs" in row.inner_text()
        assert page.locator("td.change.positive-change, td.change.negative-change").count() == 0
        assert page.locator("td.change a").count() == 0


# --- asv, as it is --------------------------------------------------------------------------------------------------


def test_asv_has_what_is_patched_or_used() -> None:
    assert callable(asv_regressions.Regressions.publish)
    assert callable(asv_regressions._GraphDataFilter._get_start_revision)
    assert callable(asv_git.Git._run_git)
    assert all((folder / "regressions.js").is_file() for folder in (ASV_INDEX.parent, SITE / "asv"))
    assert '"regressions.js"' in ASV_INDEX.read_text()


def test_asv_by_itself_flags_the_faster_and_misses_the_slower(tmp_path: Path) -> None:
    """When this fails asv knows the direction, and its own page may do."""
    write_history(tmp_path)
    path = tmp_path / "asv.conf.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"plugins": [alone("offline")]}))
    run = publish(tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    names = [row[0] for row in json.loads((tmp_path / "html/regressions.json").read_text())["regressions"]]
    assert not [name for name in names if "track_occupancy" in name]  # fell
    assert [name for name in names if "track_temperature" in name]  # rose
