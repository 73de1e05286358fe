"""The ladders, the page of a rung and the roofline: what is drawn is what was recorded."""

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import pytest

from kernelwatch.history import roofs
from kernelwatch.publish.writer import as_script
from tests.pages import (
    NARROW,
    RECORDED,
    browser,
    data,
    opened,
    pages_group,
    planted_site,
    recorded_site,
    shown,
    units_site,
)
from tests.repositories import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["browser", "planted_site", "recorded_site", "units_site"]  # fixtures
pytestmark = pages_group

HOSTILE = "<img src=x onerror=alert(1)>"


def newest(site: Path) -> tuple[Any, Any, Any]:
    """The newest commit of the first machine: its summary, the parts of all cells, the snapshot."""
    machine = data(site, "site")["machines"][0]
    return machine, data(site, "cells"), data(site, f"{machine['folder']}/at/{machine['newest']}")


def cells(site: Path, op: str, type: str = "float32", device: str = "gpu") -> dict[str, Any]:
    """The cells with a figure of an op at the newest commit."""
    _, parts, snapshot = newest(site)
    return {
        key: figures | parts[key]
        for key, figures in snapshot["cells"].items()
        if "s" in figures and (parts[key]["op"], parts[key]["type"], parts[key]["device"]) == (op, type, device)
    }


def rate(cell: Any, seconds: float | None = None) -> float:
    return float((cell["flops"] or cell["bytes"]) / (seconds or cell["s"]) / 1e9)


def marks(page: "Page", scope: str, *names: str) -> dict[str, list[float]]:
    """The marks of a picture: key -> the numbers written in them."""
    found = page.eval_on_selector_all(
        f"{scope} svg [data-key]",
        "(all, names) => all.map((mark) => [mark.dataset.key, names.map((name) => Number(mark.dataset[name]))])",
        list(names),
    )
    assert len(found) == len(dict(found)), "a cell is drawn twice"
    return dict(found)


def fits(page: "Page") -> bool:
    """Nothing makes the page scroll sideways, and no picture is shrunk."""
    return bool(
        page.evaluate(
            "document.documentElement.scrollWidth <= innerWidth && [...document.querySelectorAll('main svg')].every("
            "(svg) => svg.getBoundingClientRect().width > svg.getAttribute('width') - 1)"
        )
    )


def row(page: "Page", label: str, name: str) -> "dict[str, str]":
    """The row of a table whose first cell begins with a name: head of the column -> text."""
    table = page.get_by_role("region", name=label).locator("table")
    heads = [" ".join(head.split()) for head in table.locator("th").all_inner_texts()]
    texts = table.locator("tbody tr").evaluate_all(
        "(rows) => rows.map((row) => [...row.cells].map((cell) => cell.innerText))"
    )
    return next(dict(zip(heads, each, strict=True)) for each in texts if each[0].split("\n")[0] == name)


def test_a_ladder_draws_every_cell_in_the_chosen_unit(browser: "Browser", recorded_site: Path) -> None:
    expected = cells(recorded_site, "transpose")
    with opened(browser, recorded_site, "ladder?op=transpose") as page:
        assert marks(page, "figure", "value", "low", "high") == {
            key: pytest.approx([rate(cell), rate(cell, cell["high"]), rate(cell, cell["low"])])
            for key, cell in expected.items()
        }
        page.get_by_label("unit").select_option("line")
        page.get_by_role("heading", name="% of vector_copy").wait_for()
        assert "unit=line" in page.url
        assert marks(page, "figure", "value") == {
            key: pytest.approx([100 * rate(cell) / rate(expected[key.replace(f"/{cell['rung']} ", "/vector_copy ")])])
            for key, cell in expected.items()
        }
        page.go_back()
        page.get_by_role("heading", name="GB/s, higher is better").wait_for()
        assert marks(page, "figure", "value")["transpose/padded float32 4096x4096 cold"] == [
            pytest.approx(rate(expected["transpose/padded float32 4096x4096 cold"]))
        ]


def test_the_table_of_a_ladder_has_exact_figures_and_leads_on(browser: "Browser", recorded_site: Path) -> None:
    machine, _, _ = newest(recorded_site)
    names = data(recorded_site, f"{machine['folder']}/machine")["exact"]
    series = data(recorded_site, f"{machine['folder']}/{names['transpose']}")["series"]
    registers = series["static.Transpose.track_registers"]["padded"]["float32 sm_90"][-1][1]
    sectors = series["access.Transpose.track_store_sectors"]["naive_read"]["float32 256x256"][-1][1]
    key = "transpose/padded float32 1024x1024 cold"
    with opened(browser, recorded_site, "ladder?op=transpose&shape=1024x1024&cache=cold") as page:
        padded = row(page, "transpose at 1024x1024", "padded")
        assert padded["registers per thread"] == f"{registers:g}"
        assert row(page, "transpose at 1024x1024", "naive_read")["store sectors per request"] == f"{sectors:g}"
        shown_rate = float(padded["cold, GB/s"].split("\n")[0])
        assert shown_rate == pytest.approx(rate(cells(recorded_site, "transpose")[key]), rel=1e-3)
        history = page.get_by_role("link", name="history of padded").get_attribute("href") or ""
        assert unquote(history).replace("+", " ") == f"#/history?cell={key}"
        page.get_by_role("link", name="padded", exact=True).click()
        shown(page, "rung")
        assert page.locator("h1").inner_text() == "transpose/padded"


def test_the_best_rung_and_line_are_those_measured(browser: "Browser", recorded_site: Path) -> None:
    for op, shape in (("vector_add", "65536"), ("transpose", "4096x4096")):
        here = [cell for cell in cells(recorded_site, op).values() if (cell["shape"], cell["cache"]) == (shape, "cold")]
        described = next(each for each in data(recorded_site, "site")["ops"] if each["name"] == op)
        plain = {rung["name"] for rung in described["rungs"] if rung["plain"]}
        rung = max((cell for cell in here if cell["rung"] in plain), key=rate)
        line = max((cell for cell in here if cell["rung"] in described["lines"]), key=rate)
        with opened(browser, recorded_site, f"ladder?op={op}&shape={shape}&cache=cold") as page:
            best = page.locator("[data-best]")
            assert best.get_attribute("data-best") == f"{rung['rung']} {line['rung']}"
            assert f"{float(f'{rate(line):.4g}'):g} GB/s" in best.inner_text()
            if op == "vector_add":
                assert rate(rung) > rate(line)
                assert "It is no bound" in page.locator("main").inner_text()


GROUPS = {  # what float32 rungs compute whose rates are comparable: the line of each, and its rungs
    "matmul float32": ("cublas", {"initial", "pipelined", "split_tail", "triton"}),
    "matmul_tf32 float32": ("cublas_tf32", {"tf32"}),
    "matmul float32 emulated on tensor cores": ("cublas", {"bf16x6", "fp16x3"}),
}


def test_a_ladder_compares_what_computes_the_same(browser: "Browser", units_site: Path) -> None:
    expected, size = cells(units_site, "matmul"), "8192x8192x8192"
    with opened(browser, units_site, f"ladder?op=matmul&shape={size}&cache=cold") as page:
        pictures = page.locator("[data-group]")
        assert pictures.evaluate_all("all => all.map((each) => each.dataset.group)") == list(GROUPS)
        for title, (line, names) in GROUPS.items():
            drawn = marks(page, f"[data-group='{title}']", "value")
            rungs = {expected[key]["rung"] for key in drawn}
            others = {name for other, (_, own) in GROUPS.items() if other != title for name in own}
            assert names <= rungs
            assert not rungs & others
            assert page.get_by_role("heading", name=f"{title}, held against {line}", exact=True).count() == 2
            base = rate(expected[f"matmul/{line} float32 {size} cold"])
            for name in names:
                share = float(row(page, f"{title} at {size}", name)[f"% of {line}"].rstrip(" %"))
                own = 100 * rate(expected[f"matmul/{name} float32 {size} cold"]) / base
                assert share == pytest.approx(own, rel=5e-3, abs=0.06)
        best = page.locator("[data-best]").evaluate_all("all => all.map((each) => each.dataset.best.split(' ')[0])")
        plain = {each: max(own, key=lambda name: rate(expected[f"matmul/{name} float32 {size} cold"]))
                 for each, (_, own) in GROUPS.items()}  # fmt: skip
        assert best == list(plain.values())
    with opened(browser, units_site, "rung?op=matmul&rung=tf32") as page:
        position = row(page, "Position of matmul/tf32", "float32")["of cublas_tf32"]
        key = "matmul/tf32 float32 256x256x256 cold"
        own = rate(expected[key]) / rate(expected[key.replace("/tf32", "/cublas_tf32")])
        assert float(position.rstrip(" %")) == pytest.approx(100 * own, abs=0.06)


def test_the_tables_of_a_ladder_are_not_cut_off(browser: "Browser", units_site: Path) -> None:
    for op, count in (("matmul", len(GROUPS)), ("transpose", 1)):
        with opened(browser, units_site, f"ladder?op={op}") as page:
            page.set_viewport_size({"width": 1400, "height": 900})
            tables = page.locator("main .wide")
            assert tables.count() == count
            assert tables.evaluate_all("all => all.every((each) => each.scrollWidth <= each.clientWidth)")


def test_a_ladder_has_one_scale_for_all_sizes(browser: "Browser", recorded_site: Path) -> None:
    """Rungs a thousand times apart are told apart, and so are sizes."""
    place = "all => all.map((mark) => [mark.dataset.key, mark.getBoundingClientRect().x])"
    keys = [f"matmul/{name} float32 8192x8192x8192 cold" for name in ("coalesced", "initial", "thread_tile_1d")]
    for scale, apart in (("", 10), ("linear", 0)):
        with opened(browser, recorded_site, f"ladder?op=matmul&cache=cold&scale={scale}") as page:
            at = dict(page.eval_on_selector_all("figure svg [data-key]", place))
            assert at[keys[1]] - at[keys[0]] > apart
            assert at[keys[2]] - at[keys[1]] > apart


def test_what_is_not_there_is_told(browser: "Browser", recorded_site: Path) -> None:
    with opened(browser, recorded_site, "ladder?op=matmul&commit=0") as page:
        assert "was not measured" in page.locator("main").inner_text()
        page.locator("main a.hash", has_text=data(recorded_site, "commits")["57"]["hash"][:8]).click()
        page.locator("figure .panel").first.wait_for()
        machine, _, _ = newest(recorded_site)
        assert marks(page, "figure").keys() == {
            key
            for key, cell in data(recorded_site, f"{machine['folder']}/at/57")["cells"].items()
            if key.startswith("matmul/") and " float32 " in key and "s" in cell
        }


def test_two_commits_are_compared_cell_by_cell(browser: "Browser", planted_site: Path) -> None:
    machine, _, now = newest(planted_site)
    then = data(planted_site, f"{machine['folder']}/at/0")["cells"]
    changes = {
        key: cell["s"] / then[key]["s"] - 1 for key, cell in now["cells"].items() if key.startswith("transpose/")
    }
    clear = {
        key for key, change in changes.items()
        if abs(change) > max(now["cells"][key]["detectable"], then[key]["detectable"])
    }  # fmt: skip
    assert clear
    assert clear != set(changes)
    with opened(browser, planted_site, "ladder?op=transpose&with=0") as page:
        assert marks(page, "figure.changes", "value") == {
            key: pytest.approx([100 * change], abs=1e-9) for key, change in changes.items()
        }
        filled = page.eval_on_selector_all(
            "figure.changes svg [data-key]",
            "(all) => all.filter((dot) => dot.getAttribute('fill') !== 'var(--page)').map((dot) => dot.dataset.key)",
        )
        assert set(filled) == clear


def test_the_roofline_draws_ceilings_and_cells(browser: "Browser", recorded_site: Path) -> None:
    machine, _, snapshot = newest(recorded_site)
    gpu = snapshot["facts"]["matmul gpu"]["gpu"]
    roofs = {each["unit"]: each["rate"] for each in data(recorded_site, f"{machine['folder']}/machine")["roofs"][gpu]}
    expected = cells(recorded_site, "matmul")
    with opened(browser, recorded_site, "roofline") as page:
        assert marks(page, "section:has(h2:text-is('matmul'))", "value", "intensity") == {
            key: pytest.approx([rate(cell), cell["flops"] / cell["bytes"]]) for key, cell in expected.items()
        }
        drawn = page.eval_on_selector_all(
            "main svg [data-rate]", "(all) => all.map((line) => Number(line.dataset.rate))"
        )
        units = {(cell["unit"], cell.get("operations", 1)) for cell in expected.values()}
        assert sorted(drawn) == pytest.approx(sorted([roofs["memory"], *(roofs[one] / count for one, count in units)]))
        for op in ("transpose", "vector_add"):
            assert marks(page, f"section:has(h2:text-is('{op}: bandwidth against size'))", "value") == {
                key: pytest.approx([rate(cell)]) for key, cell in cells(recorded_site, op).items()
            }
        share = row(page, "matmul cold: share of the roof", "cublas")["8192\u00b3"].split()[0]
        cell = expected["matmul/cublas float32 8192x8192x8192 cold"]
        assert float(share) == pytest.approx(100 * rate(cell) * 1e9 / roofs["fp32"], abs=0.06)


def test_a_roof_is_that_of_the_unit_that_computes(browser: "Browser", units_site: Path) -> None:
    """The multiply-adds of float32 are what a rung of float32 is held against. Tensor cores have no measured ceiling:
    what computes on them has a share of the bandwidth where that is the limit, and else none. No cell is its roof."""
    _, _, snapshot = newest(units_site)
    ceiling = snapshot["facts"]["matmul gpu"]["ceilings"]["float32_flops_per_s"]
    expected = cells(units_site, "matmul")
    with opened(browser, units_site, "roofline") as page:
        table = "matmul cold: share of the roof"
        for rung in ("pipelined", "cublas", "tiled_32"):
            share = row(page, table, rung)["8192\u00b3"].split()[0]
            own = rate(expected[f"matmul/{rung} float32 8192x8192x8192 cold"]) * 1e9 / ceiling
            assert float(share) == pytest.approx(100 * own, abs=0.06)
            assert 0 < own < 1
        for rung in ("tf32", "cublas_tf32", "bf16x6", "fp16x3"):
            assert row(page, table, rung)["8192\u00b3"].split()[0] == "n/a", rung
            small = expected[f"matmul/{rung} float32 256x256x256 cold"]
            share = small["bytes"] / small["s"] / snapshot["facts"]["matmul gpu"]["ceilings"]["copy_bytes_per_s"]
            assert float(row(page, table, rung)["256\u00b3"].split()[0]) == pytest.approx(100 * share, abs=0.06)
        roofs = page.eval_on_selector_all(
            "section:has(h2:text-is('matmul')) svg [data-rate]", "(all) => all.map((line) => Number(line.dataset.rate))"
        )
        assert sorted(roofs) == sorted(snapshot["facts"]["matmul gpu"]["ceilings"].values())
        said = page.locator("main").inner_text()
        assert "fastest cell" not in said
        assert "tf32" in said.partition("no ceiling of tensor cores")[2].partition("\n")[0]
    for type in ("float16->float32", "float8_e4m3fn->bfloat16"):
        with opened(browser, units_site, f"roofline?type={quote(type)}") as page:
            said = page.locator("main").inner_text()
            assert "fastest cell" not in said
            assert "100.0 %" not in said
            assert "no ceiling of tensor cores" in said


OPERATIONS = {"tf32": ("tf32", 1), "bf16x6": ("bf16", 6), "fp16x3": ("fp16", 3), "pipelined": ("fp32", 1)}


@pytest.fixture
def roofs_site(units_site: Path, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """The site of recorded units, whose machine has the recorded roofs, and these by unit."""
    site = tmp_path / "html"
    shutil.copytree(units_site, site, ignore=shutil.ignore_patterns("asv"))
    machine, _, snapshot = newest(site)
    content = data(site, f"{machine['folder']}/machine")
    assert content["roofs"] == {}  # it was published without
    content["roofs"] = roofs.by_gpu(ROOT / "results" / RECORDED)
    path = site / "data" / machine["folder"] / "machine.json.js"
    path.write_text(as_script(json.dumps(content)), encoding="ascii")
    own = content["roofs"][snapshot["facts"]["matmul gpu"]["gpu"]]
    return site, {each["unit"]: each for each in own}


def test_a_roof_that_its_instruction_measured_is_over_what_computes_by_it(
    browser: "Browser", roofs_site: tuple[Path, dict[str, Any]]
) -> None:
    site, known = roofs_site
    rates = {unit: roof["rate"] for unit, roof in known.items()}
    expected = cells(site, "matmul")
    with opened(browser, site, "roofline") as page:
        table = "matmul cold: share of the roof"
        for rung, (unit, operations) in OPERATIONS.items():
            share = row(page, table, rung)["8192\u00b3"].split()[0]
            own = rate(expected[f"matmul/{rung} float32 8192x8192x8192 cold"]) * 1e9 / rates[unit] * operations
            assert float(share) == pytest.approx(100 * own, abs=0.06), rung
        drawn = page.eval_on_selector_all(
            "section:has(h2:text-is('matmul')) svg [data-rate]", "(all) => all.map((line) => Number(line.dataset.rate))"
        )
        peaks = [rates[unit] / operations for unit, operations in OPERATIONS.values()]
        assert sorted(drawn) == pytest.approx(sorted([*peaks, rates["memory"]]))
        said = page.locator("main").inner_text()
        assert "no ceiling of tensor cores" not in said
        page.locator("summary", has_text="The roofs of this GPU").click()
        roof = row(page, "Roofs", "FP32")
        assert float(roof["share"].rstrip(" %")) == pytest.approx(100 * rates["fp32"] / 67e12, abs=0.06)
        assert roof["SM clock"] == f"{known['fp32']['clock_mhz']:.0f} MHz"
    with opened(browser, site, "ladder?op=matmul&unit=peak") as page:
        assert "roof of the unit on which a rung computes" in page.locator("main").inner_text()
        shown_share = marks(page, "main", "value")["matmul/fp16x3 float32 8192x8192x8192 cold"]
        own = rate(expected["matmul/fp16x3 float32 8192x8192x8192 cold"]) * 1e9 / rates["fp16"] * 3
        assert shown_share == pytest.approx([100 * own])
    with opened(browser, site, "devices") as page:
        assert "The roofs of this GPU" in page.locator("main").inner_text()


MANY_LABELS = """() => {
    const cells = d3.range(40).map((at) => ({key: String(at), op: "matmul", rung: "rung_" + at, shape: [8, 8, 8],
        cache: "cold", s: 1 + at / 1000, low: 1, high: 1.1, flops: 1e12, bytes: 1e9}));
    const main = document.querySelector("main"), ceilings = {peaks: [], others: new Set()};
    const drawn = main.appendChild(kernelwatch.rooflines.draw(main, cells, ceilings, cells, [], ""));
    const frame = drawn.getBoundingClientRect();
    return [...drawn.querySelectorAll("text")].filter((each) => each.textContent.startsWith("rung_"))
        .map((each) => each.getBoundingClientRect())
        .map((box) => [box.top - frame.top, frame.bottom - box.bottom]);
}"""


def test_the_labels_of_a_roofline_lie_apart_however_many(browser: "Browser", units_site: Path) -> None:
    """And within the picture, of whose cells all are as fast."""
    with opened(browser, units_site, "roofline") as page:
        places = sorted(page.evaluate(MANY_LABELS))
    assert len(places) == 40
    assert all(after[0] - before[0] > 14 for before, after in pairwise(places))
    assert min(map(min, places)) > 0


WIDE_INTERVAL = """() => {
    const cell = {key: "a", op: "matmul", rung: "noisy", shape: [8, 8, 8], cache: "cold",
        s: 1, low: -1, high: 100, flops: 1e12, bytes: 1e9};
    const main = document.querySelector("main"), ceilings = {peaks: [], others: new Set()};
    main.replaceChildren();
    const drawn = main.appendChild(kernelwatch.rooflines.draw(main, [cell], ceilings, [cell], [], ""));
    drawn.style.pointerEvents = "all";
    const line = drawn.querySelector("[data-mark='interval'] line"), box = line.getBoundingClientRect();
    const frame = drawn.getBoundingClientRect();
    const hit = (y) => document.elementsFromPoint(box.x + box.width / 2, y).includes(line);
    return [box.bottom - frame.bottom, hit(frame.bottom - 60), hit(frame.bottom - 20)];
}"""


def test_an_interval_ends_within_its_roofline(browser: "Browser", units_site: Path) -> None:
    """As on a CPU beside other work, whose interval is wider than the picture: it crossed the text above and below."""
    with opened(browser, units_site, "roofline") as page:
        below, inside, beyond = page.evaluate(WIDE_INTERVAL)
    assert below > 0
    assert inside
    assert not beyond


def test_the_tables_of_the_roofline_are_not_cut_off(browser: "Browser", recorded_site: Path) -> None:
    _, _, snapshot = newest(recorded_site)
    with opened(browser, recorded_site, "roofline") as page:
        tables = page.locator("details[open] .wide")
        assert tables.count() == 3
        assert tables.evaluate_all("all => all.every((each) => each.scrollWidth <= each.clientWidth)")
        cell = snapshot["cells"]["matmul/tiled_32 float32 4096x4096x4096 cold"]
        shown_text = row(page, "matmul cold: share of the roof", "tiled_32")["4096³"]
        low, high = (1 / cell[end] for end in ("high", "low"))
        assert f"± {100 * (high - low) / 2 * cell['s']:.2f} %" in shown_text


def test_a_rung_shows_its_place_history_and_events(browser: "Browser", planted_site: Path) -> None:
    machine, _, _ = newest(planted_site)
    (history,) = data(planted_site, f"{machine['folder']}/machine")["history"]["transpose/copy"]
    columns = data(planted_site, f"{machine['folder']}/{history}")["cells"]
    expected = [
        (change["cell"].partition(" ")[2], event["last"]["subject"])
        for event in data(planted_site, "events")["events"]
        for change in event["changes"]
        if change["cell"].startswith("transpose/copy ")
    ]
    assert expected
    with opened(browser, planted_site, "rung?op=transpose&rung=copy") as page:
        drawn = page.eval_on_selector_all(
            ".charts svg", "(all) => all.map((chart) => [chart.dataset.key, Number(chart.dataset.points)])"
        )
        assert dict(drawn) == {key: len(found["at"]) for key, found in columns.items()}
        texts = page.get_by_role("region", name="Events of transpose/copy").locator("tbody tr").all_inner_texts()
        assert len(texts) == len(expected)
        assert all(cell in text and subject in text for (cell, subject), text in zip(expected, texts, strict=True))
        hrefs = page.locator(".charts a").evaluate_all("(all) => all.map((link) => link.getAttribute('href'))")
        assert {unquote(href).replace("+", " ") for href in hrefs} == {f"#/history?cell={key}" for key in columns}


def test_a_rung_names_the_one_before_it(browser: "Browser", recorded_site: Path) -> None:
    op = next(each for each in data(recorded_site, "site")["ops"] if each["name"] == "transpose")
    rungs = [each for each in op["rungs"] if each["device"] == "gpu"]
    at = [rung["name"] for rung in rungs].index("padded")
    with opened(browser, recorded_site, "rung?op=transpose&rung=padded") as page:
        link = page.get_by_role("link", name=f"transpose/{rungs[at - 1]['name']}", exact=True)
        assert "where it follows" in link.locator("xpath=..").inner_text()
    with opened(browser, recorded_site, f"rung?op=transpose&rung={rungs[0]['name']}") as page:
        assert "where it follows" not in page.locator("main").inner_text()


def test_figures_of_the_machines_architecture_come_first_where_the_newest_commit_has_no_time(
    browser: "Browser", planted_site: Path, tmp_path: Path
) -> None:
    site = Path(shutil.copytree(planted_site, tmp_path / "site"))
    machine, _, snapshot = newest(planted_site)
    facts = {group: known for group, known in snapshot["facts"].items() if group != "transpose gpu"}
    assert len(facts) < len(snapshot["facts"])
    path = site / "data" / machine["folder"] / "at" / f"{machine['newest']}.json.js"
    path.write_text(as_script(json.dumps(snapshot | {"facts": facts})), encoding="ascii")
    with opened(browser, site, "rung?op=transpose&rung=padded") as page:
        assert "sm_90" in row(page, "Exact figures of transpose/padded", "registers")["type and place"]


def test_a_project_without_ideas_has_no_column_of_them(browser: "Browser", planted_site: Path, tmp_path: Path) -> None:
    site = Path(shutil.copytree(planted_site, tmp_path / "site"))
    described = data(planted_site, "site")
    assert any(rung["idea"] for op in described["ops"] for rung in op["rungs"])
    without = [op | {"rungs": [rung | {"idea": ""} for rung in op["rungs"]]} for op in described["ops"]]
    path = site / "data" / "site.json.js"
    path.write_text(as_script(json.dumps(described | {"ops": without})), encoding="ascii")
    with opened(browser, site, "ladder?op=transpose") as page:
        headers = page.get_by_role("region", name="transpose at").locator("thead th").all_inner_texts()
        assert headers[0] == "rung"
        assert "idea" not in headers
        cells = page.get_by_role("region", name="transpose at").locator("tbody tr").first.locator("td")
        assert cells.count() == len(headers)


def test_a_ladder_is_of_the_newest_commit_that_measured_it(
    browser: "Browser", planted_site: Path, tmp_path: Path
) -> None:
    site = Path(shutil.copytree(planted_site, tmp_path / "site"))
    machine, _, snapshot = newest(planted_site)
    files = data(planted_site, f"{machine['folder']}/machine")["history"]
    for name in (each for each in files if each.startswith("transpose/")):
        (file,) = files[name]
        history = data(planted_site, f"{machine['folder']}/{file}")
        for columns in history["cells"].values():
            assert columns["at"].pop() == machine["newest"], name
        path = site / "data" / machine["folder"] / f"{file}.json.js"
        path.write_text(as_script(json.dumps(history)), encoding="ascii")
    before = columns["at"][-1]
    kept = {key: cell for key, cell in snapshot["cells"].items() if not key.startswith("transpose/")}
    path = site / "data" / machine["folder"] / "at" / f"{machine['newest']}.json.js"
    path.write_text(as_script(json.dumps(snapshot | {"cells": kept})), encoding="ascii")
    hashes = {int(at): commit["hash"][:8] for at, commit in data(planted_site, "commits").items()}
    with opened(browser, site, "ladder?op=transpose") as page:
        assert f"Commit {hashes[before]}" in page.locator("main").inner_text()
    with opened(browser, site, f"ladder?op=transpose&commit={machine['newest']}") as page:
        assert "was not measured. It was last measured at " + hashes[before] in page.locator("main").inner_text()


def test_labels_of_exact_figures_do_not_cover_each_other(browser: "Browser", planted_site: Path) -> None:
    labels = 0
    for rung in ("thread_tile_2d", "unrolled"):
        with opened(browser, planted_site, f"rung?op=matmul&rung={rung}") as page:
            for figure in page.locator("svg:has([data-mark=step])").all():
                boxes = [label.bounding_box() for label in figure.locator("[data-mark=label] text").all()]
                spans = sorted((box["x"], box["x"] + box["width"]) for box in boxes if box)
                labels += len(spans)
                assert all(right <= left for (_, right), (left, _) in pairwise(spans))
    assert labels


def test_a_rung_stands_where_its_rates_put_it(browser: "Browser", recorded_site: Path) -> None:
    all_cells = cells(recorded_site, "transpose")
    expected = {
        key: 100 * rate(cell) / rate(all_cells[key.replace("/padded ", "/vector_copy ")])
        for key, cell in all_cells.items()
        if cell["rung"] == "padded"
    }
    rivals = ("naive_read", "naive_write", "tiled", "dynamic", "padded")  # neither a copy nor repeated in one launch
    place = sorted(rivals, key=lambda name: -rate(all_cells[f"transpose/{name} float32 16411x8209 cold"])).index(
        "padded"
    )
    with opened(browser, recorded_site, "rung?op=transpose&rung=padded") as page:
        drawn = page.eval_on_selector_all(
            "svg [data-mark^=share] [data-key]",
            "(all) => all.map((mark) => [mark.dataset.key, Number(mark.dataset.value)])",
        )
        assert dict(drawn) == pytest.approx(expected)
        texts = page.get_by_role("region", name="Position of transpose/padded").locator("tbody tr").all_inner_texts()
        assert f"{place + 1} of 5" in next(text for text in texts if "16411" in text)
        registers = row(page, "Exact figures of transpose/padded", "registers")
        assert registers["value"].isdecimal()
        assert "sm_90" in registers["type and place"]


@pytest.mark.parametrize(
    "view", ["ladder?op=matmul&with=57", "rung?op=matmul&rung=thread_tile_2d", "roofline", "roofline?device=cpu"]
)
def test_a_narrow_page_fits(browser: "Browser", recorded_site: Path, view: str) -> None:
    with opened(browser, recorded_site, view, size=NARROW, scheme="dark") as page:
        assert fits(page)


def test_names_stay_text_and_failures_are_shown(browser: "Browser", planted_site: Path, tmp_path: Path) -> None:
    """Hostile names, a cell that failed, one that met a limit, and an exact figure that changed."""
    site = tmp_path / "site"
    shutil.copytree(planted_site, site, ignore=shutil.ignore_patterns("asv"))
    machine, _, snapshot = newest(planted_site)
    folder, at = machine["folder"], machine["newest"]
    failed, limited = "transpose/padded float32 4096x4096 cold", "transpose/tiled float32 4096x4096 cold"
    snapshot = json.loads(json.dumps(snapshot))
    snapshot["cells"][failed] = {"state": "failed", "reason": f"12 elements wrong {HOSTILE}"}
    snapshot["cells"][limited] |= {
        "limits": [f"power {HOSTILE}"],
        "notes": [f"autotuned, {HOSTILE}"],
        "kernels": [
            {"kind": "copy"},
            {"kernel": HOSTILE, "grid": [128, 64, 1], "block": [32, 8, 1], "registers": 40, "static_shared_bytes": 4224}
            | {"dynamic_shared_bytes": 16, "blocks_per_multiprocessor": 6, "code": "0123456789abcdef"},
        ],
    }
    commits = {at: commit | {"subject": HOSTILE} for at, commit in data(planted_site, "commits").items()}
    described = json.loads(json.dumps(data(planted_site, "site")))
    for op in described["ops"]:
        for rung in op["rungs"]:
            rung["idea"] = HOSTILE
    details = data(planted_site, f"{folder}/machine") | {"exact": {"transpose": "exact/0"}}
    runs = {"tiled": {"float32 sm_90": [[0, 28], [3, 40]]}}
    exact = {"op": "transpose", "at": [0, 1, 3, at], "series": {"static.Transpose.track_registers": runs}}
    for name, content in {
        "site": described, "commits": commits, f"{folder}/machine": details, f"{folder}/exact/0": exact,
        f"{folder}/at/{at}": snapshot,
    }.items():  # fmt: skip
        path = site / "data" / f"{name}.json.js"
        path.parent.mkdir(exist_ok=True)
        path.write_text(as_script(json.dumps(content)), encoding="ascii")
    with opened(browser, site, "ladder?op=transpose&with=0") as page:
        assert failed not in marks(page, "figure:not(.changes)")
        assert "failed" in (page.locator("svg[data-shape='4096x4096']").first.text_content() or "")
        assert "failed: 12 elements wrong" in page.get_by_role("region", name="transpose at 4096x4096").inner_text()
        assert page.locator("svg [data-mark=limit] text").count() == 1
        assert row(page, "transpose at 4096x4096", "tiled")["registers per thread"] == "40"
        assert HOSTILE in page.locator("main").inner_text()
        assert page.locator("main img").count() == 0
        page.goto(f"{site.as_uri()}/index.html#/rung?op=transpose&rung={quote('tiled')}")
        shown(page, "rung")
        assert f"float32 4096 \u00d7 4096 cold: autotuned, {HOSTILE}." in page.locator("ul.notes").inner_text()
        copy, kernel = (
            page.get_by_role("region", name="Kernels of transpose/tiled").locator("tbody tr").all_inner_texts()
        )
        assert copy.split("\t")[3:] == ["copy", *[""] * 6]
        launched = ["128 \u00d7 64 \u00d7 1", "32 \u00d7 8 \u00d7 1", "40", "4240", "6", "0123456789abcdef"]
        assert kernel.split("\t")[3:] == [HOSTILE, *launched]
        steps = page.eval_on_selector_all(
            "svg [data-mark=step] [data-value]", "(all) => all.map((step) => step.dataset.value)"
        )
        assert steps == ["28", "40"]
        assert page.locator("main img").count() == 0
