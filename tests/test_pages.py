"""The frame of the pages: every view opens from a file and over http, wide and narrow, in light and dark, and axe finds
nothing serious."""

import json
import re
import shutil
import tomllib
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kernelwatch.publish import offline
from kernelwatch.publish.offline import SITE
from lab import loading
from tests.pages import (
    NARROW,
    WIDE,
    browser,
    data,
    opened,
    pages_group,
    planted_site,
    recorded_site,
    shown,
    two_gpus_site,
)
from tests.test_site import served, visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["browser", "planted_site", "recorded_site", "two_gpus_site"]  # fixtures
pytestmark = pages_group

CELL = "transpose/padded float32 4096x4096 cold"
VIEWS = (
    "status",
    "ladder?op=transpose&device=gpu",
    f"history?cell={CELL}",
    "rung?op=transpose&rung=padded",
    "regressions",
    "commit?at=7",
    "event?id=22c6a10d996c-b53978d1",
    "roofline",
    "devices",
    "search?q=padded",
)


SHARED = {
    "choosing",
    "values",
    "page",
    "data",
    "text",
    "draw",
    "start",
    "exact",
    "point",
    "happened",
    "ladders",
    "compare",
    "links",
}  # what views share


def violations(page: "Page") -> list[str]:
    """What axe takes for a serious obstacle to readers with a disability, each with an element that shows it. A
    document loads axe once, and hands over only what axe found."""
    axe: Any = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    if not page.evaluate("'axe' in window"):
        page.evaluate(axe.Axe().axe_script)
    options = {"preload": False, "resultTypes": ["violations"]}
    found = page.evaluate("options => axe.run(options).then(results => results.violations)", options)
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in found if each["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.partition("?")[0])
def test_a_view_opens_and_shuts_nobody_out(browser: "Browser", planted_site: Path, view: str) -> None:
    """Wide and light, then narrow and dark: the page is drawn anew for its width."""
    with opened(browser, planted_site, view, fresh=True) as page:
        for width, height in (WIDE, NARROW):
            if width == NARROW[0]:
                drawn = page.locator("main > .view").element_handle()
                page.emulate_media(color_scheme="dark")
                page.set_viewport_size({"width": width, "height": height})
                page.wait_for_function("old => !old.isConnected", arg=drawn)
            shown(page, view.partition("?")[0])
            assert page.locator("main .error").count() == 0
            assert page.locator("main h1").count() == 1
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert not re.search(r"\b(undefined|NaN|null|\[object)", page.locator("main").inner_text())
            assert violations(page) == []


def test_every_view_is_in_this_list() -> None:
    own = {path.stem for path in (SITE / "pages").glob("*.js")} - SHARED
    assert own == {view.partition("?")[0] for view in VIEWS}


def test_no_page_loads_much(browser: "Browser", recorded_site: Path) -> None:
    """Plot and d3 are 0.5 MB of each page; the rest grows with the history."""
    assert {view.partition("?")[0] for view in loading.VIEWS} == {view.partition("?")[0] for view in VIEWS}
    vendored = sum(path.stat().st_size for path in (SITE / "vendor").glob("*.js"))
    for view in loading.VIEWS:
        found = loading.load(browser, recorded_site, view, times=1)
        assert vendored < found.bytes < 3 << 20, found
        assert found.drawn_ms is None or 0 < found.drawn_ms <= found.shown_ms, found


def test_over_http_too(browser: "Browser", recorded_site: Path) -> None:
    with served(recorded_site) as address, visit(browser, address) as page:
        shown(page, "status")
        page.get_by_role("link", name="Regressions", exact=True).click()
        shown(page, "regressions")
        page.go_back()
        shown(page, "status")
        assert page.locator(".machine").count() == 1


def test_the_page_works_by_keyboard(browser: "Browser", recorded_site: Path) -> None:
    with opened(browser, recorded_site, "status", fresh=True) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.get_by_role("searchbox").press_sequentially("padded 16384")
        page.keyboard.press("Enter")
        shown(page, "search")
        assert page.evaluate("location.hash") == "#/search?q=padded+16384"
        assert page.evaluate("document.activeElement.id") == "main"


def test_the_status_says_what_was_measured(browser: "Browser", recorded_site: Path) -> None:
    site = data(recorded_site, "site")
    (host,) = site["machines"]
    commit = data(recorded_site, "commits")[str(host["newest"])]
    with opened(browser, recorded_site, "status") as page:
        assert page.title() == "Status \u2013 gpukernels"
        text = page.locator(".machine").inner_text()
        assert host["gpu"] in text
        (known,) = data(recorded_site, "events")["evidence"]
        assert 0 < known["judged"] < known["series"]  # some have too few commits under the newest conditions
        some = (
            f"Full runs: no open regression in {known['judged']} of {known['series']} series; the others are not judged"
        )
        assert f"{some} at {commit['hash'][:8]}." in text
        assert "; ".join(f"{count} series: {why}" for why, count in known["unjudged"]) in text
        assert f"{host['behind']} commits behind" in text
        assert f"{host['cells']} timed cells at the newest" in text
        rows = page.locator("table[aria-label='Trend of each op'] tbody tr")
        assert rows.count() == len(host["trend"])
        change = 100 * (host["trend"]["transpose gpu"][-1][1] / host["trend"]["transpose gpu"][0][1] - 1)
        told = rows.filter(has_text="transpose GPU").locator("td").last.inner_text()
        assert float(told.replace("\u2212", "-").removesuffix(" %")) == pytest.approx(change, abs=0.006)


def test_an_age_goes_by_dates(browser: "Browser", recorded_site: Path) -> None:
    """As the date beside it does: an hour before midnight was yesterday."""
    with opened(browser, recorded_site, "status") as page:
        ages = "kernelwatch.text.age(Date.UTC(2026, 0, day, hour), Date.UTC(2026, 0, 3, 1))"
        days = page.evaluate(f"[[3, 0], [2, 23], [2, 0], [1, 23]].map(([day, hour]) => {ages})")
        assert days == ["today", "a day ago", "a day ago", "2 days ago"]


def test_a_trend_of_one_commit_is_none(browser: "Browser", recorded_site: Path, tmp_path: Path) -> None:
    """The newest commit on another GPU than those before, and the only one of all."""
    shutil.copytree(recorded_site, tmp_path / "site")
    path = tmp_path / "site" / "data" / "site.json"
    events = path.with_name("events.json")
    events.write_text(json.dumps(json.loads(events.read_text(encoding="utf-8")) | {"links": []}), encoding="utf-8")
    for commits, told in ((5, "one commit under the newest conditions"), (1, "one commit")):
        site = json.loads(path.read_text(encoding="utf-8"))
        (host,) = site["machines"]
        host |= {"commits": commits, "trend": {op: points[-1:] for op, points in host["trend"].items()}}
        path.write_text(json.dumps(site), encoding="utf-8")
        offline.write_scripts(path.parent)
        with opened(browser, tmp_path / "site", "status", fresh=True) as page:
            cells = page.locator(".machine tbody td:nth-child(2)").all_inner_texts()
            assert cells == [told] * len(host["trend"])


def test_the_status_counts_what_is_open(browser: "Browser", planted_site: Path) -> None:
    events = data(planted_site, "events")["events"]

    def size(event: Any) -> float:
        return max(
            (abs(change["size"]) for change in event["changes"] if change["open"] and not change["exact"]), default=0
        )

    is_open = sorted(
        (event for event in events if event["open"]),
        key=size,
        reverse=True,
    )  # fmt: skip
    confirmed = sum(event["state"] == "confirmed" for event in is_open)
    assert 0 < confirmed < len(is_open) > 6
    with opened(browser, planted_site, "status") as page:
        verdict = page.locator(".verdict-line")
        assert f"{len(is_open)} regressions open, {confirmed} of them confirmed." in verdict.inner_text()
        listed = page.locator(".machine li").all_inner_texts()
        assert len(listed) == 7
        assert listed[-1] == f"all {len(is_open)}"
        first = page.locator(".machine li a").first
        assert first.inner_text() == is_open[0]["last"]["subject"]
        first.click()
        shown(page, "event")
        assert page.url.endswith(f"#/event?id={is_open[0]['id']}")
        assert page.locator("h1").inner_text() == f"Regression: {is_open[0]['last']['subject']}"


def test_search_tells_machines_apart(browser: "Browser", two_gpus_site: Path) -> None:
    """Two have the same series: each is listed once for each of them, by name."""
    with opened(browser, two_gpus_site, "search?q=spill_bytes sm_90 tiled_16") as page:
        listed = page.locator("ul[data-kind=series] li").all_inner_texts()
        addresses = page.locator("ul[data-kind=series] a").evaluate_all("all => all.map((link) => link.href)")
    assert len(listed) >= 2
    assert len(set(listed)) == len(listed)
    assert {name for text in listed for name in ("h200", "h100") if f"nvidia-{name}" in text} == {"h200", "h100"}
    assert len({address.partition("machine=")[2] for address in addresses}) == 2


def test_search_finds_each_kind_of_thing(browser: "Browser", recorded_site: Path) -> None:
    commit = data(recorded_site, "commits")["85"]["hash"]
    for asked, kind, first in (
        ("padded 4096 hot", "cell", "transpose/padded float32 4096x4096 hot"),
        ("rung conflict", "rung", ""),
        (commit[:12], "commit", commit[:8]),
        ("h200", "machine", data(recorded_site, "site")["machines"][0]["name"]),
        ("spill_bytes sm_90 tiled_16", "series", ""),
    ):
        with opened(browser, recorded_site, f"search?q={asked}") as page:
            links = page.locator(f"ul[data-kind={kind}] a")
            if asked == "rung conflict":
                assert page.get_by_text("0 things found.").count() == 1
                continue
            assert links.first.inner_text().startswith(first)
            links.first.click()
            page.locator("main[data-shown]:not([data-shown=search])").wait_for()
            assert page.locator("main .error").count() == 0


def test_the_ladders_open_where_something_was_measured(browser: "Browser", planted_site: Path) -> None:
    measured = {cell["op"] for cell in data(planted_site, "cells").values()}
    assert data(planted_site, "site")["ops"][0]["name"] not in measured
    with opened(browser, planted_site, "ladder") as page:
        assert page.locator("main h1").inner_text().split(",")[0] in measured
        assert page.locator("main svg").count() > 0


def test_an_unknown_page_is_told(browser: "Browser", planted_site: Path) -> None:
    with opened(browser, planted_site, "nothing") as page:
        assert page.locator(".error").inner_text() == "there is no page nothing"


def test_what_is_vendored_is_what_sources_says() -> None:
    vendor = SITE / "vendor"
    sources = tomllib.loads((vendor / "SOURCES.toml").read_text())["file"]
    assert {path.name for path in vendor.glob("*.js")} == {source["file"] for source in sources}
    for source in sources:
        assert sha256((vendor / source["file"]).read_bytes()).hexdigest() == source["sha256"]
        name = source["package"].rpartition("/")[2]
        assert "Permission to use, copy" in (vendor / "licenses" / f"{name}.txt").read_text()


def test_the_page_loads_files_that_are_there(recorded_site: Path) -> None:
    wanted = offline.resources((recorded_site / "index.html").read_text())
    assert len(wanted) > 15
    for url in wanted - {"data:,"}:
        assert (recorded_site / url).is_file(), url
