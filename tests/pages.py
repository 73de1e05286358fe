"""What the tests of the pages share: two published histories, a browser without a network, and views of the pages."""

import functools
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, urlencode

import pytest

from kernelwatch.history.links import SUFFIX
from kernelwatch.publish.offline import write_scripts
from lab import picture, planted
from tests.repositories import ROOT
from tests.test_site import TABS, Tab, browser, left, load, new_tab, served, watched

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

__all__ = [
    "WIDE",
    "browser",
    "data",
    "invented_site",
    "opened",
    "planted_site",
    "recorded_files",
    "recorded_site",
    "served",
    "two_gpus_site",
    "units_site",
]

pages_group = pytest.mark.xdist_group("pages")  # each history is published once
RECORDED = "nvidia-h200.intel-xeon-processor.x86-64.linux"  # the machine of the recorded history
LAST = "47de068d"  # its newest commit that the tests know
WIDE, NARROW = (1280, 900), (390, 844)
HOSTILE = "<img src=x onerror=window.pwned=1>"
PADDED = "transpose/padded float32 4096x4096 cold"
TILED = "transpose/tiled float32 4096x4096 cold"
EXPLAINED = 2  # events of the planted history whose kernels are looked at, the newest open regressions
CHANGED = "matmul/thread_tile_2d float32 1024x1024x1024 cold"  # of the planted history: slower, then faster


def _need(commit: str) -> None:
    known = subprocess.run(["git", "cat-file", "-e", commit], cwd=ROOT, capture_output=True, check=False)
    if known.returncode:
        pytest.skip(f"this clone has no commit {commit}: it is a shallow one")


def list_benchmarks(results: Path) -> None:
    """Write the list of benchmarks as it was when the commits of the tests were recorded: figures of another version of
    the harness would be none of its series."""
    listed = json.loads((ROOT / "results" / "benchmarks.json").read_text(encoding="utf-8"))
    then = {name: {**each, "version": "1"} if name != "version" else each for name, each in listed.items()}
    (results / "benchmarks.json").write_text(json.dumps(then), encoding="utf-8")


# pytest makes a fixture anew for each module that imports it, and publishing takes seconds.
@functools.cache
def recorded_files() -> tuple[Path, ...]:
    """The recorded history as far as LAST, so that a commit recorded later changes no expectation."""
    told = subprocess.run(["git", "rev-list", LAST], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    known = {line[:8] for line in told.splitlines()}
    files = sorted((ROOT / "results" / RECORDED).iterdir())
    of_commits = [path for path in files if "-checkout-" in path.name or path.name.endswith(SUFFIX)]
    return tuple(path for path in files if path not in of_commits or path.name[:8] in known)


@functools.cache
def _publish_recorded(base: Path) -> Path:
    folder = base / "recorded site"
    (folder / "results" / RECORDED).mkdir(parents=True)
    for path in recorded_files():
        shutil.copy(path, folder / "results" / RECORDED)
    list_benchmarks(folder / "results")
    return picture.publish_own(folder, folder / "results").parent


@functools.cache
def _publish_planted(base: Path) -> Path:
    folder = base / "planted site"
    planted.build(base / "planted repository")
    with pytest.MonkeyPatch.context() as patch:  # what another worker's publication looked at is not known here
        patch.setenv("KERNELWATCH_CACHE", str(base / "planted cache"))
        planted.publish(base / "planted repository", planted.DATA / "results", folder, explained=EXPLAINED)
    return folder


@pytest.fixture(scope="session")
def recorded_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This project's own history on an H200: results/."""
    _need(LAST)
    return _publish_recorded(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def planted_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The history with planted changes: data/planted, with the exact figures of its rungs."""
    _need(planted.history()[0])
    return _publish_planted(tmp_path_factory.getbasetemp())


@functools.cache
def _publish_two_gpus(base: Path) -> Path:
    folder, commit = base / "two GPUs", "47de068d-checkout-py3.12"
    for name, rewrite in ((RECORDED, str), (RECORDED.replace("h200", "h100"), on_h100)):
        machine = folder / "results" / name
        machine.mkdir(parents=True)
        for path in [
            ROOT / "results" / RECORDED / each for each in (f"{commit}.facts.jsonl", f"{commit}.json", "machine.json")
        ]:
            lines = path.read_text(encoding="utf-8").splitlines()
            text = "\n".join(rewrite(line) if path.suffix == ".jsonl" else line for line in lines)
            if rewrite is on_h100:
                text = text.replace(RECORDED, name).replace("NVIDIA H200", H100)
            (machine / path.name).write_text(text, encoding="utf-8")
    list_benchmarks(folder / "results")
    return picture.publish_own(folder, folder / "results").parent


@functools.cache
def _publish_units(base: Path) -> Path:
    folder, commit = base / "tensor cores", "46ae8df7-checkout-py3.12"
    machine = folder / "results" / RECORDED
    machine.mkdir(parents=True)
    for name in (f"{commit}.facts.jsonl", f"{commit}.json", "machine.json"):
        shutil.copy(ROOT / "results" / RECORDED / name, machine)
    list_benchmarks(folder / "results")
    return picture.publish_own(folder, folder / "results").parent


@pytest.fixture(scope="session")
def units_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded commit that has products of float32, of TF32, of two and three parts, of float16 and of float8."""
    _need("46ae8df7")
    return _publish_units(tmp_path_factory.getbasetemp())


H100 = "NVIDIA H100 80GB HBM3"


def slower(op: str) -> float:
    """Seconds of the invented H100 over those of the H200: what waits for memory is slower by more."""
    return 1.04 if op == "matmul" else 1.5


def on_h100(line: str) -> str:
    """A line of a sidecar as an H100 might have recorded it: less bandwidth, as much arithmetic, no complex128,
    beside other GPUs."""
    entry = json.loads(line)
    if not entry["group"].endswith((" gpu", " streamed")):
        return line
    op = entry["group"].split()[0]
    if entry["record"] == "run":
        facts = entry["facts"]
        facts["nvml_uuid_sha256"], facts["l2_bytes"] = "0123456789abcdef", 50 << 20
        facts["nvml_theoretical_bandwidth_bytes_per_s"] = 3352e9
        facts["neighbors"] = {"gpus": 3, "busy": 2}
        facts["ceilings"] = {
            name: value * (0.68 if "bytes" in name else 0.97) for name, value in facts["ceilings"].items()
        }
    elif "complex128" in entry["key"]:
        entry |= {"visits": [], "state": "na", "reason": "invented"}
    for measurement in entry.get("visits", ()):
        measurement["seconds"] *= slower(op) * (1 + len(entry["key"]) % 7 / 100)
        measurement["state"]["power_w"] *= 0.8
    return json.dumps(entry)


@pytest.fixture(scope="session")
def two_gpus_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One commit of the recorded history on its H200 and on an invented H100."""
    _need("47de068d")
    return _publish_two_gpus(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def invented_site(recorded_site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recorded site with what it lacks: a second machine that is slower, changed conditions, a failed cell, one
    that met a limit, a changed exact figure, and names that are markup."""
    site = tmp_path_factory.mktemp("invented site") / "html"
    shutil.copytree(recorded_site, site, ignore=shutil.ignore_patterns("asv"))
    own = folder(recorded_site)

    def read(name: str) -> Any:
        return json.loads((site / "data" / f"{name}.json").read_text(encoding="utf-8"))

    def write(name: str, content: Any) -> None:
        (site / "data" / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")

    shutil.copytree(site / "data" / own, site / "data" / "second")
    newest = read(f"second/at/{details(recorded_site)['commits'][-1]}")
    for key, cell in newest["cells"].items():
        if "s" in cell:
            for name in ("s", "low", "high"):
                cell[name] *= 1.3 if key.startswith("matmul") else 1.9
    for facts in newest["facts"].values():
        if "ceilings" in facts:
            facts["ceilings"] = {name: value / 1.5 for name, value in facts["ceilings"].items()}
    write(f"second/at/{details(recorded_site)['commits'][-1]}", newest)
    second = read("second/machine")
    slower = {gpu: [each | {"rate": each["rate"] / 1.5} for each in own] for gpu, own in second["roofs"].items()}
    write("second/machine", second | {"name": HOSTILE, "noise": {}, "roofs": slower})

    sites = read("site")
    sites["machines"].append(sites["machines"][0] | {"name": HOSTILE, "folder": "second", "gpu": HOSTILE})
    write("site", sites)
    commits = read("commits")
    machine = read(f"{own}/machine")
    at = machine["commits"]
    commits[str(at[6])]["subject"] = HOSTILE
    write("commits", commits)
    first = machine["turns"]["transpose gpu"][0][1]
    machine["turns"]["transpose gpu"].append([at[8], first | {"nvml_driver": "590.1", "harness": "2"}])
    (name,) = machine["history"]["transpose/padded"]
    padded = read(f"{own}/{name}")
    columns = padded["cells"][PADDED]
    for column in ("s", "low", "high"):
        columns[column][9] = None
    columns["failed"], columns["limits"] = {"9": f"wrong {HOSTILE}"}, {"11": ["software power cap"]}
    write(f"{own}/{name}", padded)
    exact = read(f"{own}/{machine['exact']['transpose']}")
    wavefronts = exact["series"]["access.Transpose.track_shared_load_wavefronts"]["padded"]
    wavefronts["float32 256x256"] = [[at[0], None], [at[2], 1.0], [at[6], 32.0]]
    write(f"{own}/{machine['exact']['transpose']}", exact)
    write(f"{own}/machine", machine)
    write_scripts(site / "data")
    return site


@functools.cache
def data(site: Path, name: str) -> Any:
    """A data file of a site."""
    return json.loads((site / "data" / f"{name}.json").read_text(encoding="utf-8"))


OPEN: list[Tab] = []  # tabs in which a site is open, the latest last
OPEN_MOST = 4  # as many sites as most tests are about
# Follow a link within the page; false if it leads where the page already is.
GO = """async (location_hash) => {
    const before = location.href;
    location.hash = location_hash;
    if (location.href === before) return false;
    await new Promise((changed) => addEventListener("hashchange", changed, {once: true}));
    return true;
}"""


@contextmanager
def opened(
    browser: "Browser",
    site: Path,
    view: str,
    size: tuple[int, int] = WIDE,
    scheme: Literal["light", "dark"] = "light",
    *,
    fresh: bool = False,
) -> Iterator["Page"]:
    """A view ("ladder?op=transpose") of a site, from a file and without a network, when all of it is drawn. At the end
    the page must have had no error, and asked for nothing that lies elsewhere.

    A site that is open in this size is not loaded again, which takes four times as long as to draw a view, unless it is
    to be `fresh`.
    """
    address = f"{site.as_uri()}/"
    tab = next((tab for tab in OPEN if tab.address == address), None)
    if tab is not None:
        OPEN.remove(tab)
    is_open = tab is not None and not fresh and tab.page.viewport_size == {"width": size[0], "height": size[1]}
    tab = tab or (TABS.pop() if TABS else new_tab(browser))
    with watched(tab) as page:
        if is_open:
            page.emulate_media(color_scheme=scheme)
            page.mouse.move(0, 0)
            is_open = page.evaluate(GO, f"#/{view}")
        if not is_open:
            page.goto("about:blank")
            load(tab, address, f"#/{view}", size, scheme)
        shown(page, view.partition("?")[0])
        yield page
    OPEN.append(tab)
    if len(OPEN) > OPEN_MOST:
        left(OPEN.pop(0))


def shown(page: "Page", view: str) -> None:
    """Wait until a view is drawn."""
    page.locator(f"main[data-shown='{view}']").wait_for()


# --- what is read back from a page -----------------------------------------------------------------------------------


def view(name: str, **parameters: Any) -> str:
    return f"{name}?{urlencode(parameters, doseq=True, quote_via=quote)}"


def folder(site: Path, index: int = 0) -> str:
    return str(data(site, "site")["machines"][index]["folder"])


def details(site: Path) -> Any:
    return data(site, f"{folder(site)}/machine")


def history(site: Path, key: str) -> Any:
    """The columns of a cell."""
    (name,) = details(site)["history"][key.partition(" ")[0]]
    return data(site, f"{folder(site)}/{name}")["cells"][key]


def marks(found: "Locator") -> list[dict[str, str]]:
    """The data- attributes of marks, and the middle of each on the page."""
    result: list[dict[str, str]] = found.evaluate_all(
        """marks => marks.map(mark => {
            const {x, y, width, height} = mark.getBoundingClientRect();
            return {...mark.dataset, x: x + width / 2, y: y + height / 2};
        })"""
    )
    return result


def fits(page: "Page") -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def choose(page: "Page", label: str, value: str) -> None:
    page.locator("label", has_text=re.compile(f"^{label} ")).locator("select").select_option(value)
