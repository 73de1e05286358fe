"""Foreign results and repositories in the pages: nothing in them runs, writes elsewhere or takes the site away."""

import html
import inspect
import itertools
import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from asv.commands.publish import Publish
from asv.plugins.git import Git

from kernelwatch.publish import cleaning, offline
from tests import test_site
from tests.repositories import LIMITED, ROOT, alone, end_group, wait_until
from tests.test_site import PLUGIN, benchmark, git, publish, served, wait_until_drawn, write_project

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

browser = test_site.browser  # the fixture

PUBLISHING = alone("publishing")
IMAGE = "<img src=x onerror=window.pwned=1>"
CLIMB = "../../../escaped"
SCRIPT = "<script>window.pwned=1</script>"
ATTRIBUTE = '"onmouseover="window.pwned=1"x="'

pytestmark = pytest.mark.xdist_group("untrusted")


def use(project: Path, *plugins: str) -> None:
    path = project / "asv.conf.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"plugins": list(plugins)}))


def change(path: Path, how: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(path.read_text())
    how(data)
    path.write_text(json.dumps(data))


def results_of(project: Path) -> list[Path]:
    return sorted(project.glob("results/*/*-existing.json"))


def every_benchmark(project: Path, how: Callable[[dict[str, Any]], object]) -> None:
    def all_of(found: dict[str, Any]) -> None:
        for one in [value for key, value in found.items() if key != "version"]:
            how(one)

    change(project / "results" / "benchmarks.json", all_of)


def every_result(project: Path, how: Callable[[dict[str, Any]], object]) -> None:
    for path in results_of(project):
        change(path, how)


def named(project: Path, name: str) -> None:
    """Another suite.step, of this name."""
    path = project / "results" / "benchmarks.json"
    change(path, lambda found: found.update({name: found["suite.step"] | {"name": name}}))
    every_result(project, lambda found: found["results"].update({name: found["results"]["suite.step"]}))


def another_machine(project: Path, **more: str) -> None:
    """A second machine, with what the first does not have: the pages have a panel for each that differs."""
    path, name = results_of(project)[0], f"other-{len(more)}-{len(str(more))}"
    other, own = project / "results" / name, {"machine": name, **more}
    other.mkdir()
    (other / "machine.json").write_text(json.dumps(own | {"version": 1}))
    (other / path.name).write_text(json.dumps(json.loads(path.read_text()) | {"params": own}))


# Where stock asv lets it run: each plants an image, which it is given as text.
PLANTS: dict[str, Callable[[Path, str], object]] = {
    "the code of a benchmark": lambda project, image: every_benchmark(project, lambda one: one.update(code=image)),
    "the name for people": lambda project, image: every_benchmark(project, lambda one: one.update(pretty_name=image)),
    "the name of a benchmark": lambda project, image: named(project, f"suite.{image}"),
    "the name of a suite": lambda project, image: named(project, f"suite{image}.step"),
    "the unit": lambda project, image: every_benchmark(project, lambda one: one.update(unit=image)),
    "the name of a parameter": lambda project, image: every_benchmark(
        project, lambda one: one.update(param_names=[image] * len(one["params"]))
    ),
    "a machine's value": lambda project, image: another_machine(project, gpu=image),
    "the name of a machine's value": lambda project, image: another_machine(project, **{f"k{image}": "x"}),
    "a tag": lambda project, image: git(project, "tag", re.sub(r" (\w+)=([\w.=]+)", r"/\1='\2'", image)),  # no spaces
}


def plant_all(project: Path) -> dict[str, str]:
    """Plant everything; the name of what each sets in the page's window if it runs."""
    names = {plant: f"pwned{at}" for at, plant in enumerate(PLANTS)}
    for plant, put in PLANTS.items():
        put(project, IMAGE.replace("pwned", names[plant]))
    return names


def others(project: Path) -> None:
    """And where it does not, or asv fails."""
    who = ("-c", f"user.name={IMAGE}")
    git(project, *who, "commit", "-q", "--allow-empty", "-m", f"{IMAGE}{SCRIPT}", day=9)
    names = (
        IMAGE,
        f"suite.{ATTRIBUTE}",
        f"suite.{CLIMB}",
        "constructor.x",
        "__proto__.x",
        "..",
        "suite.x\nx",
        "x" * 999,
    )
    change(
        project / "results" / "benchmarks.json", lambda found: found.update({name: benchmark(name) for name in names})
    )

    def result(found: dict[str, Any]) -> None:
        found["params"] |= {"cpu": CLIMB, "os": "..", "ram": "x" * 999}
        found["env_vars"] = {f"x{IMAGE}": CLIMB}
        found["env_name"] = found["python"] = f"{IMAGE}{CLIMB}"
        found["results"] |= {name: [[1.0], [], "1"] for name in names}

    every_result(project, result)


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file() or path.is_symlink()}


@pytest.fixture(scope="module", params=["ours", "the data alone", "the policy alone"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages of a hostile project: as they are, and with each of the two lines of defense alone."""
    top = tmp_path_factory.mktemp("deep")
    project = top / "er" / "and" / "deeper"
    project.mkdir(parents=True)
    write_project(project)
    plant_all(project)
    pages = project / "html"
    if request.param == "the policy alone":
        use(project, PLUGIN)
        assert publish(project).returncode == 0
        offline.restrict(pages)
        return pages
    others(project)
    pages = project / "html" / "asv"
    use(project, PUBLISHING)
    before = files(top)
    done = publish(project)
    assert done.returncode == 0, done.stdout + done.stderr
    written = {path for path in files(top).difference(before) if not {"__pycache__", ".asv"} & set(path.parts)}
    assert {path for path in written if project / "html" not in path.parents} == set()
    assert "is not shown: its name should be that of a Python function" in done.stdout
    if request.param == "the data alone":
        for path in pages.glob("*.html"):
            text, count = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", path.read_text())
            assert count == 1
            path.write_text(text)
    return pages


LOOK = """() => $('a, .benchmark-text, .benchmark-plot, li, .btn').each(function () {
    $(this).trigger('mouseenter').trigger('mouseover').trigger('mouseleave');
})"""
POINT = """() => {
    const plot = $('#main-graph').data('plot'), series = plot && plot.getData()[0];
    const point = series && series.data.find(point => point[1] !== null);
    if (!point) return null;
    const at = plot.pointOffset({x: point[0], y: point[1]}), box = plot.getPlaceholder().offset();
    return [box.left + at.left, box.top + at.top];
}"""


PWNED = "() => Object.keys(window).filter(name => name.startsWith('pwned'))"


def look_at(page: "Page", location: str) -> None:
    import playwright.sync_api as playwright

    page.evaluate("where => { location.hash = where }", location)
    shown = {"/": "() => $('.benchmark-text').length", "/summarylist": "() => $('#summarylist-body tr').length"}
    with suppress(playwright.TimeoutError):  # a benchmark whose page is broken by its name
        page.wait_for_function(shown.get(location, POINT), timeout=5_000)
    page.evaluate(LOOK)
    if at := page.evaluate(POINT):
        page.mouse.move(*at)
    page.wait_for_timeout(300)


LOOKS_MOST = 6  # a busy machine may not have drawn a page when the mouse moves over it


def pwned(browser: "Browser", address: str, wanted: int = 0) -> set[str]:
    """What of the hostile ran, after a look at all pages with the mouse over all that may have a tip; and after more
    looks, until as many ran as are wanted."""
    import playwright.sync_api as playwright

    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    asked: list[str] = []
    try:
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{address}index.html", wait_until="domcontentloaded")
        page.wait_for_function("() => window.$ && $.asv && $.asv.main_json && $.asv.main_json.benchmarks")
        names = page.evaluate("Object.keys($.asv.main_json.benchmarks).filter(name => name.includes('.'))")
        for _ in range(LOOKS_MOST if wanted else 1):
            for location in ("/", "/summarylist", *names):
                look_at(page, location)
            with suppress(playwright.TimeoutError):
                page.wait_for_function(f"wanted => ({PWNED})().length >= wanted", arg=max(wanted, 1), timeout=3_000)
            if len(ran := set(page.evaluate(PWNED))) >= wanted:
                break
        assert ran or [url for url in asked if not url.startswith(address)] == []
        return ran
    finally:
        context.close()


def test_nothing_of_it_runs(browser: "Browser", site: Path) -> None:
    with served(site) as address:
        assert not pwned(browser, address)
    assert not pwned(browser, f"{site.as_uri()}/")


@pytest.fixture(scope="module")
def ran_in_asvs_own(browser: "Browser", tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Which plants run in the pages of asv itself."""
    project = tmp_path_factory.mktemp("stock")
    write_project(project)
    names = plant_all(project)
    done = publish(project)
    assert done.returncode == 0, done.stdout + done.stderr
    with served(project / "html") as address:
        ran = pwned(browser, address, len(names))
    return {plant for plant, name in names.items() if name in ran}


@pytest.mark.parametrize("plant", PLANTS)
def test_in_the_pages_of_asv_itself_it_runs(ran_in_asvs_own: set[str], plant: str) -> None:
    """Where this fails, asv has mended it."""
    assert plant in ran_in_asvs_own


def heard(page: "Page") -> list[str]:
    """What a page will have said on its console."""
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    return said


def test_a_clean_site_loses_nothing(browser: "Browser", tmp_path: Path) -> None:
    """Neither data nor a page: no word of the browser's about what it was forbidden."""
    write_project(tmp_path)
    assert publish(tmp_path).returncode == 0
    stock = {path.name: path.read_text() for path in (tmp_path / "html").rglob("*.json") if path.name != "info.json"}
    assert cleaning.copy(tmp_path / "results", tmp_path / "cleaned") == []
    change(tmp_path / "asv.conf.json", lambda found: found.update(results_dir="cleaned"))
    assert publish(tmp_path).returncode == 0
    offline.restrict(tmp_path / "html")
    ours = {path.name: path.read_text() for path in (tmp_path / "html").rglob("*.json") if path.name != "info.json"}
    for of in (stock, ours):
        for one in (index := json.loads(of.pop("index.json")))["benchmarks"].values():
            one["code"] = html.unescape(one["code"])
        of["index"] = json.dumps(index, sort_keys=True)
    assert ours == stock
    with served(tmp_path / "html") as address:
        for where in (address, f"{(tmp_path / 'html').as_uri()}/"):
            page = browser.new_page()
            page.set_default_timeout(60_000)
            said = heard(page)
            page.goto(f"{where}index.html")
            wait_until_drawn(page, "[id='summarygrid-suite.step']")
            page.evaluate("location.hash = '#/summarylist'")
            page.locator("#summarylist-body tr", has_text="suite.sizes").first.wait_for()
            page.evaluate("location.hash = '#suite.step'")
            wait_until_drawn(page, "#main-graph")
            page.evaluate("location.hash = '#/regressions'")
            page.locator("#regressions-body", has_text="suite.step").wait_for()
            assert said == []
            page.close()


# --- values and files ------------------------------------------------------------------------------------------------


BAD = {
    "infinite": math.inf,
    "minus infinite": -math.inf,
    "text": IMAGE,
    "a list": [1],
    "an object": {},
    "huge": 10**400,
}


@dataclass(frozen=True)
class Shown:
    """A published project: where it is, and what publishing said, on one line."""

    project: Path
    said: str

    def graph(self, folder: str, name: str) -> list[list[float | None]]:
        """The points of a series, whose graph lies somewhere below a folder of this name."""
        (path,) = (self.project / "html" / "asv" / "graphs").rglob(f"{folder}/**/{name}.json")
        return list(json.loads(path.read_text()))


def shown(project: Path) -> Shown:
    use(project, PUBLISHING)
    done = publish(project)
    assert done.returncode == 0, done.stdout + done.stderr
    return Shown(project, done.stdout.replace("\n", ""))


@pytest.fixture(scope="module")
def with_values(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """For each bad value a series with it at the third commit."""
    project = tmp_path_factory.mktemp("values")
    write_project(project)
    for at, value in enumerate(BAD.values()):
        named(project, f"suite.step{at}")
        bad = {f"suite.step{at}": [[value], [], "1"]}
        change(results_of(project)[2], lambda found, bad=bad: found["results"].update(bad))  # type: ignore[misc]
    return shown(project)


@pytest.mark.parametrize("value", BAD)
def test_a_value_that_is_no_number_is_refused_and_the_site_kept(with_values: Shown, value: str) -> None:
    name = f"suite.step{list(BAD).index(value)}"
    refused = (
        rf"{re.escape(str(results_of(with_values.project)[2]))}: {name}: [^:]* is not a finite number; shown as n/a"
    )
    assert re.search(refused, with_values.said)
    values = [point[1] for point in with_values.graph("branch-main", name)]
    assert values.count(None) + (5 - len(values)) == 1


FILES: dict[str, Callable[[str], str]] = {
    "cut short": lambda text: text[: len(text) // 2],
    "a list": lambda text: "[]",
    "a number": lambda text: "1",
    "nothing": lambda text: "",
    "no text": lambda text: "\udcff",
    "too deep": lambda text: "[" * 100_000,
    "no results": lambda text: '{"version": 2}',
    "results of another kind": lambda text: text.replace('"results": {', '"results": [], "x": {'),
    "no hash": lambda text: re.sub('"commit_hash": "[^"]*"', '"commit_hash": "../../x"', text),
    "a machine's other name": lambda text: re.sub('"machine": ("host.*?")', r'"machine": [\1]', text),
    "columns of another kind": lambda text: text.replace('"result_columns": [', '"result_columns": [1, '),
    "too many parameters": lambda text: text.replace("[[1.0], [], ", f"[[1.0], {json.dumps([['x'] * 9] * 9)}, ", 1),
}


@pytest.fixture(scope="module")
def with_files(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """For each kind of file that cannot be shown a machine whose third result is one."""
    project = tmp_path_factory.mktemp("files")
    write_project(project)
    host = project / "results" / "host"
    for at, spoil in enumerate(FILES.values()):
        machine = Path(shutil.copytree(host, host.with_name(f"host{at}")))
        for path in machine.iterdir():
            path.write_text(path.read_text().replace('"machine": "host"', f'"machine": "host{at}"'))
        path = sorted(machine.glob("*-existing.json"))[2]
        path.write_bytes(spoil(path.read_text()).encode("utf-8", "surrogateescape"))
    shutil.rmtree(host)
    return shown(project)


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_cannot_be_shown_is_named_and_the_others_are_shown(with_files: Shown, kind: str) -> None:
    machine = f"host{list(FILES).index(kind)}"
    path = sorted((with_files.project / "results" / machine).glob("*-existing.json"))[2]
    assert f"{path}: " in with_files.said
    assert "is not shown: " in with_files.said.partition(f"{path}: ")[2].partition("/results/")[0]
    assert len(with_files.graph(f"machine-{machine}", "suite.sizes")) in (4, 5)


def a_socket(path: Path) -> None:
    """A name that is longer than a socket's may be is given from its folder."""
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(f"/proc/self/fd/{(folder := os.open(path.parent, os.O_RDONLY))}/{path.name}")
        os.close(folder)


def no_one_reads(path: Path) -> None:
    path.touch()
    path.chmod(0)


# What lies in the place of a file, and is none that can be read: a read of some would wait for ever, or never end.
NO_FILES: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a socket": a_socket,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a file that no one may read": no_one_reads,
}
PLACES = ("the result", "the sidecar", "the verdicts", "the machine", "the benchmarks", "the noise")
NOWHERE = list(itertools.product(NO_FILES, PLACES))  # by the number of their machine
# Root may read everything; without these capabilities it may not.
BOUND = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []


@pytest.fixture(scope="module")
def with_no_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A project with a machine for each thing that is no file and each place at which it lies; and what publishing
    said."""
    if BOUND and not shutil.which(BOUND[0]):
        pytest.skip("root may read everything, and there is no setpriv")
    project = tmp_path_factory.mktemp("none")
    write_project(project)
    host = project / "results" / "host"
    for at, (kind, _) in enumerate(NOWHERE):
        machine = Path(shutil.copytree(host, host.with_name(f"host{at}")))
        for path in machine.iterdir():
            path.write_text(path.read_text().replace('"machine": "host"', f'"machine": "host{at}"'))
        path = in_place(project, at)
        path.unlink(missing_ok=True)
        NO_FILES[kind](path)
    shutil.rmtree(host)
    closed = project / "results" / "closed"
    closed.mkdir(mode=0)
    use(project, PUBLISHING)
    command = [*BOUND, sys.executable, "-m", "asv", "publish", "--no-pull"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return project, done.stdout.replace("\n", "")


def in_place(project: Path, at: int) -> Path:
    """The path that is no file on the machine of a place."""
    folder = project / "results" / f"host{at}"
    result = sorted(each for each in folder.glob("*-existing.json") if ".facts" not in each.name)
    names = {
        "the sidecar": result[-1].with_suffix(".facts.jsonl").name,
        "the verdicts": "01234567.confirmed.jsonl",
        "the machine": "machine.json",
        "the benchmarks": "benchmarks.json",  # of a machine, which has none
        "the noise": "noise.jsonl",
    }
    return folder / names.get(NOWHERE[at][1], "01234567-existing.json")


@pytest.mark.parametrize(("kind", "place"), NOWHERE)
def test_what_is_no_file_is_named_and_the_others_are_shown(
    with_no_files: tuple[Path, str], kind: str, place: str
) -> None:
    project, said = with_no_files
    at = NOWHERE.index((kind, place))
    path = in_place(project, at)
    if place == "the sidecar":  # is named by its result
        path = path.with_name(path.name.replace(".facts.jsonl", ".json"))
    assert f"{path}: it" in said
    assert "is not shown: " in said.partition(f"{path}: ")[2].partition("/results/")[0]
    assert f"{project / 'results' / 'closed'}: it is not shown: " in said
    graphs = (project / "html" / "asv" / "graphs").rglob(f"machine-host{at}/**/suite.sizes.json")
    assert [len(json.loads(graph.read_text())) for graph in graphs] == ([] if place == "the machine" else [5])


HANGS_S = 3  # a publication of this size takes two seconds, most of them until it removes the old pages


@pytest.mark.parametrize("value", ["infinite", "text"])
def test_asv_itself_loses_the_site_to_such_a_value(tmp_path: Path, value: str) -> None:
    """Where this fails, asv has mended it: it hangs, or crashes when the pages are gone."""
    write_project(tmp_path)
    assert publish(tmp_path).returncode == 0
    for path in results_of(tmp_path):
        change(path, lambda found: found["results"]["suite.step"].__setitem__(0, [BAD[value]]))
    command = [sys.executable, "-c", LIMITED, "-m", "asv", "publish", "--no-pull"]
    stock = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    pages = tmp_path / "html" / "index.json"
    try:
        assert wait_until(lambda: not pages.exists() or stock.poll() is not None)
        assert stock.wait(HANGS_S) != 0
    except subprocess.TimeoutExpired:
        pass
    finally:  # with the processes that it has started, which would go on, and take more memory all the time
        end_group(stock)
    assert not pages.exists()


BROKEN_PLUGIN = """
from asv.publishing import OutputPublisher

class Broken(OutputPublisher):
    @classmethod
    def publish(cls, *given):
        raise ValueError("out of luck")
"""


def test_publishing_that_fails_leaves_the_pages_that_are_there(tmp_path: Path) -> None:
    write_project(tmp_path)
    use(tmp_path, PUBLISHING)
    assert publish(tmp_path).returncode == 0
    before = {path: path.read_bytes() for path in files(tmp_path / "html")}
    (tmp_path / "broken.py").write_text(BROKEN_PLUGIN)
    use(tmp_path, ".broken", PUBLISHING)
    done = publish(tmp_path)
    assert done.returncode != 0
    assert "out of luck" in done.stdout + done.stderr
    assert {path: path.read_bytes() for path in files(tmp_path / "html")} == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".html")] == []


def test_verdicts_are_there_while_publishing(tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "a.confirmed.jsonl").write_text("a line\n")
    assert cleaning.copy(tmp_path / "host", tmp_path / "copy") == []
    assert (tmp_path / "copy" / "a.confirmed.jsonl").read_text() == "a line\n"


def test_what_this_project_recorded_is_shown_whole() -> None:
    said: list[str] = []
    for path in (ROOT / "results").rglob("*.json"):
        assert cleaning.problem(path) == ""
        if "-checkout-" in path.name:
            data = json.loads(path.read_text())
            clean = cleaning.result(data, said)
            at = data["result_columns"].index("result")
            for name, values in data["results"].items():
                assert json.dumps(clean["results"][name][at]) == json.dumps(values[at])
            assert clean["params"] == data["params"]
    assert said == []


def test_a_tag_may_have_the_name_of_a_file_or_be_one(tmp_path: Path) -> None:
    write_project(tmp_path)
    use(tmp_path, PUBLISHING)
    head = git(tmp_path, "rev-parse", "HEAD")
    blob = git(tmp_path, "hash-object", "-w", "asv.conf.json")
    for name, what in (("results", "HEAD"), ("a-tree", "HEAD^{tree}"), ("a-file", blob)):
        git(tmp_path, "tag", name, what)
    done = publish(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "html" / "asv" / "index.json").read_text())
    assert {name: told["revision_to_hash"][str(at)] for name, at in told["tags"].items()} == {"results": head}


def test_asv_has_the_names_that_are_patched() -> None:
    assert list(inspect.signature(Publish.run).parameters) == ["conf", "range_spec", "pull"]
    assert list(inspect.signature(Git.get_tags).parameters) == ["self"]
    assert "html_dir" in inspect.getsource(Publish.run)
    assert "results_dir" in inspect.getsource(Publish.iter_results)
