"""One truth: what an event is, how large it is and how it stands is the same on every page, in the feed, in the copy as
Markdown and in the terminal."""

import html
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from xml.etree import ElementTree

import pytest

from kernelwatch.commands.shown import code_of, show_events
from tests.decided import ACCEPTED, Decided
from tests.pages import browser, data, marks, opened, pages_group, planted_site, view
from tests.test_judges import quiet, text_of
from tests.test_pages_links import _publish

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["browser", "planted_site"]  # fixtures
pytestmark = pages_group

Json = dict[str, Any]
MOST = 10  # cells whose histories are looked at, and commits


@pytest.fixture(scope="session")
def decided_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history with regressions that are accepted, expected, larger than expected, fixed, made up for and refuted."""
    project = Decided(tmp_path_factory.mktemp("one truth"))
    project.publish()
    done = project.accept(project.commits[ACCEPTED], "--reason", "worth it")
    assert done.returncode == 0, done.stderr
    project.publish()
    return project.folder / "html"


@pytest.fixture(params=["planted", "own", "decided"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "own":  # what this project recorded: links, and full runs on two GPUs
        return _publish(tmp_path_factory.getbasetemp())
    return Path(request.getfixturevalue(f"{request.param}_site"))


def size(standing: Json) -> str:
    """A size as the pages write it."""
    return "from 0" if standing["size"] is None else f"{100 * standing['size']:+.2f} %".replace("-", "\N{MINUS SIGN}")


def bounds(standing: Json) -> str:
    low, high = standing["interval"]
    return "" if low is None else f"{size({'size': low})} to {size({'size': high})}"


def changes_of(site: Path) -> list[tuple[Json, Json]]:
    """The events of the newest machine of the pages, with their changes."""
    machine = data(site, "site")["machines"][0]["name"]
    events = data(site, "events")["events"]
    return [(event, each) for event in events for each in event["changes"] if each["place"]["machine"] == machine]


def rows(page: "Page", selector: str) -> dict[str, tuple[str, str]]:
    """By the id of a change, the state that marks of a page carry, and the text about it."""
    found = page.locator(selector)
    return {
        mark["id"]: (mark.get("state", ""), text)
        for mark, text in zip(marks(found), texts(page, selector), strict=True)
    }


def texts(page: "Page", selector: str) -> list[str]:
    """The text of each element, or of the row of a table that it stands in."""
    return [
        " ".join(text.split())
        for text in page.locator(selector).evaluate_all(
            "all => all.map(each => (each.closest('tr') || each).innerText)"
        )
    ]


def agrees(found: dict[str, tuple[str, str]], told: list[tuple[Json, Json]]) -> None:
    """Whether a page tells state, size and interval of these changes as they were published."""
    for event, change in told:
        state, text = found[change["id"]]
        assert state == (change["state"] or ""), change
        assert size(change) in text, (change["id"], text)
        assert bounds(change) in text, (change["id"], text)
        assert change["words"] in text or event["kind"] == "environment", (change["words"], text)


def test_regressions_and_its_markdown_tell_what_was_published(browser: "Browser", site: Path) -> None:
    events = data(site, "events")["events"]
    ids = [change["id"] for event in events for change in event["changes"]]
    assert len(ids) == len(set(ids))
    with opened(browser, site, "regressions") as page:
        page.locator("details summary").evaluate_all("all => all.forEach(each => { each.parentElement.open = true; })")
        page.evaluate("navigator.clipboard.writeText = async (said) => { (window.said ||= []).push(said); }")
        for event in events:
            box = page.locator(f"article[data-event='{event['id']}']")
            assert box.get_attribute("data-state") == (event["state"] or None) or event["kind"] == "environment"
            kind = {"refuted": "disturbed", "accepted": "accepted"}.get(event["state"], event["kind"])
            assert box.get_attribute("data-kind") == kind
            assert ("open" in (box.get_attribute("class") or "").split()) == event["open"]
            if event["kind"] == "environment":
                continue
            assert box.locator("h3 .verdict").inner_text() == event["words"]
            marked = marks(box.locator("[data-change]"))
            shown = {each["change"]: each for each in marked}
            # All rows at once: to look for one of them, the browser goes through the 20,000 elements of the page.
            read = zip(marked, texts(page, f"article[data-event='{event['id']}'] [data-change]"), strict=True)
            rows_of = {mark["change"]: text for mark, text in reversed(list(read))}
            for change in event["changes"]:
                assert shown[change["id"]].get("state") == change["state"]
                row = rows_of[change["id"]]
                assert f" {size(change)} {bounds(change) or 'exact'} " in f"{row} " or change["interval"][0] is None
                if change["words"] != event["words"]:
                    assert change["words"] in row
            reason = event["decision"] and event["decision"]["reason"]
            assert not reason or reason in box.locator(".reason").inner_text()
            box.get_by_role("button").first.click()
            said = page.evaluate("window.said.at(-1)")
            assert said.startswith(
                f"**{event['kind']}** ({event['words']}) of {size(event)} at {event['last']['hash'][:8]}: "
            )
            assert not reason or reason in said
            lines = [line for line in said.splitlines() if line.startswith("| ")][2:]
            for change, line in zip(event["changes"][:20], lines, strict=True):
                interval = bounds(change) or ("exact" if change["exact"] else "n/a")
                assert f"| {size(change)} | {interval} | {change['words']} |" in line


def test_status_counts_and_lists_what_is_open_and_what_is_accepted(browser: "Browser", site: Path) -> None:
    machine = data(site, "site")["machines"][0]["name"]
    events = [
        event for event in data(site, "events")["events"] if event["kind"] == "regression" and event["configured"]
    ]
    own = [event for event in events if any(each["place"]["machine"] == machine for each in event["changes"])]
    with opened(browser, site, "status") as page:
        card = page.locator(f"article[data-machine='{machine}']")
        is_open = [event for event in own if event["open"]]
        line = card.locator(".verdict-line").inner_text()
        if is_open:
            confirmed = sum(event["state"] == "confirmed" for event in is_open)
            assert f"{len(is_open)} regression{'s' * (len(is_open) > 1)} open, {confirmed} of them confirmed." in line
        listed = {each["event"]: each for each in marks(card.locator("li[data-event]"))}
        told = {event["id"]: event for event in own}
        assert {told[name]["state"] for name in listed} <= {"new", "confirmed", "accepted"}
        accepted = {event["id"] for event in own if event["state"] == "accepted"}
        assert {each["event"] for each in marks(card.locator(".accepted li[data-event]"))} == accepted
        for name, mark in listed.items():
            event = told[name]
            assert mark["state"] == event["state"]
            text = card.locator(f"li[data-event='{name}']").inner_text()
            assert event["words"] in text
            assert any(f"{size(change)}, " in text for change in event["changes"])
            if (
                sum(each["place"]["machine"] != machine for each in event["changes"]) == 0
                and event["open"]
                and all(change["open"] for change in event["changes"])
            ):
                assert f"{size(event)}, " in text  # the size of the event is that of its largest change


def test_history_commit_and_rung_tell_what_was_published(browser: "Browser", site: Path) -> None:
    told = [(event, change) for event, change in changes_of(site) if event["configured"]]
    positions = {commit["hash"]: at for at, commit in data(site, "commits").items()}
    cells = list(dict.fromkeys(change["cell"] for _, change in told if change["cell"] in data(site, "cells")))[:MOST]
    recorded = data(site, "site")["machines"][0]
    histories = data(site, f"{recorded['folder']}/machine")["history"]
    for cell in (cell for cell in cells if cell.split(" ")[0] in histories):
        with opened(browser, site, view("history", cell=cell)) as page:
            found = rows(page, ".happened li[data-id]")
            own = [(event, change) for event, change in told if change["cell"] == cell and change["id"] in found]
            linked = [change for _, change in told if change["cell"] == cell and change["linked"]]
            assert own or linked
            agrees(found, own)
            labels = page.locator(".mark[data-change]").evaluate_all("all => all.map(each => each.firstChild.data)")
            for event, change in own:
                assert [
                    label
                    for label in labels
                    if size(change) in label and (change["words"] in label or event["kind"] == "environment")
                ]
    for commit in list(dict.fromkeys(change["to"] for _, change in told))[:MOST]:
        with opened(browser, site, view("commit", hash=commit)) as page:
            section = f"section[data-machine='{recorded['name']}']"
            at_commit = [(event, change) for event, change in told if change["to"] == commit]
            agrees(rows(page, f"{section} .happened li[data-id]"), at_commit)
            sizes = {  # of what the commit alone did
                change["cell"]: change
                for event, change in at_commit
                if event["kind"] != "environment" and not event["gradual"]
            }
            for each in marks(page.locator(f"{section} td [data-key][data-change]")):
                if each["key"] in sizes and sizes[each["key"]]["state"] != "refuted":
                    assert float(each["change"]) == pytest.approx(sizes[each["key"]]["size"], abs=1e-5)
    planted = [
        each for each in told if each[1]["cell"].startswith("transpose/padded float32") and not each[1]["linked"]
    ]
    for _, change in planted:
        before, after = (positions[change[name]] for name in ("from", "to"))
        address = {"op": "transpose", "commit": after, "with": before, "shape": change["cell"].split(" ")[2]}
        with opened(browser, site, view("ladder", **address)) as page:
            assert [text for text in texts(page, "td") if text.startswith("padded ") and size(change) in text]
    for rung in list(dict.fromkeys(change["rung"] for _, change in told))[:MOST]:
        if rung not in histories:
            continue
        with opened(browser, site, view("rung", op=rung.split("/")[0], rung=rung.split("/")[1])) as page:
            agrees(rows(page, "td [data-id]"), [(event, change) for event, change in told if change["rung"] == rung])


def test_feed_and_terminal_tell_what_was_published(site: Path) -> None:
    events = data(site, "events")["events"]
    entries = ElementTree.parse(site / "regressions.xml").getroot().findall("{*}entry")
    feed = {entry.findtext("{*}title") or "": html.unescape(entry.findtext("{*}content") or "") for entry in entries}
    told = [event for event in events if event["kind"] == "regression" and event["state"] != "refuted"]
    plain = str.maketrans("\N{MINUS SIGN}", "-")
    for event in told:
        start = f"{event['kind']}, {event['words']}: "
        ((_, content),) = [
            (title, content) for title, content in feed.items()
            if title.startswith(start) and f" {size(event).translate(plain)}: {event['last']['hash'][:8]} " in title
        ]  # fmt: skip
        for change in event["changes"]:
            interval = f" ({bounds(change)})".translate(plain) if bounds(change) else ""
            assert f": {size(change).translate(plain)}{interval}, {change['words']}; " in content
    assert sum(title.startswith("regression, ") for title in feed) == len(told)
    console = quiet()
    show_events(events, console)
    lines = text_of(console).splitlines()
    for event, line in zip(events, lines, strict=True):
        words = "disturbed run" if event["state"] == "refuted" else f"{event['kind']}, {event['words']}"
        assert line.startswith(f"{words} at {event['last']['hash'][:8]} ")
        assert size(event).translate(plain) in line
    assert code_of(events) == int(any(event["open"] for event in events))


def test_an_instrument_is_named_on_every_page_of_its_figures(browser: "Browser", tmp_path_factory: Any) -> None:
    """The emulator changed, and so did its counts of the same binaries. The commit that came with it edits one test."""
    site, commit, rung = _publish(tmp_path_factory.getbasetemp()), "46ae8df7", "pipelined"
    why = "the emulator counts the same binary otherwise"
    told = [(event, change) for event, change in changes_of(site) if change["to"].startswith(commit)]
    assert {event["why"] for event, _ in told} == {why}
    with opened(browser, site, view("rung", op="matmul", rung=rung)) as page:
        assert [text for text in texts(page, "td [data-id]") if "A line that fits" in text and why in text]
        assert page.locator(f"table [data-why='{why}']").count() > 5
    with opened(browser, site, view("commit", hash=commit)) as page:
        moved = texts(page, f"td:has([data-why='{why}'])")
        assert moved
        assert not [text for text in moved if re.search(r"better|worse", text)]
    key = f"matmul/{rung} float32 {quote('1024x1024x1024')} cold"
    with opened(browser, site, view("history", cell=key)) as page:
        assert page.locator(f".exact [data-why='{why}']").count() > 3
        assert page.locator(".happened [data-benchmark^='access']").count() == 0


def test_a_rung_joins_nothing_that_was_measured_on_two_gpus(browser: "Browser", tmp_path_factory: Any) -> None:
    site = _publish(tmp_path_factory.getbasetemp())
    with opened(browser, site, view("rung", op="matmul", rung="pipelined")) as page:
        charts = marks(page.locator(".charts svg[data-key]"))
        assert charts
        assert {(each["points"], each["stretches"]) for each in charts} == {("2", "2")}
        assert page.locator(".charts [data-since]").count() == 0
        told = page.locator(".charts li").all_inner_texts()
        assert {("by links from" in each, "one commit under the newest conditions" in each) for each in told} <= {
            (True, False),
            (False, True),
        }
        lines = page.locator(".charts svg[data-key] [data-mark=line] path")
        drawn = lines.evaluate_all("all => all.map(each => each.getAttribute('d'))")
        assert len(drawn) == 2 * len(charts)
        assert not [path for path in drawn if "L" in path]
