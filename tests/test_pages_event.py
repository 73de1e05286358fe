"""The page of an event: it lasts, shows what is recorded, and is linked from wherever the event is told."""

import json
import math
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kernelwatch.history import records
from kernelwatch.publish.offline import write_scripts
from lab import planted
from tests.pages import (
    EXPLAINED,
    HOSTILE,
    NARROW,
    browser,
    data,
    fits,
    marks,
    opened,
    pages_group,
    planted_site,
    recorded_site,
    view,
)
from tests.schemas import check
from tests.test_pages import violations

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["browser", "planted_site", "recorded_site"]  # fixtures
pytestmark = pages_group

BARRIER = "22c6a10d996c-b53978d1"  # a second barrier before the product
SYNCWARP = "7cf47fb7658d-35a75f3c"  # which is one NOP more in a loop, and moves no figure
TILES = "322429bc6785-b8a15284"  # faster, beside a regression of exact figures


def events(site: Path) -> dict[str, Any]:
    return {event["id"]: event for event in data(site, "events")["events"]}


def main_text(page: "Page") -> str:
    return page.locator("main").inner_text()


def test_every_event_has_its_files(planted_site: Path) -> None:
    known = events(planted_site)
    assert len(known) == 9
    for folder in ("causes", "sass"):
        assert {path.stem for path in (planted_site / "data" / folder).glob("*.json")} == {*known}
    whys = [data(planted_site, f"sass/{id}")["kernels"][0]["why"] for id in known]
    assert sum(not why for why in whys) == EXPLAINED
    assert {why for why in whys if why} == {
        f"one publication looks at {EXPLAINED} events (explained_events in asv.conf.json), the newest open regressions "
        "first; the next one looks at more"
    }


@pytest.mark.parametrize("id", [SYNCWARP, TILES])
def test_a_page_fits_and_shuts_nobody_out(browser: "Browser", planted_site: Path, id: str) -> None:
    with opened(browser, planted_site, view("event", id=id), NARROW, "dark", fresh=True) as page:
        assert page.locator("main .error").count() == 0
        assert fits(page)
        assert violations(page) == []


def test_the_id_of_any_change_opens_the_event(browser: "Browser", planted_site: Path) -> None:
    event = events(planted_site)[BARRIER]
    assert len(event["changes"]) == 2
    for change in event["changes"]:
        with opened(browser, planted_site, view("event", id=change["id"])) as page:
            assert page.locator("h1").inner_text() == f"Regression: {event['last']['subject']}"


def test_it_says_what_happened_for_two_readers(browser: "Browser", planted_site: Path) -> None:
    with opened(browser, planted_site, view("event", id=BARRIER)) as page:
        manager = page.locator("[data-for=manager]").inner_text()
        assert "matmul/thread_tile_1d (float32 1024x1024x1024 cold) is 1.83 % slower on NVIDIA H200" in manager
        assert "since the commit \u201cA second barrier before the product\u201d" in manager
        engineer = page.locator("[data-for=engineer]").inner_text()
        assert engineer.startswith(
            "+1.83 %, since `__syncthreads();` was added: a block waits at 48 barriers instead of"
        )
        assert engineer.endswith("in its SASS BAR 2 \u2192 3.")
    with opened(browser, planted_site, view("event", id=SYNCWARP)) as page:
        engineer = page.locator("[data-for=engineer]").inner_text()
        assert engineer.endswith(": no exact figure moved; in its SASS NOP 0 \u2192 1.")
        assert "None moved:" in main_text(page)


def test_every_process_of_both_sides_is_drawn(browser: "Browser", planted_site: Path) -> None:
    event = events(planted_site)[TILES]
    recorded = planted.DATA / "results" / event["changes"][0]["place"]["machine"]
    with opened(browser, planted_site, view("event", id=TILES)) as page:
        for at, change in enumerate(each for each in event["changes"] if each["cell"]):
            drawn = marks(page.locator(".samples figure").nth(at).locator("[data-value]"))
            for word, commit in (("before", change["from"]), ("after", change["to"])):
                (sidecar,) = recorded.glob(f"{commit[:8]}-*.facts.jsonl")
                seconds = sorted(records.read(sidecar).cells[change["cell"]].seconds)
                own = sorted(float(each["value"]) for each in drawn if each["row"] == f"{word} {commit[:8]}")
                assert own == pytest.approx([1e6 * each for each in seconds], rel=1e-6)
                assert len(own) >= 3
        assert "cold, from memory" in main_text(page)
        assert "580.159.04" in main_text(page)


def test_every_turn_of_a_confirmation_is_drawn(browser: "Browser", planted_site: Path, tmp_path: Path) -> None:
    site, logs = tmp_path / "site", [0.049, 0.05, 0.0505, 0.051]
    shutil.copytree(planted_site, site, ignore=shutil.ignore_patterns("asv"))
    path = site / "data" / f"causes/{SYNCWARP}.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["cells"][0]["confirmed"] = logs
    path.write_text(json.dumps(content), encoding="utf-8")
    write_scripts(site / "data")
    with opened(browser, site, view("event", id=SYNCWARP), fresh=True) as page:
        drawn = marks(page.locator(".samples figure").nth(1).locator("[data-value]"))
        assert {each["row"] for each in drawn} == {"measured again"}
        shown = sorted(float(each["value"]) for each in drawn)
        assert shown == pytest.approx([100 * math.expm1(log) for log in logs], rel=1e-6)
        assert "in each turn (%)" in main_text(page)


def test_the_state_says_what_confirmed_it(browser: "Browser", planted_site: Path) -> None:
    for id, state in ((BARRIER, "An exact figure moved"), (SYNCWARP, "No comparison of both commits in turns")):
        with opened(browser, planted_site, view("event", id=id)) as page:
            assert state in page.locator(".state").inner_text()


def test_it_shows_source_sass_and_exact_figures(browser: "Browser", planted_site: Path) -> None:
    with opened(browser, planted_site, view("event", id=BARRIER)) as page:
        headings = page.locator("h2").all_inner_texts()
        assert headings == [
            "Samples of both sides", "Source", "SASS", "Exact figures that moved", "All that moved at this commit",
            "GPUs and clocks", "State", "Take it along",
        ]  # fmt: skip
        assert "+        __syncthreads();" in page.get_by_role("region", name="Diff on which").inner_text()
        told = data(planted_site, f"sass/{BARRIER}")["kernels"][0]
        opcodes = [(each["opcode"], each["before"], each["after"]) for each in marks(page.locator("[data-opcode]"))]
        assert opcodes == [("BAR", "2", "3")]
        diff = page.get_by_role("region", name="Diff of the SASS").inner_text().splitlines()
        assert [line for line in diff if line.startswith("+")] == [
            f"+ {address}  {text}" for mark, address, text in told["rows"] if mark == "+"
        ]
        assert any("BAR.SYNC" in line for line in diff)
        figures = {each["figure"]: (each["before"], each["after"]) for each in marks(page.locator("[data-figure]"))}
        assert figures["barriers"] == ("32", "48")
        assert figures["instructions"] == ("341", "342") == tuple(map(str, told["instructions"]))
    with opened(browser, planted_site, view("event", id=TILES)) as page:
        assert "No SASS diff: one publication looks at 2 events" in main_text(page)
        beside = page.locator("main li a[href^='#/event']")
        assert beside.inner_text() == "Regression: 2 series"
        beside.click()
        page.locator("h1", has_text="Regression").wait_for()


def test_it_can_be_taken_along(browser: "Browser", planted_site: Path) -> None:
    with opened(browser, planted_site, view("event", id=BARRIER), fresh=True) as page:
        page.evaluate("navigator.clipboard.writeText = async (words) => { window.copied = words; }")

        def copied(name: str) -> str:
            page.get_by_role("button", name=name, exact=True).click()
            page.get_by_role("button", name="Copied").last.wait_for()
            return str(page.evaluate("window.copied"))

        command = copied("Copy the command that repeats it")
        assert command == (
            "scripts/versus b5824492d5a1 22c6a10d996c --only '^(matmul/thread_tile_1d float32 1024x1024x1024 cold)$'"
        )
        content = json.loads(copied("Copy as JSON"))
        assert content["id"] == BARRIER
        assert content["causes"] == data(planted_site, f"causes/{BARRIER}")
        check(content, "events", "copied")
        words = copied("Copy as Markdown")
        assert words.startswith(content["causes"]["manager"])
        assert command in words
        assert "| access.Matmul.barriers (thread_tile_1d, float32 128x128x128) | +50.00 % |" in words, words


def test_what_the_page_reads_is_as_the_schema_says(planted_site: Path) -> None:
    events = data(planted_site, "events")
    check(events, "events")
    for event in events["events"]:
        check(data(planted_site, f"causes/{event['id']}"), "events", "causes")


def test_an_unknown_id_is_explained(browser: "Browser", planted_site: Path) -> None:
    with opened(browser, planted_site, view("event", id=f"22c6a10d996c-{HOSTILE}")) as page:
        assert page.locator("h1").inner_text() == "No such event"
        assert "a shallow clone" in main_text(page)
        assert page.get_by_role("link", name="The commit 22c6a10d").get_attribute("href") == "#/commit?hash=22c6a10d"
        assert not page.evaluate("window.pwned")
    with opened(browser, planted_site, view("event", id="nothing")) as page:
        assert page.locator("h1").inner_text() == "No such event"
        assert page.get_by_role("link", name="The commit").count() == 0


def test_every_place_that_tells_an_event_links_to_its_page(browser: "Browser", planted_site: Path) -> None:
    known = events(planted_site)
    ids = {change["id"] for event in known.values() for change in event["changes"]}

    def linked(address: str) -> set[str]:
        with opened(browser, planted_site, address) as page:
            hrefs = page.locator("main a[href^='#/event?id=']").evaluate_all("all => all.map(each => each.hash)")
        return {href.partition("id=")[2] for href in hrefs}

    assert linked("regressions") == {*known}
    assert len(linked("status")) == 6
    assert linked("status") < {*known}
    assert linked("commit?hash=22c6a10d") == {BARRIER}
    assert linked("commit?hash=322429bc") == {id for id in known if id.startswith("322429bc")}
    assert linked("rung?op=matmul&rung=unrolled") == {"38a2afa21a54-f1c31a3c"}
    of_cell = linked(view("history", cell="matmul/thread_tile_2d float32 1024x1024x1024 cold"))
    assert len(of_cell) == 2
    assert of_cell < ids
    feed = ET.parse(planted_site / "regressions.xml").getroot()
    links = {each.get("href", "") for each in feed.iter("{http://www.w3.org/2005/Atom}link")}
    regressions = {event["id"] for event in known.values() if event["kind"] == "regression"}
    assert {link.partition("index.html#/event?id=")[2] for link in links} - {""} == regressions


def test_who_accepted_it_is_shown_and_markup_stays_text(browser: "Browser", planted_site: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(planted_site, site, ignore=shutil.ignore_patterns("asv"))
    path = site / "data" / "events.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    event = next(each for each in content["events"] if each["id"] == BARRIER)
    decision = {
        "kind": "accepted",
        "by": f"{HOSTILE} <ada@example.org>",
        "at": "2026-11-25T00:00:00",
        "reason": "wanted",
        "missed": "",
    }
    event |= {"state": "accepted", "words": "accepted", "open": False, "decision": decision}
    event["changes"] = [change | {"state": "accepted", "open": False} for change in event["changes"]]
    path.write_text(json.dumps(content), encoding="utf-8")
    causes = site / "data" / f"causes/{BARRIER}.json"
    told = json.loads(causes.read_text(encoding="utf-8"))
    told["engineer"] = told["kernels"][0]["source"] = HOSTILE
    causes.write_text(json.dumps(told), encoding="utf-8")
    write_scripts(site / "data")
    with opened(browser, site, view("event", id=BARRIER), fresh=True) as page:
        said = page.locator(".state [data-state=accepted]").inner_text()
        assert said.startswith("Accepted. ")
        assert said.endswith(f"{HOSTILE}, 2026-11-25: wanted.")
        assert page.locator("[data-for=engineer]").inner_text() == HOSTILE
        assert not page.evaluate("window.pwned")
    with opened(browser, site, "status", fresh=True) as page:
        said = page.locator(f"[data-event='{BARRIER}']").inner_text()
        assert said.endswith(", accepted (2026-11-25: wanted)")


def test_pages_name_commits_by_their_hash(browser: "Browser", planted_site: Path) -> None:
    """A position is that of another commit in a clone of another depth; an address with one still opens."""
    commits = data(planted_site, "commits")
    for address in (
        "status",
        "regressions",
        "commit?at=12",
        "ladder",
        "devices",
        "search?q=tile",
        f"event?id={BARRIER}",
    ):
        with opened(browser, planted_site, address) as page:
            hrefs = page.locator("main a[href*='/commit?'], main a[href*='commit=']").evaluate_all(
                "all => all.map(each => each.hash)"
            )
            assert not [href for href in hrefs if "at=" in href.partition("?")[2].split("&")[0]]
            assert all(
                len(part.partition("=")[2]) == 8
                for href in hrefs
                for part in href.split("?")[1].split("&")
                if part.startswith(("hash=", "commit=", "with="))
            )
            if address == "commit?at=12":
                assert page.locator("h1").inner_text() == commits["12"]["subject"]


def test_the_status_of_a_shallow_clone_says_what_it_lacks(
    browser: "Browser", planted_site: Path, tmp_path: Path
) -> None:
    whole, clone = tmp_path / "whole", tmp_path / "clone"
    planted.build(whole)
    subprocess.run(["git", "clone", "-q", "--depth", "5", whole.as_uri(), str(clone)], check=True)
    for name in planted.HARNESS:
        (shutil.copytree if (whole / name).is_dir() else shutil.copy)(whole / name, clone / name)
    site = planted.publish(clone, planted.DATA / "results", tmp_path / "html", explained=0).parent
    assert len(data(site, "events")["unknown"]) == 25
    with opened(browser, site, "status", fresh=True) as page:
        told = page.locator("[data-unknown='25']").inner_text()
        assert "25 measured commits are not shown here and not judged" in told
        assert "git fetch --unshallow" in told
    with opened(browser, site, view("event", id=BARRIER)) as page:
        assert "this one is shallow" in main_text(page)
    with opened(browser, planted_site, "status") as page:
        assert page.locator("[data-unknown]").count() == 0
