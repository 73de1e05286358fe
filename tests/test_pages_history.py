"""The page History: what it draws is what is recorded, and what is not recorded is said."""

import json
import math
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from kernelwatch.publish.data import BLOCK
from kernelwatch.publish.offline import write_scripts
from tests.pages import (
    CHANGED,
    HOSTILE,
    NARROW,
    PADDED,
    TILED,
    browser,
    choose,
    data,
    details,
    fits,
    folder,
    history,
    invented_site,
    marks,
    opened,
    pages_group,
    planted_site,
    recorded_site,
    shown,
    view,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["browser", "invented_site", "planted_site", "recorded_site"]  # fixtures
pytestmark = pages_group


def linear(points: list[dict[str, str]], value: str, pixel: str) -> bool:
    """Whether marks lie where a linear axis puts their values, to a pixel."""
    ordered = sorted(points, key=lambda point: float(point[value]))
    (low, at_low), (high, at_high) = ((float(point[value]), float(point[pixel])) for point in (ordered[0], ordered[-1]))
    slope = (at_high - at_low) / (high - low)
    return all(abs(at_low + slope * (float(point[value]) - low) - float(point[pixel])) < 1 for point in points)


@pytest.fixture(scope="session")
def long_site(recorded_site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recorded site with 10,000 commits of one cell."""
    site = tmp_path_factory.mktemp("long site") / "html"
    shutil.copytree(recorded_site, site, ignore=shutil.ignore_patterns("asv"))
    own, machine, count = folder(recorded_site), details(recorded_site), 10_000
    seconds = [6e-5 * (1 + 0.002 * math.sin(at * at)) for at in range(count)]
    columns: dict[str, list[Any]] = {
        "at": list(range(count)),
        "s": seconds,
        "low": [0.99 * s for s in seconds],
        "high": [1.01 * s for s in seconds],
        "power_w": [400.0] * count,
    }
    commit = data(recorded_site, "commits")[str(machine["commits"][0])]
    blocks = {f"history/9999/{block}": range(block * BLOCK, (block + 1) * BLOCK) for block in range(count // BLOCK)}
    contents: dict[str, Any] = {
        "commits": {
            str(at): commit | {"hash": f"{at:040x}", "date": 1_500_000_000_000 + at * 3_600_000} for at in range(count)
        },
        f"{own}/machine": machine
        | {"commits": list(range(count)), "history": machine["history"] | {"transpose/tiled": list(blocks)}},
    }
    for name, positions in blocks.items():
        part = {column: values[positions.start : positions.stop] for column, values in columns.items()}
        contents[f"{own}/{name}"] = {"rung": "transpose/tiled", "cells": {TILED: part}}
    (site / "data" / own / "history" / "9999").mkdir()
    for name, content in contents.items():
        (site / "data" / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    write_scripts(site / "data")
    return site


def blocks_read(page: "Page", view: str) -> set[int]:
    """Go to a view; the blocks of the cell with 10,000 commits that it loads."""
    names: list[str] = []
    page.on("request", lambda request: names.append(request.url))
    page.evaluate("view => { location.hash = view; }", f"#/{view}")
    shown(page, view.partition("?")[0])
    return {int(found[1]) for name in names if (found := re.search(r"/history/9999/(\d+)\.json", name))}


def test_energy_is_drawn_of_the_newest_commits(browser: "Browser", long_site: Path) -> None:
    """All rungs of an op are drawn: their whole histories would be hundreds of megabytes."""
    with opened(browser, long_site, "status", fresh=True) as page:
        assert blocks_read(page, "devices?op=transpose") == {38, 39}
        assert "The picture is of the newest commits." in page.locator("main").inner_text()
        found = {each["key"]: float(each["value"]) for each in marks(page.locator("td [data-key][data-value]"))}
        newest = data(long_site, f"{folder(long_site)}/history/9999/39")["cells"][TILED]["s"][-1]
        assert found[TILED] == pytest.approx(1e12 * 400 * newest / data(long_site, "cells")[TILED]["bytes"])


def test_where_an_op_was_measured_is_looked_up_from_the_end(
    browser: "Browser", long_site: Path, tmp_path: Path
) -> None:
    site = tmp_path / "html"
    shutil.copytree(long_site, site)
    newest = details(long_site)["commits"][-1]
    machine = data(site, "site")["machines"][0]
    at = f"{machine['folder']}/at/{machine['newest']}"
    snapshot = data(site, at)
    snapshot["cells"] = {key: cell for key, cell in snapshot["cells"].items() if not key.startswith("transpose/")}
    (site / "data" / f"{at}.json").write_text(json.dumps(snapshot))
    write_scripts(site / "data")
    with opened(browser, site, "status", fresh=True) as page:
        assert blocks_read(page, f"ladder?op=transpose&commit={machine['newest']}") == {39}
        links = page.locator("main p a[href*='commit=']")
        hashes = [data(site, "commits")[str(newest - back)]["hash"][:8] for back in range(3)]
        assert [str(links.nth(back).get_attribute("href")).partition("commit=")[2] for back in range(3)] == hashes


# --- History ---------------------------------------------------------------------------------------------------------


def test_a_history_draws_and_lists_what_is_recorded(browser: "Browser", recorded_site: Path) -> None:
    columns = history(recorded_site, PADDED)
    with opened(browser, recorded_site, view("history", cell=PADDED)) as page:
        points = marks(page.locator(".point [data-at]"))
        for name, column in (("at", "at"), ("value", "s"), ("low", "low"), ("high", "high")):
            assert [float(point[name]) for point in points] == columns[column]
        assert linear(points, "value", "y")
        assert [point["x"] for point in points] == sorted(point["x"] for point in points)

        page.locator("details.values summary").click()
        page.locator("details.values table").wait_for()
        rows = marks(page.locator("details.values [data-at]"))
        assert [float(row["s"]) for row in rows] == columns["s"][::-1]
        assert [int(row["at"]) for row in rows] == columns["at"][::-1]
        assert "37.80 µs" in page.locator(".cells").inner_text()
        smallest = next(each["smallest"] for each in data(recorded_site, "series")["series"] if each["cell"] == PADDED)
        assert f"±{100 * smallest:.2f} %" in page.locator(".view").inner_text()
        assert page.locator(".unseen rect").count() == 1


def test_exact_figures_stand_below_the_history(browser: "Browser", recorded_site: Path, invented_site: Path) -> None:
    expected = {}
    for benchmark, rungs in data(
        recorded_site, f"{folder(recorded_site)}/{details(recorded_site)['exact']['transpose']}"
    )["series"].items():
        for place, run in rungs["padded"].items():
            kind, _, where = place.partition(" ")
            if (not where or kind == "float32") and (not where.startswith("sm_") or where == "sm_90"):
                expected[benchmark, place] = run[-1][1]
    assert len(expected) > 20
    with opened(browser, recorded_site, view("history", cell=PADDED)) as page:
        found = marks(page.locator(".constant [data-benchmark]"))
        assert {(each["benchmark"], each["place"]): float(each["value"]) for each in found} == expected
    at = details(invented_site)["commits"]
    with opened(browser, invented_site, view("history", cell=PADDED)) as page:
        steps = marks(page.locator(".step [data-benchmark]"))
        assert [(int(step["at"]), float(step["value"])) for step in steps] == [(at[2], 1), (at[6], 32)]
        above = {point["at"]: point["x"] for point in marks(page.locator(".point [data-at]"))}
        assert all(abs(float(step["x"]) - float(above[step["at"]])) < 1 for step in steps)  # on the same axis
        assert page.locator(".constant [data-benchmark]").count() == len(expected) - 1


def test_changes_are_marked_with_direction_and_verdict(browser: "Browser", planted_site: Path) -> None:
    commits = {commit["hash"]: at for at, commit in data(planted_site, "commits").items()}
    changes = {
        commits[change["to"]]: (event["kind"], change["size"])
        for event in data(planted_site, "events")["events"]
        for change in event["changes"]
        if change["cell"] == CHANGED
    }
    assert sorted(kind for kind, _ in changes.values()) == ["improvement", "regression"]
    with opened(browser, planted_site, view("history", cell=CHANGED)) as page:
        for where in (".mark[data-at]", ".happened li"):
            found = {mark["at"]: (mark["kind"], float(mark["change"])) for mark in marks(page.locator(where))}
            assert found == changes
        assert page.locator(".mark").evaluate_all("marks => marks.map(mark => mark.firstChild.data)") == [
            "▲ +1.26 %, made up for by e00bd4a1",
            "▼ \N{MINUS SIGN}4.96 %, not measured again yet",
        ]
        page.locator(".happened li a").first.click()
        shown(page, "commit")
        assert "The depth of a tile is unrolled by 4" in page.title()


def test_the_cause_of_a_step_stands_beside_it(browser: "Browser", planted_site: Path) -> None:
    """Without the padding of A's tile its stores conflict in the banks of shared memory, and take more wavefronts."""
    benchmark, place, at = "access.Matmul.track_shared_store_wavefronts", "float32 128x128x128", 6
    exact = data(planted_site, f"{folder(planted_site)}/{details(planted_site)['exact']['matmul']}")
    assert exact["series"][benchmark]["thread_tile_2d"][place] == [[0, 1.0], [at, 4.5]]
    commit = data(planted_site, "commits")[str(at)]
    assert commit["subject"] == "No padding of A's tile"
    cause = f"[data-benchmark='{benchmark}']"
    with opened(browser, planted_site, view("history", cell=CHANGED)) as page:
        step = page.locator(f"figure:has(.step {cause})")
        found = marks(step.locator(".step circle"))
        assert [(int(each["at"]), float(each["value"])) for each in found] == [(0, 1), (at, 4.5)]
        time = {point["at"]: point["x"] for point in marks(page.locator(".point [data-at]"))}
        assert abs(float(found[1]["x"]) - float(time[str(at)])) < 1
        assert {"1", "4.5"} <= set(step.locator("text").all_text_contents())
        told = page.locator(f".happened li[data-at='{at}'] {cause}").inner_text()
        assert told == "shared store wavefronts 1 → 4.5 per request"
        assert page.locator(f".happened li:not([data-at='{at}']) {cause}").count() == 0
    with opened(browser, planted_site, view("regressions", q=commit["hash"][:8])) as page:
        event = page.locator(f".event[data-commit='{commit['hash']}']")
        (found,) = [marks(event.locator(f".causes {cause}"))]
        assert [(each["place"], each["before"], each["after"]) for each in found] == [(place, "1", "4.5")]
        assert "wavefronts/request" in event.locator("td", has_text="shared_store_wavefronts").inner_text()


def test_a_history_opens_where_something_happened(browser: "Browser", planted_site: Path, recorded_site: Path) -> None:
    timed = [
        (change["to"], abs(change["change"]), change["cell"])
        for event in data(planted_site, "events")["events"]
        for change in event["changes"]
        if change["cell"]
    ]
    at = {commit["hash"]: int(position) for position, commit in data(planted_site, "commits").items()}
    newest = max(at[commit] for commit, _, _ in timed)
    _, cell = max((size, cell) for commit, size, cell in timed if at[commit] == newest)
    with opened(browser, planted_site, "history") as page:
        assert page.locator("h1").inner_text() == cell
    with opened(browser, planted_site, "history?op=transpose") as page:  # the top rung of the ladder, not its first
        assert page.locator("h1").inner_text() == "transpose/dynamic float32 4096x4096 cold"
    assert data(recorded_site, "events")["events"] == []
    with opened(browser, recorded_site, "history?op=vector_add") as page:
        assert page.locator("h1").inner_text() == "vector_add/elementwise float32 16777216 cold"


def test_a_pointer_and_keys_reach_every_commit(browser: "Browser", planted_site: Path) -> None:
    with opened(browser, planted_site, view("history", cell=CHANGED)) as page:
        point = marks(page.locator(".point [data-at]"))[3]
        page.mouse.move(float(point["x"]) + 3, float(point["y"]) - 20)
        tip = page.locator(".tip")
        assert tip.get_attribute("data-at") == "3"
        commit = data(planted_site, "commits")["3"]
        assert commit["subject"] in tip.inner_text()
        assert commit["hash"][:8] in tip.inner_text()
        assert "MHz" in tip.inner_text()
        page.mouse.click(float(point["x"]), float(point["y"]))
        shown(page, "commit")
        assert page.url.endswith(f"#/commit?hash={commit['hash'][:8]}")
        page.go_back()
        shown(page, "history")
        page.locator(".pointed").focus()
        for key in ("ArrowLeft", "ArrowLeft", "Enter"):
            page.keyboard.press(key)
        shown(page, "commit")
        assert page.url.endswith(f"#/commit?hash={data(planted_site, 'commits')['28']['hash'][:8]}")


def test_choices_are_in_the_address(browser: "Browser", planted_site: Path) -> None:
    with opened(browser, planted_site, view("history", cell=CHANGED)) as page:
        first = page.url
        assert page.locator(".amount").text_content() == "time (µs)"
        choose(page, "show", "1")
        page.locator(".amount", has_text="GFLOP/s").wait_for()
        assert "rate=1" in page.url
        points = marks(page.locator(".point [data-at]"))
        assert linear([point | {"rate": str(1 / float(point["value"]))} for point in points], "rate", "y")
        choose(page, "as", "relative")
        page.locator(".amount", has_text="%").wait_for()
        page.go_back()
        page.locator(".amount", has_text="GFLOP/s").wait_for()
        page.go_back()
        page.locator(".amount", has_text="time (µs)").wait_for()
        assert page.url == first
        page.get_by_role("button", name="Add a cell").click()
        page.locator(".cells li:nth-child(2)").wait_for()
        assert page.url.count("cell=") == 2
        assert "%" in (page.locator(".amount").text_content() or "")
        page.locator(".cells button").first.click()
        page.locator(".cells li:only-child").wait_for()
        assert quote(CHANGED, safe="") not in page.url.replace("+", "%20")


def test_a_line_ends_where_the_conditions_change(browser: "Browser", invented_site: Path) -> None:
    at = details(invented_site)["commits"]
    with opened(browser, invented_site, view("history", cell=PADDED)) as page:
        assert page.locator(".line path").count() == 2
        turn = page.locator(".happened li[data-kind='turn']")
        assert turn.get_attribute("data-at") == str(at[8])
        assert "driver 580.159.04 → 590.1" in turn.inner_text()
        assert "harness version 1 → 2" in turn.inner_text()
        failed = page.locator(".failed")
        assert failed.get_attribute("data-at") == str(at[9])
        assert HOSTILE in (failed.text_content() or "")
        hollow = page.locator(".point [fill='var(--page)']")
        assert hollow.evaluate_all("marks => marks.map(mark => mark.dataset.at)") == [str(at[11])]
    with opened(browser, invented_site, view("history", cell=[PADDED, TILED], x="dated"), NARROW, "dark") as page:
        assert fits(page)
        page.locator("details.values summary").first.click()
        page.locator("details.values table").wait_for()
        assert fits(page)
    with opened(browser, invented_site, view("history", cell=PADDED, machine=HOSTILE)) as page:
        assert page.locator(".point [data-at]").count() == len(at)  # the other machine's own points, and no others


def test_ten_thousand_commits_are_few_elements(browser: "Browser", long_site: Path) -> None:
    with opened(browser, long_site, view("history", cell=TILED)) as page:
        assert page.evaluate("document.querySelectorAll('*').length") < 1000
        box = page.locator(".pointed svg").bounding_box()
        assert box
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        at = int(page.locator(".tip").get_attribute("data-at") or "")
        assert 4000 < at < 6000
        assert f"{at:040x}"[:8] in page.locator(".tip").inner_text()
        page.locator("details.values summary").click()
        page.locator("details.values table").wait_for()
        assert page.locator("details.values [data-at]").count() == 200
        page.get_by_role("button", name="older commits").click()
        assert page.locator("details.values [data-at]").count() == 10_000


def test_what_cannot_be_drawn_is_said(browser: "Browser", recorded_site: Path) -> None:
    only = "matmul/c_threads float32 256x256x256 cold"
    with opened(browser, recorded_site, view("history", cell=only, rate=1)) as page:
        text = page.locator(".view").inner_text()
        assert "Only one commit is measured, 47de068d of 2026-11-20." in text
        assert "this rung runs on the CPU" in text
        assert "Intel" in page.locator("p.quiet").first.inner_text()
    with opened(
        browser, recorded_site, view("history", op="transpose", rung="tiled", shape="1024x1024", cache="hot")
    ) as page:
        assert page.locator("h1").inner_text() == "transpose/tiled float32 1024x1024 hot"
