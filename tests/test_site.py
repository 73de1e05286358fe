"""The pages that asv publishes, in a real browser without a network, over http and from file://."""

import base64
import functools
import hashlib
import http.server
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import asv
import pytest
from asv.util import UserError

from kernelwatch.publish import offline
from kernelwatch.publish.writer import as_script
from tests.chromium import browser
from tests.repositories import PRELOADED, alone, link_engine

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request

__all__ = ["browser"]  # a fixture

pytestmark = pytest.mark.xdist_group("site")  # one site and one browser for all of these

PLUGIN = alone("offline")
ASV_INDEX = Path(asv.__file__).parent / "www" / "index.html"

# Commits, results and the source of benchmarks are text that others write: here it stands in a commit, a
# parameter and a benchmark's source. asv itself puts some of it into the page unescaped, such as tooltips and
# names of benchmarks; these tests leave that alone, and are about what the plugin adds, data as scripts.
HOSTILE = "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1><!--<script>\u2028\\\"'"

STEP = [1.0, 1.0, 1.0, 2.0, 2.0]  # seconds, one for each commit
SIZES = ["16", "256", repr(HOSTILE)]


# A project of two benchmarks and five commits


def git(project: Path, *args: str, day: int = 1) -> str:
    date = f"2024-01-{day:02}T12:00:00Z"
    environment = dict(os.environ)
    for who in ("AUTHOR", "COMMITTER"):
        environment |= {f"GIT_{who}_NAME": "someone", f"GIT_{who}_EMAIL": "a@b.org", f"GIT_{who}_DATE": date}
    command = ["git", *args]
    return subprocess.check_output(command, cwd=project, env=environment, text=True).strip()


def benchmark(name: str, **parameters: list[Any]) -> dict[str, Any]:
    return {
        "name": name,
        "code": f"def {name}():  # {HOSTILE}",
        "type": "time",
        "unit": "seconds",
        "version": "1",
        "timeout": 60,
        "params": list(parameters.values()),
        "param_names": list(parameters),
    }


def write_project(project: Path, *plugins: str) -> None:
    """Make an asv project with hand-made results, in asv's formats; it loads the part of the plugin that makes pages
    work offline, and no other."""
    link_engine(project)
    configuration = {
        "version": 1,
        "project": "small",
        "project_url": "#",
        "repo": ".",
        "branches": ["main"],
        "environment_type": "existing",
        "show_commit_url": "#",
        "html_dir": "html",
        "plugins": [*plugins, PLUGIN],
    }
    (project / "asv.conf.json").write_text(json.dumps(configuration))
    machine = project / "results" / "host"
    machine.mkdir(parents=True)
    (machine / "machine.json").write_text(json.dumps({"machine": "host", "version": 1}))
    benchmarks = {"suite.step": benchmark("suite.step"), "suite.sizes": benchmark("suite.sizes", n=SIZES)}
    (project / "results" / "benchmarks.json").write_text(json.dumps(benchmarks | {"version": 2}))

    git(project, "init", "--quiet", "--initial-branch=main")
    for day, seconds in enumerate(STEP, start=1):
        git(project, "commit", "--quiet", "--allow-empty", "-m", f"day {day} {HOSTILE}", day=day)
        commit = git(project, "rev-parse", "HEAD")
        result = {
            "version": 2,
            "commit_hash": commit,
            "env_name": "existing",
            "date": 1704067200000 + day * 86400000,
            "params": {"machine": "host"},
            "python": "3",
            "requirements": {},
            "env_vars": {},
            "result_columns": ["result", "params", "version"],
            "results": {
                "suite.step": [[seconds], [], "1"],
                "suite.sizes": [[1e-3, 5e-3, 3e-3], [SIZES], "1"],
            },
            "durations": {},
        }
        (machine / f"{commit[:8]}-existing.json").write_text(json.dumps(result))


def publish(project: Path) -> subprocess.CompletedProcess[str]:
    return PRELOADED.run(["-m", "asv", "publish", "--no-pull"], project, os.environ)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published pages, only to be read."""
    project = tmp_path_factory.mktemp("project")
    write_project(project)
    run = publish(project)
    assert run.returncode == 0, run.stdout + run.stderr
    return project / "html"


# What is vendored


@pytest.mark.parametrize("source", offline.vendored(), ids=lambda source: source["file"])
def test_a_vendored_file_is_what_sources_says(source: dict[str, str]) -> None:
    content = (offline.VENDOR / source["file"]).read_bytes()
    assert hashlib.sha256(content).hexdigest() == source["sha256"]
    license = offline.VENDOR / "licenses" / f"{source['package']}.txt"
    assert "Permission is hereby granted" in license.read_text(encoding="utf-8")
    algorithm, digest = source["integrity"].split("-", 1)
    same = base64.b64encode(hashlib.new(algorithm, content).digest()).decode() == digest
    assert same == ("differs" not in source)


def test_sources_lists_what_the_installed_asv_loads() -> None:
    asked = re.findall(r'"(https://[^"]+)" integrity="([^"]+)"', ASV_INDEX.read_text(encoding="utf-8"))
    assert len(asked) == 10
    assert [(source["url"], source["integrity"]) for source in offline.vendored()] == asked
    listed = {source["file"] for source in offline.vendored()}
    assert {path.name for path in offline.VENDOR.iterdir()} == listed | {"SOURCES.toml", "licenses"}


# What is published


def test_pages_and_styles_load_only_published_files(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert {page.name for page in pages} == {"index.html", "error.html"}
    for page in pages:
        html = page.read_text(encoding="utf-8")
        assert not re.findall(r"<(?:script|link|img|iframe)\b[^>]*//[^>]*>", html)
        for url in offline.resources(html):
            assert (site / url).is_file(), f"{page.name} loads {url}, which is not published"
    for style in site.rglob("*.css"):
        assert not re.findall(r"(?:@import|url\()\s*[\"']?(?:\w+:)?//", style.read_text(encoding="utf-8"))


def test_no_page_uses_the_glyph_font_that_is_left_out(site: Path) -> None:
    for path in [*site.glob("*.html"), *site.glob("*.js"), *site.glob("*.css")]:
        assert "glyphicon" not in path.read_text(encoding="utf-8"), path


def test_every_data_file_has_its_script(site: Path) -> None:
    data = list(site.rglob("*.json"))
    expected = {"index.json", "info.json", "regressions.json", "summary.json", "suite.step.json"}
    assert expected <= {path.name for path in data}
    for path in data:
        script = path.with_name(path.name + ".js").read_text(encoding="ascii")
        assert script == as_script(path.read_text(encoding="utf-8"))


def test_a_second_pass_changes_nothing(site: Path, tmp_path: Path) -> None:
    def contents(folder: Path) -> dict[Path, bytes]:
        files = filter(Path.is_file, folder.rglob("*"))
        return {path.relative_to(folder): path.read_bytes() for path in files}

    copy = shutil.copytree(site, tmp_path / "html")
    offline.make_offline(copy)
    assert contents(copy) == contents(site)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "jquery-3.3.1",
            "jquery-4.0.0",
            "index.html loads https://code.jquery.com/jquery-4.0.0.min.js, which",
        ),
        ("</head>", "<link rel=stylesheet href=//cdn/x.css></head>", "index.html loads //cdn/x.css, which"),
        ("https://cdnjs.cloudflare.com/ajax/libs/blueimp-md5", "own", "does not load vendor/md5.min.js;"),
        ("</head>", "", "does not load offline.js;"),
    ],
)
def test_pages_of_another_asv_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    html = ASV_INDEX.read_text(encoding="utf-8")
    assert old in html
    (tmp_path / "index.html").write_text(html.replace(old, new), encoding="utf-8")
    with pytest.raises(UserError, match=re.escape(message)):
        offline.make_offline(tmp_path)


ONLINE_PLUGIN = """
from pathlib import Path
from asv.publishing import OutputPublisher

class Online(OutputPublisher):
    @classmethod
    def publish(cls, conf, repo, benchmarks, graphs, revisions):
        Path(conf.html_dir, "more.html").write_text('<script src="https://example.org/x.js"></script>')
"""


def test_publish_fails_where_a_page_needs_the_network(tmp_path: Path) -> None:
    (tmp_path / "online.py").write_text(ONLINE_PLUGIN)
    write_project(tmp_path, ".online")
    run = publish(tmp_path)
    assert run.returncode == 1
    assert "more.html loads https://example.org/x.js, which" in run.stdout + run.stderr


# What a browser shows

# Pixels of a plot in the color of one of its series, smoothed edges included; the axes and the grid, which
# an empty plot has as well, are gray.
DRAWN = """selector => {
    const plot = $(selector).data("plot");
    if (!plot) return 0;
    const canvas = plot.getCanvas();
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    const colors = plot.getData().map(series => $.color.parse(series.color));
    const near = (i, value) => Math.abs(pixels[i] - value) < 10;
    let count = 0;
    for (let i = 0; i < pixels.length; i += 4) {
        const opaque = pixels[i + 3] > 31;
        if (opaque && colors.some(c => near(i, c.r) && near(i + 1, c.g) && near(i + 2, c.b))) count++;
    }
    return count;
}"""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.fixture(params=["http", "file"])
def address(request: pytest.FixtureRequest, site: Path) -> Iterator[str]:
    """Where the site lies, ending with a slash."""
    if request.param == "file":
        yield f"{site.as_uri()}/"
    else:
        with served(site) as url:
            yield url


@dataclass
class Tab:
    """A page that visits use one after the other: a new one takes the browser three times as long as to load another
    document. `address`: what the present visit may reach; `problems` that it had."""

    page: "Page"
    address: str = ""
    problems: list[str] = field(default_factory=list)

    def on_request(self, request: "Request") -> None:
        if not request.url.startswith(self.address):
            self.problems.append(f"asked for {request.url}")

    def on_failure(self, request: "Request") -> None:
        if request.failure != "net::ERR_ABORTED":  # the page was left before it had all
            self.problems.append(f"did not get {request.url}: {request.failure}")

    def on_console(self, message: "ConsoleMessage") -> None:
        if message.type == "error":
            self.problems.append(f"{message.text} ({message.location['url']})")


TABS: list[Tab] = []  # those that no visit uses


def new_tab(browser: "Browser") -> Tab:
    page = browser.new_context().new_page()
    tab = Tab(page)
    page.on("request", tab.on_request)  # without a route, which would pass each file through this process
    page.set_default_timeout(60_000)
    page.on("console", tab.on_console)
    page.on("pageerror", lambda error: tab.problems.append(f"page error: {error}"))
    page.on("requestfailed", tab.on_failure)
    return tab


@contextmanager
def watched(tab: Tab, missing: str = "nothing") -> "Iterator[Page]":
    """A tab's page. When the context ends without an error, the page had none either but for the missing file, and it
    has asked for nothing that lies elsewhere."""
    tab.problems.clear()
    try:
        yield tab.page
        assert tab.page.evaluate("window.pwned") is None
        assert [problem for problem in tab.problems if missing not in problem] == []
    except BaseException:  # nothing of this visit must reach the next one
        tab.page.context.close()
        raise


def load(tab: Tab, address: str, location: str, size: tuple[int, int], scheme: Literal["light", "dark"]) -> None:
    tab.address = address
    tab.page.set_viewport_size({"width": size[0], "height": size[1]})
    tab.page.emulate_media(color_scheme=scheme)
    tab.page.goto(f"{address}index.html{location}")


@contextmanager
def visit(
    browser: "Browser",
    address: str,
    location: str = "",
    missing: str = "nothing",
    size: tuple[int, int] = (1200, 900),
    scheme: Literal["light", "dark"] = "light",
) -> "Iterator[Page]":
    """A page of the site at address, as `watched`. `scheme`: "light" or "dark"."""
    tab = TABS.pop() if TABS else new_tab(browser)
    with watched(tab, missing):
        load(tab, address, location, size, scheme)
        yield tab.page
    left(tab)


def left(tab: Tab) -> None:
    """Leave a tab to the visits to come."""
    tab.page.goto("about:blank")
    TABS.append(tab)


def wait_until_drawn(page: "Page", selector: str) -> None:
    # The smallest plot is wider than 100 pixels, and part of every series here is a horizontal line.
    page.wait_for_function(f"selector => ({DRAWN})(selector) > 100", arg=selector)


def names_in(page: "Page", table: str) -> list[str]:
    return page.locator(f"{table} tbody tr td:first-child").all_inner_texts()


def test_grid_draws_every_benchmark(browser: "Browser", address: str) -> None:
    with visit(browser, address) as page:
        page.get_by_role("heading", name="suite").wait_for()
        for name in ("step", "sizes"):
            page.locator(".benchmark-text").get_by_text(name, exact=True).wait_for()
            wait_until_drawn(page, f"[id='summarygrid-suite.{name}']")
        assert page.title().endswith("small")


def test_list_shows_and_sorts_every_value(browser: "Browser", address: str) -> None:
    with visit(browser, address, "#/summarylist") as page:
        step = page.locator("#summarylist-body tr", has_text="suite.step")
        step.wait_for()
        for text in ("2.000s", "+100.0% (+1.000s)", "2024-01-05"):
            assert text in step.inner_text()
        hostile = f"suite.sizes ({SIZES[2]})"
        page.get_by_role("columnheader", name="Value").click()
        page.locator("th.asc", has_text="Value").wait_for()
        ascending = ["suite.sizes (16)", hostile, "suite.sizes (256)", "suite.step"]
        assert names_in(page, "#summarylist-body") == ascending
        page.get_by_role("columnheader", name="Value").click()
        page.locator("th.desc", has_text="Value").wait_for()
        assert names_in(page, "#summarylist-body") == ascending[::-1]


def test_graph_draws_the_series(browser: "Browser", address: str) -> None:
    with visit(browser, address, "#suite.step") as page:
        wait_until_drawn(page, "#main-graph")
        wait_until_drawn(page, "#overview")
        points = page.evaluate("$('#main-graph').data('plot').getData()[0].data")
        assert points == [[revision, seconds] for revision, seconds in enumerate(STEP)]
        assert page.locator("#title").inner_text() == "suite.step"
        page.locator("#date-scale").click()
        page.locator("#main-graph", has_text="Jan").wait_for()
        wait_until_drawn(page, "#main-graph")


def test_graph_draws_over_a_parameter(browser: "Browser", address: str) -> None:
    with visit(browser, address, "#suite.sizes?x-axis=n") as page:
        page.locator("#main-graph", has_text="256").wait_for()
        wait_until_drawn(page, "#main-graph")
        seconds = page.evaluate("$('#main-graph').data('plot').getData()[0].data.map(point => point[1])")
        assert seconds == [1e-3, 5e-3, 3e-3]


def test_regressions_show_and_hide_the_step(browser: "Browser", address: str) -> None:
    with visit(browser, address, "#/regressions") as page:
        row = page.locator("#regressions-body tbody tr", has_text="suite.step")
        row.wait_for()
        cells = row.locator("td").all_inner_texts()
        assert cells[0] == "suite.step"
        assert cells[1].startswith("2024-01-05")
        assert cells[3:6] == ["2.00x", "1.000s", "2.000s"]
        row.get_by_text("Ignore").click()
        row.wait_for(state="hidden")


def test_navigation_stays_on_the_page(browser: "Browser", address: str) -> None:
    with visit(browser, address) as page:
        page.locator("#summarygrid-display .benchmark-text").first.wait_for()
        page.get_by_role("link", name="Benchmark list").click()
        page.get_by_role("link", name="suite.step").click()
        wait_until_drawn(page, "#main-graph")
        page.get_by_role("link", name="Regressions").click()
        page.locator("#regressions-body", has_text="suite.step").wait_for()
        page.evaluate("location.hash = '#suite.sizes'")
        page.locator("#title", has_text="suite.sizes").wait_for()
        wait_until_drawn(page, "#main-graph")
        page.get_by_role("link", name="Benchmark grid").click()
        page.locator("#summarygrid-display").wait_for()
        assert not page.locator("#main-graph").is_visible()
        assert not page.locator("#error").is_visible()


def test_only_pages_from_files_read_the_scripts(browser: "Browser", address: str) -> None:
    with visit(browser, address, "#suite.step") as page:
        wait_until_drawn(page, "#main-graph")  # a reload before would break off what the page still loads
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.reload()
        wait_until_drawn(page, "#main-graph")
    scripts = [".json.js" in url for url in asked if ".json" in url]
    assert scripts == [address.startswith("file:")] * 3  # info, index and the graph


def test_data_arrive_unchanged(browser: "Browser", site: Path, tmp_path: Path) -> None:
    """Data that would break out of a script, or mean something else in one, are the same from a file."""
    copy = shutil.copytree(site, tmp_path / "a #1 100% site")
    data = {HOSTILE: [HOSTILE, "\u2028\u2029\0", "\U0001f600", 1e-320, None], "__proto__": {"polluted": 1}}
    folder = copy / "graphs" / "cpu-a 'b' (c) 100% #1 & ü"
    folder.mkdir()
    (folder / "x.json").write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
    offline.make_offline(copy)
    fetch = """async folder => JSON.stringify(await $.ajax({
        url: "graphs/" + encodeURIComponent(folder) + "/x.json?timestamp=1", dataType: "json", cache: false
    }))"""
    with served(copy) as url:
        for address in (url, f"{copy.as_uri()}/"):
            with visit(browser, address) as page:
                assert json.loads(page.evaluate(fetch, folder.name)) == data


def test_what_a_page_asks_for_elsewhere_is_told_and_not_got(browser: "Browser", site: Path) -> None:
    def look(address: str) -> object:
        with visit(browser, f"{site.as_uri()}/") as page:
            return page.evaluate("address => fetch(address).then(() => 'got', () => 'failed')", address)

    with served(site) as other, pytest.raises(AssertionError, match=re.escape(f"asked for {other}info.json")):
        look(f"{other}info.json")
    with pytest.raises(AssertionError, match=r"asked for https://example\.org/"):
        look("https://example.org/")


def test_data_pasted_into_a_page_do_not_break_out(browser: "Browser", tmp_path: Path) -> None:
    script = as_script(json.dumps(HOSTILE, ensure_ascii=False))
    keep = "window.kept = JSON.parse(document.currentScript.json);"
    html = f"<!doctype html><meta charset=utf-8><body><script>{script}{keep}</script></body>"
    (tmp_path / "index.html").write_text(html, encoding="utf-8")
    with visit(browser, f"{tmp_path.as_uri()}/") as page:
        assert page.evaluate("window.kept") == HOSTILE


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("graphs/branch-main/machine-host/suite.step.json", "No data for this combination of filters."),
        ("info.json", "Error fetching content."),
    ],
)
def test_missing_data_are_reported_as_over_http(
    browser: "Browser", site: Path, tmp_path: Path, missing: str, message: str
) -> None:
    copy = shutil.copytree(site, tmp_path / "html")
    (copy / missing).unlink()
    (copy / f"{missing}.js").unlink()
    with served(copy) as url:
        for address in (url, f"{copy.as_uri()}/"):
            with visit(browser, address, "#suite.step", missing=missing) as page:
                said = page.locator("#error-message", has_text=message)
                said.wait_for()
                assert said.is_visible()
