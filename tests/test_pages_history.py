"""The pages History, Devices and Commit: what they draw is what is recorded, and what is not recorded is said."""

import json
import math
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import pytest

from kernelwatch.asv.offline import write_scripts
from kernelwatch.site.data import BLOCK
from tests.pages import NARROW, browser, data, opened, pages_group, planted_site, recorded_site, shown

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

__all__ = ["browser", "planted_site", "recorded_site"]  # fixtures
pytestmark = pages_group

HOSTILE = "<img src=x onerror=window.pwned=1>"
PADDED = "transpose/padded float32 4096x4096 cold"
TILED = "transpose/tiled float32 4096x4096 cold"
CHANGED = "matmul/thread_tile_2d float32 1024x1024x1024 cold"  # of the planted history: slower, then faster


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


def linear(points: list[dict[str, str]], value: str, pixel: str) -> bool:
    """Whether marks lie where a linear axis puts their values, to a pixel."""
    ordered = sorted(points, key=lambda point: float(point[value]))
    (low, at_low), (high, at_high) = ((float(point[value]), float(point[pixel])) for point in (ordered[0], ordered[-1]))
    slope = (at_high - at_low) / (high - low)
    return all(abs(at_low + slope * (float(point[value]) - low) - float(point[pixel])) < 1 for point in points)


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
    write("second/machine", read("second/machine") | {"name": HOSTILE, "noise": {}})

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
        commits[change["to"]]: (event["kind"], change["change"])
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
            "▲ +1.26 %, not measured again yet",
            "▼ \N{MINUS SIGN}4.96 %, not measured again yet",
        ]
        page.locator(".happened li a").first.click()
        shown(page, "commit")
        assert "The depth of a tile is unrolled by 4" in page.title()


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
        assert page.url.endswith("#/commit?at=3")
        page.go_back()
        shown(page, "history")
        page.locator(".pointed").focus()
        for key in ("ArrowLeft", "ArrowLeft", "Enter"):
            page.keyboard.press(key)
        shown(page, "commit")
        assert page.url.endswith("#/commit?at=28")


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


# --- Devices ---------------------------------------------------------------------------------------------------------


def test_devices_shows_what_was_read(browser: "Browser", recorded_site: Path) -> None:
    machine = details(recorded_site)
    newest = data(recorded_site, f"{folder(recorded_site)}/at/{machine['commits'][-1]}")
    (name,) = machine["states"]
    states = data(recorded_site, f"{folder(recorded_site)}/{name}")
    with opened(browser, recorded_site, view("devices", op="transpose")) as page:
        for figure, name in (("SM clock", "clock_mhz"), ("Temperature", "temperature_c"), ("Power", "power_w")):
            found = marks(page.locator(f".state [data-figure='{figure}']"))
            assert [float(each["value"]) for each in found] == [state[name] for state in states]
        canary = [state["canary_memory_s"] for state in states]
        middle = sorted(canary)[len(canary) // 2]
        found = marks(page.locator(".state [data-figure^='Canary of the memory']"))
        assert [float(each["value"]) for each in found] == pytest.approx([100 * (each / middle - 1) for each in canary])

        assert sum(int(each["count"]) for each in marks(page.locator(".bin [data-count]"))) == len(machine["noise"])
        page.get_by_role("button", name=f"Show all {len(machine['noise'])} rows").click()
        noise = [(each["key"], float(each["cv"])) for each in marks(page.locator("[data-cv]"))]
        assert dict(noise) == machine["noise"]
        assert [cv for _, cv in noise] == sorted(machine["noise"].values(), reverse=True)

        limited = {each["limited"] for each in marks(page.locator("[data-limited]"))}
        assert limited == set(data(recorded_site, "site")["machines"][0]["limited"])
        assert states[-1]["limited"] == len(limited)
        cells = data(recorded_site, "cells")
        energy = {each["key"]: float(each["value"]) for each in marks(page.locator("td [data-key][data-value]"))}
        assert PADDED in energy
        for key, value in energy.items():
            cell = newest["cells"][key]
            assert value == pytest.approx(1e12 * cell["s"] * cell["power_w"] / cells[key]["bytes"])
        drawn = marks(page.locator(".energy [data-key]"))
        assert len(drawn) == sum(len(history(recorded_site, key)["at"]) for key in energy)
        facts = newest["facts"]["transpose gpu"]
        assert page.locator("[data-fact='Driver']").inner_text() == facts["nvml_driver"]
        assert page.locator("[data-fact='Power limit']").inner_text() == "700 W"
        assert "Only this machine is recorded" in page.locator(".view").inner_text()


def test_two_machines_are_compared_by_their_own_ceilings(browser: "Browser", invented_site: Path) -> None:
    name = f"at/{details(invented_site)['commits'][-1]}"
    one, two = (data(invented_site, f"{folder(invented_site, index)}/{name}") for index in (0, 1))
    cells = data(invented_site, "cells")
    timed = [key for key, cell in one["cells"].items() if "s" in cell]
    with opened(browser, invented_site, view("devices", **{"with": HOSTILE})) as page:
        for device in ("gpu", "cpu"):
            count = sum(cells[key]["device"] == device for key in timed)
            page.get_by_role("button", name=f"Show all {count} rows").click()
        ratios = {each["key"]: float(each["ratio"]) for each in marks(page.locator("[data-ratio][data-key]"))}
        assert ratios == pytest.approx({key: two["cells"][key]["s"] / one["cells"][key]["s"] for key in timed})
        points = marks(page.locator(".share [data-key]"))
        assert len(points) > 100
        for point in points:
            cell = cells[point["key"]]
            ceiling = "float32_flops_per_s" if cell["flops"] else "copy_bytes_per_s"
            if cell["flops"] and cell["type"] == "float64":
                ceiling = "float64_flops_per_s"
            for side, record in (("first", one), ("second", two)):
                rate = (cell["flops"] or cell["bytes"]) / record["cells"][point["key"]]["s"]
                own = record["facts"][f"{cell['op']} gpu"]["ceilings"][ceiling]
                assert float(point[side]) == pytest.approx(rate / own)
    with opened(browser, invented_site, view("devices", machine=HOSTILE), NARROW) as page:
        assert fits(page)
        assert page.locator("h1").inner_text() == HOSTILE
        assert "No A/A is recorded on this machine." in page.locator(".view").inner_text()


# --- Commit ----------------------------------------------------------------------------------------------------------


def test_a_commit_lists_what_moved(browser: "Browser", planted_site: Path) -> None:
    at = next(at for at, commit in data(planted_site, "commits").items() if commit["hash"].startswith("1f4563dc"))
    before, after = (data(planted_site, f"{folder(planted_site)}/at/{each}")["cells"] for each in (int(at) - 1, at))
    moved = {}
    for key, cell in after.items():
        change = cell["s"] / before[key]["s"] - 1
        if abs(change) > max(cell["detectable"], before[key]["detectable"]):
            moved[key] = change
    assert len(moved) == 2
    with opened(browser, planted_site, view("commit", hash="1f4563dc")) as page:
        assert page.locator("h1").inner_text() == "A barrier after each step of loads"
        found = {each["key"]: float(each["change"]) for each in marks(page.locator("td [data-change]"))}
        assert found == pytest.approx(moved)
        assert {each["cell"] for each in marks(page.locator(".happened li"))} == set(moved)
        assert page.locator(".files code").all_inner_texts() == ["gpukernels/transpose/padded.cu"]
        ladder = page.get_by_role("link", name="transpose", exact=True).get_attribute("href") or ""
        assert ladder.startswith("#/ladder?op=transpose")
        assert ladder.endswith(f"&commit={at}")
        page.get_by_role("link", name="older measured commit").click()
        older = data(planted_site, "commits")[str(int(at) - 1)]["subject"]
        page.locator("h1", has_text=older).wait_for()
        assert "No event begins at this commit." in page.locator(".view").inner_text()
        assert page.locator(".happened").count() == 0


def test_a_commit_lists_exact_figures_and_what_is_not_known(
    browser: "Browser", invented_site: Path, recorded_site: Path
) -> None:
    at = details(invented_site)["commits"]
    with opened(browser, invented_site, view("commit", at=at[6]), NARROW) as page:
        assert fits(page)
        assert page.locator("h1").inner_text() == HOSTILE
        own = page.locator("section").first
        found = marks(own.locator("[data-benchmark]"))
        assert [(each["rung"], each["place"], each["value"]) for each in found] == [("padded", "float32 256x256", "32")]
        assert page.locator("section[data-machine]").count() == 2
    head = data(recorded_site, "site")["head"]
    with opened(browser, recorded_site, view("commit", at=head)) as page:
        assert (
            "It was not measured on this machine. The newest commit that was is 47de068d."
            in page.locator(".view").inner_text()
        )
    with opened(browser, recorded_site, view("commit", at=at[0])) as page:
        assert "the first commit measured here" in page.locator(".view").inner_text()
