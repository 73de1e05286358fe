#!/usr/bin/env python3
"""Prints what each page of a published site loads, and when its first mark is drawn, in Chromium without a network.

Bytes are those of all files that the page asks for, once, uncompressed. Milliseconds are from the beginning of the
navigation, the median of several; they depend on the machine.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlparse

from rich.table import Table

from kernelwatch.report.arguments import Output, Parser
from lab import picture

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Request

VIEWS = (
    "status",
    "ladder",
    "history",
    "regressions",
    "roofline",
    "devices",
    "devices?op=matmul",
    "commit",
    "event",
    "rung?op=transpose&rung=padded",
    "search?q=padded",
)
# When the first picture is in the page; the pages are put together outside of it.
WATCH = """new MutationObserver((_, watcher) => {
    if (!document.querySelector("main svg")) return;
    window.firstMark = performance.now();
    watcher.disconnect();
}).observe(document, {childList: true, subtree: true});"""


@dataclass(frozen=True)
class Loaded:
    """What a view cost. `drawn_ms`: until its first picture, None if it has none; `shown_ms`: until it is complete."""

    view: str
    bytes: int
    drawn_ms: float | None
    shown_ms: float


def load(browser: "Browser", site: Path, view: str, times: int = 3) -> Loaded:
    """Open a view of a site several times, each in a fresh context."""
    drawn_ms, shown_ms = [], []
    for _ in range(times):
        files: set[Path] = set()

        def asked(request: "Request", files: set[Path] = files) -> None:
            address = urlparse(request.url)
            if address.scheme == "file":
                files.add(Path(unquote(address.path)))

        context = browser.new_context(offline=True)
        page = context.new_page()
        page.on("request", asked)
        page.add_init_script(WATCH)
        page.goto(f"{(site / 'index.html').as_uri()}#/{view}")
        page.locator("main[data-shown]").wait_for()
        shown_ms.append(float(page.evaluate("performance.now()")))
        first = page.evaluate("window.firstMark ?? null")
        drawn_ms += [float(first)] if first is not None else []
        context.close()
    size = sum(path.stat().st_size for path in files)
    return Loaded(view, size, statistics.median(drawn_ms) if drawn_ms else None, statistics.median(shown_ms))


def main(arguments: list[str] | None = None) -> int:
    """Print a line for each view; the exit code. Raises: SystemExit without a Chromium, or if nothing is published."""
    parser = Parser("scripts/lab/loading", __doc__)
    parser.add_argument("site", nargs="?", type=Path, default=Path(".asv/html"), help="(default: %(default)s)")
    parser.add_argument("--times", type=int, default=3, help="how often each page is opened (default: %(default)s)")
    options = parser.parse_args(arguments)
    site = options.site.resolve()
    if not (site / "index.html").is_file():
        raise SystemExit(f"scripts/lab/loading: {site} has no index.html; publish first, as scripts/bench does")
    from playwright.sync_api import sync_playwright

    table = Table("view", "KiB", "first picture", "complete")
    for column in table.columns[1:]:
        column.justify = "right"
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=picture.browser(), args=["--no-sandbox", "--disable-gpu"])
        for view in VIEWS:
            found = load(browser, site, view, options.times)
            drawn = "" if found.drawn_ms is None else f"{found.drawn_ms:.0f} ms"
            table.add_row(view, f"{found.bytes / 1024:.0f}", drawn, f"{found.shown_ms:.0f} ms")
        browser.close()
    Output().print(table)
    return 0
