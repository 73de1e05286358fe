"""The data files of the pages: what they say of records, whole and damaged."""

import dataclasses
import json
import math
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from benchmarks.project import PROJECT
from kernelwatch.history.records import Measured, Record, measured, noise_of, read
from kernelwatch.publish import data, machines, pages
from kernelwatch.publish import record as site_record
from kernelwatch.publish.data import Machine
from kernelwatch.publish.exact import Exact
from kernelwatch.publish.writer import Writer
from kernelwatch.run.outcome import Outcome
from kernelwatch.timing.record import Facts, Measurement
from tests.pages import pages_group, recorded_files, recorded_site
from tests.repositories import ROOT
from tests.series import packed, recorded

__all__ = ["recorded_site"]  # a fixture

COPY = "transpose/copy float32 256x256 cold"
PADDED = "transpose/padded float32 256x256 cold"
PRODUCT = "matmul/tiled_16 float32 256x256x256 hot"


def visits(*seconds: float, **more: Any) -> Outcome:
    found = [{"process": at, "seconds": each, "throttled": [], **more} for at, each in enumerate(seconds)]
    return Outcome("ok", "", cast(list[Measurement], found))


def record(cells: dict[str, Outcome], group: str = "transpose gpu", **facts: Any) -> Record:
    found = {key: measured(key, outcome, group) for key, outcome in cells.items()}
    return Record("host", "abc", {group: cast(Facts, facts)}, found)


def machine(*records: Record) -> Machine:
    return Machine("host", "host", {at: recorded(each) for at, each in enumerate(records)})


def shown(cell: Measured) -> dict[str, Any]:
    return site_record.figures(cell)


def cells_of(found: Record) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    data.add_cells(PROJECT, cells, packed(found).layout)
    return cells


class Kept(Writer):
    """Keeps the files in memory, by name."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"))
        self.contents: dict[str, Any] = {}

    def write_text(self, name: str, text: str, made_of: str = "") -> None:
        self.contents[name] = json.loads(text, parse_constant=pytest.fail)


# --- cells ---------------------------------------------------------------------------------------------------------


def test_a_cell_has_the_work_of_one_pass() -> None:
    cells = cells_of(record({COPY: visits(1e-3)})) | cells_of(record({PRODUCT: visits(1e-3)}, "matmul gpu"))
    assert cells[COPY]["bytes"] == 2 * 4 * 256**2
    assert (cells[COPY]["flops"], cells[PRODUCT]["flops"]) == (0, 2 * 256**3)
    assert cells[PRODUCT] | {"op": "matmul", "rung": "tiled_16", "cache": "hot", "device": "gpu"} == cells[PRODUCT]


@pytest.mark.parametrize("key", ["gone/copy float32 256x256 cold", "transpose/gone float32 256x256 cold",
                                 "transpose/copy float3 256x256 cold"])  # fmt: skip
def test_a_cell_that_the_checkout_does_not_know_has_no_work(key: str) -> None:
    (cell,) = cells_of(record({key: visits(1e-3)})).values()
    assert cell["bytes"] is None
    assert cell["flops"] is None


@pytest.mark.parametrize(
    ("key", "group"),
    [("transpose/copy float32 sm_90", "transpose static"),
     ("transpose/copy float32 256x256 counted", "transpose access"), ("", "transpose gpu"), ("copy", "transpose gpu")],
)  # fmt: skip
def test_what_is_not_timed_is_no_cell(key: str, group: str) -> None:
    assert cells_of(record({key: visits(1e-3)}, group)) == {}


def test_the_figures_of_a_cell() -> None:
    state = {"temperature_c": 40, "power_w": 300.25}
    found = shown(measured(COPY, visits(1e-3, 2e-3, 6e-3, state=state, clock64_mhz=1980.4, launch_seconds=3e-6)))
    half = 4.302652729749464 * math.sqrt(7) * 1e-3 / math.sqrt(3)  # Student's t, standard deviation, processes
    assert found["s"] == 2e-3
    assert (found["low"], found["high"]) == pytest.approx((2e-3 - half, 2e-3 + half), rel=1e-5)
    assert (found["processes"], found["clock_mhz"], found["power_w"]) == (3, 1980.4, 300.2)
    assert found["launch_s"] == 3e-6
    alone = shown(measured(COPY, visits(1e-3)))
    assert "low" not in alone  # one process shows no spread
    assert shown(measured(COPY, Outcome("failed", "wrong"))) == {"state": "failed", "reason": "wrong"}


def test_a_history_is_in_columns() -> None:
    records = (
        record({COPY: visits(1.0, 1.0), PADDED: Outcome("na", "not here")}),
        record({COPY: Outcome("failed", "wrong"), PADDED: visits(2.0)}),
        record({COPY: visits(3.0), PADDED: visits(2.0)}),
    )  # fmt: skip
    found = data.histories({at: packed(each) for at, each in enumerate(records)})
    copy = found["transpose/copy"][COPY]
    assert copy == {"at": [0, 1, 2], "s": [1.0, None, 3.0], "low": [1.0, None, None], "high": [1.0, None, None],
                    "failed": {"1": "wrong"}}  # fmt: skip
    assert found["transpose/padded"][PADDED]["at"] == [1, 2]


def test_a_rung_that_a_machine_cannot_run_has_no_history() -> None:
    """As those of a GPU where there is none: History would open with one, and the page of the rung fail."""
    host = machine(record({COPY: visits(1.0), PADDED: Outcome("na", "no GPU"), PRODUCT: Outcome("failed", "wrong")}))
    writer = Kept()
    data.write_machine(host, Exact([], []), PROJECT, {}, writer, 0)
    listed = writer.contents["host/machine"]["history"]
    assert set(listed) == {"transpose/copy", "matmul/tiled_16"}
    assert {f"host/{name}" for (name,) in listed.values()} == {name for name in writer.contents if "history" in name}


def test_an_exact_figure_is_told_where_it_changes() -> None:
    row = "static.Transpose.track_registers", "transpose", "copy", "float32 sm_90"
    exact = Exact([row], [("copy", "float32", "sm_90")])
    tables, none = data.Tables(exact), packed(record({}))
    for at, value in enumerate((1.0, 1.0, math.nan, 2.0)):
        tables.add(at, np.array([True]), np.array([value]), none)
    tables.add(4, np.array([False]), np.array([math.nan]), none)  # it has no such series
    found = tables.tables["transpose"]
    assert found["at"] == [0, 1, 2, 3]
    runs = found["series"]["static.Transpose.track_registers"]["copy"]["float32 sm_90"]
    assert runs == [[0, 1.0], [2, None], [3, 2.0]]


def test_an_exact_figure_that_an_instrument_moved_says_so() -> None:
    """Another emulator, another compiler, and the same binary: none is a commit's doing. What a binary does is."""
    places = {"access": "float32 256x256", "static": "float32 sm_90"}
    series = {"access": "access.Transpose.track_moved", "static": "static.Transpose.track_registers"}
    for group, (first, second), why in (
        ("access", ({"emulator": "1"}, {"emulator": "2"}), "emulator 1 -> 2"),
        ("access", ({"harness": "1"}, {"harness": "2"}), "the emulator counts the same binary otherwise"),
        ("static", ({"packages": {"nvidia-cuda-nvrtc": "13.0"}}, {"packages": {"nvidia-cuda-nvrtc": "13.1"}}),
         "nvidia-cuda-nvrtc 13.0 -> 13.1"),
        ("access", ({"emulator": "1"}, {"emulator": "1", "machine": "m"}), ""),
    ):  # fmt: skip
        exact = Exact([(series[group], "transpose", "copy", places[group])], [("copy", *places[group].split())])
        key = f"transpose/copy {places[group]}" + (" counted" if group == "access" else "")
        tables = data.Tables(exact)
        for at, facts in enumerate((first, second)):
            binary = {"cubin_sha256": "one" if why.startswith("the emulator") else f"one {at}"}
            compiled = record({"transpose/copy float32 sm_90": visits(1.0, **binary)}, "transpose static")
            own = record({key: visits(1.0, **binary)}, f"transpose {group}", **facts)
            both = dataclasses.replace(own, facts=compiled.facts | own.facts, cells=compiled.cells | own.cells)
            tables.add(at, np.array([True]), np.array([at + 1.0]), packed(both))
        (run,) = tables.tables["transpose"]["series"][series[group]]["copy"].values()
        assert run == [[0, 1.0], [1, 2.0, why] if why else [1, 2.0]], why


def test_a_trend_is_of_the_cells_that_neighbors_share() -> None:
    trend = data.Trend()
    trend.add(0, packed(record({COPY: visits(1.0)})))
    trend.add(1, packed(record({COPY: visits(2.0), PADDED: visits(8.0)})))  # padded is new: only copy tells
    trend.add(2, packed(record({PADDED: visits(4.0)})))
    assert trend.told() == {"transpose gpu": [(0, 1.0), (1, 2.0), (2, 1.0)]}


def test_a_trend_begins_where_the_conditions_last_changed() -> None:
    """Another GPU is another machine: no line leads from one to the other."""
    trend = data.Trend()
    for at, (gpu, seconds) in enumerate((("A", 1.0), ("A", 2.0), ("B", 3.0), ("B", 6.0))):
        trend.add(at, packed(record({COPY: visits(seconds)}, nvml_uuid_sha256=gpu)))
    assert trend.told() == {"transpose gpu": [(2, 0.5), (3, 1.0)]}


def test_a_long_trend_is_thinned() -> None:
    trend = data.Trend()
    for at in range(3 * data.TREND):
        trend.add(at, packed(record({COPY: visits(1.0 + at)})))
    (points,) = trend.told().values()
    assert len(points) == data.TREND
    assert points[0] == (0, round(1 / (3 * data.TREND), 6))
    assert points[-1] == (3 * data.TREND - 1, 1.0)
    assert all(after[0] > before[0] for before, after in pairwise(points))


def test_conditions_are_told_where_they_change() -> None:
    drivers = ("580", "580", "590")
    turns = data.Turns()
    for at, driver in enumerate(drivers):
        turns.add(at, packed(record({COPY: visits(1.0)}, nvml_driver=driver)))
    runs = turns.turns["transpose gpu"]
    assert [(at, known["nvml_driver"]) for at, known in runs] == [(0, "580"), (2, "590")]


def test_a_machines_state_names_what_failed_and_what_was_limited() -> None:
    limited = visits(1.0, state={"temperature_c": 50})
    limited.measurements[0]["throttled"] = ["power"]
    odd = record({COPY: limited, PADDED: Outcome("failed", "wrong")}, nvml_driver="580")
    found = site_record.state(odd)
    assert (found["failed"], found["limited"], found["cells"], found["temperature_c"]) == ([PADDED], [COPY], 1, 50)
    counted = data.state(7, packed(odd))
    assert (counted["at"], counted["failed"], counted["limited"]) == (7, 1, 1)


# --- damaged records -----------------------------------------------------------------------------------------------

ODD: tuple[Any, ...] = (
    None, True, "text", "</script>", [], [1], {}, {"a": {}}, math.nan, math.inf, -1, 1e308, 10**400, "9" * 5000
)  # fmt: skip


def lines_with(place: tuple[str, ...], value: object) -> str:
    """A sidecar of one commit with an odd value at one place."""
    facts = {"gpu": "H200", "nvml_uuid_sha256": "1", "measured_at": "2026-01-01", "ceilings": {"copy_bytes_per_s": 1}}
    visit: dict[str, Any] = {"process": 0, "seconds": 1.0, "state": {"power_w": 1.0}, "canary_s": {"memory": 1.0}}
    cell: dict[str, Any] = {"record": "cell", "key": COPY, "state": "ok", "reason": "", "visits": [visit]}
    told = ({"record": "run", "facts": facts}, cell)
    where: dict[str, Any] = {
        "facts": facts, "visit": visit, "cell": cell, "state": visit["state"], "canary": visit["canary_s"]
    }  # fmt: skip
    where[place[0]][place[1]] = value
    return "".join(json.dumps({"group": "transpose gpu", **line}) + "\n" for line in told)


@pytest.mark.parametrize(
    "place",
    [("facts", "gpu"), ("facts", "measured_at"), ("facts", "ceilings"), ("facts", "packages"), ("facts", "nvml_driver"),
     ("visit", "seconds"), ("visit", "state"), ("visit", "throttled"), ("visit", "canary_s"), ("visit", "clock64_mhz"),
     ("cell", "key"), ("cell", "state"), ("cell", "reason"), ("cell", "visits"), ("state", "power_w"),
     ("canary", "memory")],
    ids=" ".join,
)  # fmt: skip
def test_an_odd_value_in_a_sidecar_costs_no_file(tmp_path: Path, place: tuple[str, ...]) -> None:
    path = tmp_path / "host" / "abc-env.facts.jsonl"
    path.parent.mkdir()
    for value in ODD:
        path.write_text(lines_with(place, value))
        host = machine(read(path), record({PADDED: visits(1.0)}))
        writer, cells = Kept(), dict[str, Any]()
        summary = data.write_machine(host, Exact([], []), PROJECT, cells, writer, 5)
        json.dumps([summary, cells], allow_nan=False)
        assert PADDED in writer.contents["host/at/1"]["cells"]


def test_each_machine_has_a_folder_of_its_own() -> None:
    taken: list[str] = []
    for name in ("a b", "a_b", "a_b", "../../etc", "..", "\u00fc/x", "nvidia-h200.x"):
        taken.append(machines.folder_of(name, taken))
    assert taken == ["a_b", "a_b-2", "a_b-3", "_.._etc", "_", "__x", "nvidia-h200.x"]


def test_noise_is_read_line_by_line(tmp_path: Path) -> None:
    assert noise_of(tmp_path) == {}
    (tmp_path / "noise.jsonl").write_text('{"key": "a", "cv": 0.1}\n{"key"\n[]\n{"key": "b", "cv": "x"}\n')
    assert noise_of(tmp_path) == {"a": 0.1}


# --- a published history -------------------------------------------------------------------------------------------


@pages_group
def test_the_files_say_what_was_recorded(recorded_site: Path) -> None:
    """Read as docs/data.md tells others to, and held against the sidecars."""
    folder = recorded_site / "data"
    site = json.loads((folder / "site.json").read_text())
    (host,) = site["machines"]
    newest = json.loads((folder / host["folder"] / f"at/{host['newest']}.json").read_text())
    commit = json.loads((folder / "commits.json").read_text())[str(host["newest"])]["hash"]
    (path,) = (ROOT / "results").glob(f"*/{commit[:8]}-*.facts.jsonl")
    recorded = {key: cell for key, cell in read(path).cells.items() if cell.group.split()[1] in ("gpu", "cpu")}
    assert len(newest["cells"]) == len(recorded) > 300
    for key, cell in recorded.items():
        if cell.seconds:
            assert newest["cells"][key]["s"] == pytest.approx(cell.median_s, rel=1e-5)
            assert newest["cells"][key]["low"] <= newest["cells"][key]["s"] <= newest["cells"][key]["high"]
    details = json.loads((folder / host["folder"] / "machine.json").read_text())
    count = sum(path.name.endswith(".facts.jsonl") for path in recorded_files())
    assert len(details["commits"]) == host["commits"] == count
    for rung, names in details["history"].items():
        for name in names:
            history = json.loads((folder / host["folder"] / f"{name}.json").read_text())
            assert all(key.startswith(f"{rung} ") for key in history["cells"])


@pages_group
def test_an_exact_figure_is_what_asv_recorded(recorded_site: Path) -> None:
    folder = recorded_site / "data"
    host = json.loads((folder / "site.json").read_text())["machines"][0]
    details = json.loads((folder / host["folder"] / "machine.json").read_text())
    table = json.loads((folder / host["folder"] / f"{details['exact']['transpose']}.json").read_text())
    commit = json.loads((folder / "commits.json").read_text())[str(host["newest"])]["hash"]
    (path,) = (ROOT / "results").glob(f"*/{commit[:8]}-*.json")
    name = "access.Transpose.track_shared_load_wavefronts"
    values, (rungs, operands) = json.loads(path.read_text())["results"][name][:2]
    recorded = values[rungs.index("'tiled'") * len(operands) + operands.index("'float32 256x256'")]
    assert recorded == 32.0  # of 32 banks one: the conflict that padding mends
    assert table["series"][name]["tiled"]["float32 256x256"][-1][1] == recorded


@pages_group
def test_the_documented_program_runs(recorded_site: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "data.md").read_text(), re.DOTALL)
    site = recorded_site.parent / "site"
    site.mkdir()
    (site / ".asv").symlink_to(recorded_site.parent)
    done = subprocess.run([sys.executable, "-c", program], cwd=site, capture_output=True, text=True, check=True)
    assert re.search(r"^transpose/padded float32 4096x4096 cold \d\.\d+e-05$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("remote", "page"),
    [("https://github.com/a/b.git", "https://github.com/a/b"), ("git@gitlab.com:a/b/c.git", "https://gitlab.com/a/b/c"),
     ("ssh://git@codeberg.org/a/b", "https://codeberg.org/a/b"), ("https://user:secret@github.com/a/b", "https://github.com/a/b"),
     ("https://example.org/a/b", ""), ("/srv/git/a.git", ""), ("javascript:alert(1)", "")],
)  # fmt: skip
def test_the_page_of_a_remote(tmp_path: Path, remote: str, page: str) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    conf: Any = type("Conf", (), {"repo": str(tmp_path)})
    assert pages.remote_page(conf) == ""
    subprocess.run(["git", "-C", tmp_path, "remote", "add", "origin", remote], check=True)
    assert pages.remote_page(conf) == page
