"""The tables: records as they are read, the ladder in the terminal and as Markdown, the figures of the papers."""

import dataclasses
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.project import PROJECT
from kernelwatch.commands import ladder
from kernelwatch.history import records
from kernelwatch.history.records import CellChange, Measured, Record
from kernelwatch.plan.problem import Kind
from kernelwatch.plan.project import Project
from kernelwatch.publish import record as site_record
from kernelwatch.report import rows, terminal, texts
from kernelwatch.report.markdown import markdown
from kernelwatch.report.rows import Row, reasons
from kernelwatch.run.outcome import Outcome
from kernelwatch.system.errors import UserError
from kernelwatch.timing.record import Measurement
from lab import figures

COPY_S, PADDED_S, NAIVE_S = 5e-5, 1e-4, 4e-4
BYTES = 2 * 4096 * 4096 * 4
DAMAGED = '{"group": "transpose gpu", "record": "cell", "key": "transpose/tiled float32 4096x4096 cold", "sta'


def visits(*seconds: float, throttled: tuple[str, ...] = ()) -> list[Measurement]:
    return [{"process": at, "seconds": one, "throttled": list(throttled)} for at, one in enumerate(seconds)]


def cell(key: str, state: str = "ok", reason: str = "", group: str = "transpose gpu", **more: Any) -> str:
    return json.dumps({"group": group, "record": "cell", "key": key, "state": state, "reason": reason} | more)


LINES = [
    json.dumps(
        {
            "group": "transpose gpu",
            "record": "run",
            "facts": {
                "gpu": "NVIDIA H200",
                "nvml_theoretical_bandwidth_bytes_per_s": 4.8143e12,
                "nvml_driver": "580.95.05",
                "packages": {"nvidia-cuda-nvrtc": "13.0.88"},
            },
        }
    ),
    json.dumps(
        {
            "group": "transpose cpu",
            "record": "run",
            "facts": {"cpu": "A CPU", "cores": [0, 1], "packages": {"numpy": "2.4.6"}},
        }
    ),
    cell("transpose/vector_copy float32 4096x4096 cold", visits=visits(COPY_S, COPY_S, COPY_S)),
    cell("transpose/memcpy float32 4096x4096 cold", visits=visits(0.8 * COPY_S)),
    cell("transpose/padded float32 4096x4096 cold", visits=visits(PADDED_S, 1.1 * PADDED_S, 1.2 * PADDED_S)),
    DAMAGED,
    cell(
        "transpose/naive_read float32 4096x4096 cold",
        visits=visits(NAIVE_S, NAIVE_S, throttled=("software power cap",)),
    ),
    cell(
        "transpose/naive_write float32 4096x4096 cold", "failed", "WrongOutput: transpose/naive_write [bold]", visits=[]
    ),
    cell("transpose/dynamic float32 4096x4096 cold", "na", "this commit has no rung transpose/dynamic", visits=[]),
    cell("transpose/copy float32 4096x4096 cold", "waiting", visits=[]),
    cell("transpose/padded float32 16384x16384 hot", "na", "its buffers do not fit: never hot", visits=[]),
    "",
    "[1, 2]",
    '{"record": "cell", "key": "transpose/x"}',
    cell("transpose/c float32 256x256 hot", group="transpose cpu", visits=visits(2e-6)),
]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A results folder: one machine with the record above, one with an older commit."""
    for machine, commit, date, lines in (
        ("nvidia-h200.x", "0123abcd", 2_000, LINES),
        ("no-gpu.x", "89abcdef", 1_000, LINES[1:2] + LINES[-1:]),
    ):
        folder = tmp_path / machine
        folder.mkdir()
        (folder / f"{commit}-checkout-py3.12.facts.jsonl").write_text("\n".join(lines) + "\n")
        (folder / f"{commit}-checkout-py3.12.json").write_text(json.dumps({"date": date}))
    return tmp_path


@pytest.fixture
def record(results: Path) -> Record:
    return records.read(records.sidecars(results)[-1])


def printed(record: Record, *ops: str, width: int = 200, **options: Any) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    terminal.show(record, PROJECT, console, list(ops) or ["vector_add", "transpose"], **options)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def table_row(text: str, *names: str) -> list[str]:
    """The cells of the line of a printed table that begins so."""
    for line in text.splitlines():
        parts = [part.strip() for part in re.split(r"[│┃|]", line)[1:-1]]
        if tuple(parts[: len(names)]) == names:
            return parts
    raise AssertionError(f"no row {names} in\n{text}")


def test_a_record_is_read_and_damaged_lines_left_out(record: Record) -> None:
    assert (record.machine, record.commit) == ("nvidia-h200.x", "0123abcd")
    assert set(record.facts) == {"transpose gpu", "transpose cpu"}
    assert len(record.cells) == 9
    assert "transpose/tiled float32 4096x4096 cold" not in record.cells
    assert record.cells["transpose/naive_read float32 4096x4096 cold"].limits == ("software power cap",)


def test_a_line_of_no_text_is_left_out(results: Path) -> None:
    path = records.sidecars(results)[-1]
    path.write_bytes(b"\xff\xfe broken\n" + path.read_bytes())
    assert len(records.read(path).cells) == 9


def test_the_newest_sidecar_is_last(results: Path) -> None:
    names = [path.name[:8] for path in records.sidecars(results)]
    assert names == ["89abcdef", "0123abcd"]
    assert [path.name[:8] for path in records.sidecars(results, "no-gpu.x")] == ["89abcdef"]
    for broken in ("cut sh", "[]", '{"date": null}'):
        (results / "nvidia-h200.x" / "0123abcd-checkout-py3.12.json").write_text(broken)
        assert [path.name[:8] for path in records.sidecars(results)] == ["0123abcd", "89abcdef"]  # no date: the oldest


def test_rates_and_shares(record: Record) -> None:
    shown = {row.rung: row for row in rows.ladder(record, PROJECT.op("transpose"), "gpu", (4096, 4096), "cold")}
    assert list(shown) == ["naive_read", "naive_write", "padded", "memcpy", "vector_copy"]
    assert shown["vector_copy"].rate == pytest.approx(BYTES / COPY_S)
    assert shown["vector_copy"].share == 1.0
    assert shown["padded"].rate == pytest.approx(BYTES / (1.1 * PADDED_S))
    assert shown["padded"].share == pytest.approx(COPY_S / (1.1 * PADDED_S))
    assert shown["memcpy"].share == pytest.approx(1.25)
    assert math.isnan(shown["naive_write"].rate)
    (cpu,) = rows.ladder(record, PROJECT.op("transpose"), "cpu", (256, 256), "hot")
    assert cpu.rate == pytest.approx(2 * 256 * 256 * 4 / 2e-6)
    assert math.isnan(cpu.share)


def test_a_sum_is_held_against_a_copy_by_its_bytes() -> None:
    cells = {
        f"vector_add/{rung} float32 65536 cold": records.measured(rung, Outcome("ok", "", visits(seconds)))
        for rung, seconds in (("elementwise", 3e-6), ("vector_copy", 2e-6))
    }
    shown = rows.ladder(Record("m", "c", {}, cells), PROJECT.op("vector_add"), "gpu", (65536,), "cold")
    assert [row.share for row in shown] == [pytest.approx(1.0), 1.0]


def test_a_share_is_of_the_vendors_rate_for_the_same_type() -> None:
    seconds = {"cublas float32": 1e-4, "tiled_32 float32": 5e-4, "cublas float64": 2e-4, "tiled_32 float64": 8e-4}
    cells = {
        f"matmul/{name} 512x512x512 cold": records.measured(name, Outcome("ok", "", visits(own)))
        for name, own in seconds.items()
    }

    def shares(type: str | None, cells: dict[str, Measured] = cells) -> dict[str, float]:
        shown = rows.ladder(Record("m", "c", {}, cells), PROJECT.op("matmul"), "gpu", (512, 512, 512), "cold", type)
        return {row.rung: row.share for row in shown}

    assert shares(None) == shares("float32") == {"tiled_32": pytest.approx(0.2), "cublas": 1.0}
    assert shares("float64") == {"tiled_32": pytest.approx(0.25), "cublas": 1.0}
    alone = {key: cell for key, cell in cells.items() if "cublas float64" not in key}
    assert math.isnan(shares("float64", alone)["tiled_32"])


KINDS = {  # of the ladder of the products: the rungs of each, and the vendor's, which is 100 %
    "matmul float32": ({"tiled_32": 5e-4, "cublas": 1e-4}, "cublas"),
    "matmul float16->float32": ({"wmma": 4e-5, "cublas_k_major": 2e-5}, ""),
    "matmul_tf32 float32": ({"tf32": 3e-5, "cublas_tf32": 1.5e-5}, "cublas_tf32"),
    "matmul float8_e4m3fn->bfloat16": ({"wgmma_fp8": 1e-5, "torch_fp8": 8e-6}, "torch_fp8"),
    "matmul float32 emulated on tensor cores": ({"bf16x6": 1e-5, "fp16x3": 7e-6}, "cublas"),
}


def test_a_ladder_compares_what_computes_the_same() -> None:
    """A product of fewer bits is no fast product of float32: it has a table of its own, and a line of its own if the
    vendor's was measured."""
    cells = {
        f"matmul/{rung} {title.split()[1]} 512x512x512 cold": seconds
        for title, (rungs, _) in KINDS.items()
        for rung, seconds in rungs.items()
    }
    record = Record(
        "m", "c", {}, {key: records.measured(key, Outcome("ok", "", visits(own))) for key, own in cells.items()}
    )
    (section,) = rows.sections(record, PROJECT, ["matmul"])
    found = {own.group.removesuffix(", cold, GPU"): own for own in section.by_kind()}
    assert list(found) == ["matmul float32", "matmul float16->float32", "matmul_tf32 float32", *list(KINDS)[3:]]
    for title, (rungs, line) in KINDS.items():
        shares = {row.rung: row.share for row in found[title].rows}
        usual, _ = KINDS["matmul float32"]  # whose line others may have, too
        wanted = {rung: (rungs | usual)[line] / seconds if line else math.nan for rung, seconds in rungs.items()}
        assert shares == pytest.approx(wanted, nan_ok=True)
    console = Console(file=io.StringIO(), width=200)
    terminal.show(record, PROJECT, console, ["matmul"])
    said = console.file.getvalue()  # type: ignore[attr-defined]
    for title in KINDS:
        assert f"{title} 512x512x512, cold, GPU\n" in re.sub(" +\n", "\n", said)
        assert f"**{title} 512x512x512, cold, GPU** (" in markdown(record, PROJECT, ["matmul"])
    assert "667" not in said  # the share of tf32 in the rate of the float32 product


def test_spread_and_the_minimum_detectable_change() -> None:
    """Three processes, 4 degrees of freedom: t is 4.6041 for 1 in 100 on two sides, 2.1318 for 19 out of 20."""
    three = Measured("k", "ok", "", (1.0, 1.1, 1.2), ())
    assert three.median_s == 1.1
    assert three.spread == pytest.approx(0.1 / 1.1)
    assert three.detectable == pytest.approx((4.604095 + 2.131847) * math.sqrt(2 / 3) * 0.1 / 1.1, rel=1e-6)
    six = Measured("k", "ok", "", (1.0, 1.01, 0.99, 1.0, 1.01, 0.99), ())
    spread = 0.01 * math.sqrt(4 / 5)
    assert six.detectable == pytest.approx((3.169273 + 1.812461) * math.sqrt(2 / 6) * spread, rel=1e-6)
    one = Measured("k", "ok", "", (1.0,), ())
    assert math.isnan(one.spread)
    assert math.isnan(one.detectable)


def test_the_table_in_the_terminal(record: Record) -> None:
    text = printed(record)
    assert "GPU: NVIDIA H200, 4814 GB/s theoretical, driver 580.95.05, NVRTC 13.0.88; commit " in text
    assert "CPU:" not in text  # the GPU was measured
    assert "transpose float32 4096x4096, cold, GPU" in text
    assert table_row(text, "padded") == ["padded", "110 us", "± 9.09 %", "1220", "45.5 %", "50.00 %"]
    assert table_row(text, "vector_copy") == ["vector_copy", "50 us", "± 0.00 %", "2684", "100.0 %", "0.00 %"]
    assert table_row(text, "memcpy") == ["memcpy", "40 us", "", "3355", "125.0 %", ""]
    assert table_row(text, "naive_read")[1] == "400 us (limited)"
    assert table_row(text, "naive_write") == ["naive_write", "failed", "", "", "", ""]
    assert "best copy measured: memcpy, 3355 GB/s" in text
    why = "failed: transpose/naive_write float32 4096x4096 cold: WrongOutput: transpose/naive_write [bold]"
    assert why in text
    assert "n/a: transpose/dynamic float32 4096x4096 cold: this commit has no rung transpose/dynamic" in text
    assert "never hot" not in text
    assert "tiled" not in text


def test_how_a_cell_was_timed_is_shown(record: Record) -> None:
    (one,) = visits(PADDED_S)
    key = "transpose/padded float32 4096x4096 cold"
    noted: list[Measurement] = [
        {**one, "timed_by": "events", "allocated_bytes": 512, "configurations": ["turn: BLOCK: 32"]},
        {**one, "throttled": ["power"], "configurations": ["turn: BLOCK: 64"]},
    ]
    cell = records.measured(key, Outcome("ok", "", noted), "transpose gpu")
    record = dataclasses.replace(record, cells=record.cells | {key: cell})
    text = printed(record)
    assert table_row(text, "padded")[1] == "100 us (limited, by events, allocates)"
    assert "padded: timed by events, with the host's part: it cannot be captured in a CUDA graph\n" in text
    assert "padded: allocates 512 bytes in each launch\n" in text
    assert "padded: autotuned, turn: BLOCK: 32\npadded: autotuned, turn: BLOCK: 64\n" in text
    assert site_record.snapshot(record)["cells"][key]["notes"] == list(cell.notes)
    assert len(cell.notes) == 4
    assert "(limited, by events, allocates)" in markdown(record, PROJECT, ["transpose"])


def test_the_cpus_table_is_for_those_who_ask(record: Record) -> None:
    text = printed(record, device="cpu")
    assert "CPU: A CPU, 2 cores, NumPy 2.4.6" in text
    assert table_row(text, "c") == ["c", "2 us", "", "262", ""]  # no copy of the GPU's to take a share of
    assert "GPU:" not in text
    only_cpu = dataclasses.replace(
        record, cells={key: cell for key, cell in record.cells.items() if "cpu" in cell.group}
    )
    assert table_row(printed(only_cpu), "c")[1] == "2 us"


def shapes_of(*names: str) -> Record:
    """Transposes of several sizes: each rung in its order, which is not that of the ladder, at twice the last time."""
    cells = {}
    for at, name in enumerate(names):
        rung, size = name.split()
        key = f"transpose/{rung} float32 {size}x{size} cold"
        limits = ("power",) if rung == "padded" else ()
        cells[key] = Measured(key, "ok", "", (1e-5 * 2**at, 1.02e-5 * 2**at), limits, "transpose gpu")
    return Record("m", "c", {"transpose gpu": {"gpu": "H200"}}, cells)


def test_all_shapes_are_in_one_table() -> None:
    record = shapes_of("vector_copy 256", "padded 256", "padded 1024", "naive_read 1024", "vector_copy 1024")
    text = printed(record)
    assert table_row(text, "rung") == ["rung", "256x256", "1024x1024"]
    assert re.findall(r"naive_read|padded|vector_copy │", text) == ["naive_read", "padded", "vector_copy │"]  # in order
    assert table_row(text, "naive_read") == ["naive_read", "", f"{8 * 2**20 / 80.8e-6 / 1e9:.3g}  200 %"]
    assert table_row(text, "padded")[1] == f"{8 * 2**16 / 20.2e-6 / 1e9:.3g}*   50 %"
    assert "transpose float32, cold, GPU: GB/s and share of vector_copy" in text
    assert "spread between processes: at most 1.40 %; *: under a clock or power limit" in text
    assert "; above 100 %: faster than vector_copy, which is no bound" in text
    detail = printed(record, shape=(1024, 1024))
    assert table_row(detail, "naive_read")[1:3] == ["80.8 us", "± 1.40 %"]
    assert "256x256" not in detail


def test_a_narrow_terminal_gets_several_tables() -> None:
    record = shapes_of(*(f"padded {size}" for size in (256, 1024, 4096, 16384)))
    text = printed(record, width=50)
    assert text.count("┃ rung") > 1
    assert max(map(len, text.splitlines())) <= 50
    assert text.count("spread between processes") == 1
    found = [line for line in text.splitlines() if "padded" in line]
    assert sum(len(re.findall(r"\*", line)) for line in found) == 4  # nothing is lost


def test_a_machine_is_named_by_a_part(results: Path) -> None:
    assert [path.parent.name for path in records.sidecars(results, "H200")] == ["nvidia-h200.x"]
    assert records.sidecars(results, "h100") == []


def test_a_reason_is_said_once() -> None:
    cells = [Measured(f"transpose/k{at}", "na", "no GPU here", (), ()) for at in range(3)]
    keys = [cell.key for cell in cells]
    assert reasons(cells, "na") == {"no GPU here": keys}
    other = Measured("matmul/k3", "na", "another op", (), ())
    record = Record("m", "c", {}, {one.key: one for one in (*cells, other)})
    assert printed(record) == "n/a: 3 cells (transpose/k0, ...): no GPU here\n"


def test_a_change_that_is_lost_in_noise() -> None:
    wild = Measured("k", "ok", "", (1.0, 3.0), ())
    assert wild.detectable > 1
    assert texts.row_texts(Row("c", "", wild, 1e9, math.nan, Kind("float32")), 5)[-1] == "> 100 %"


def cell_of(*seconds: float, key: str = "k") -> Measured:
    return Measured(key, "ok", "", seconds, (), "transpose gpu")


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ((1.0, 1.001, 0.999), (1.02, 1.021, 1.019), "slower"),
        ((1.02, 1.021, 1.019), (1.0, 1.001, 0.999), "faster"),
        ((1.0, 1.001, 0.999), (1.001, 1.0, 1.002), ""),
        ((1.0, 1.2, 0.8), (1.1, 1.3, 0.9), ""),  # lost in the noise of both
        ((1.0, 1.001, 0.999), (1.02, 1.3, 0.9), ""),  # in the noise of one
        ((1.0,), (2.0,), ""),  # one process a side: nothing is known of the noise
    ],
)
def test_a_change_shows_beyond_the_noise(before: tuple[float, ...], after: tuple[float, ...], verdict: str) -> None:
    assert CellChange.between(cell_of(*before), cell_of(*after)).verdict == verdict


def changes(before: Record, after: Record, sizes: dict[str, float] | None = None) -> str:
    console = Console(width=200, file=io.StringIO(), color_system=None)
    terminal.show_changes(before, after, console, sizes)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_what_changed_since_another_commit() -> None:
    def record_of(commit: str, a: float, b: float, uuid: str) -> Record:
        cells = {key: cell_of(at, at * 1.001, at * 0.999, key=key) for key, at in (("a", a), ("b", b))}
        return Record("m", commit, {"transpose gpu": {"nvml_uuid_sha256": uuid}}, cells)

    before = record_of("01234567", 1.0, 1.0, "1")
    said = changes(before, record_of("89abcdef", 1.02, 1.0, "1")).splitlines()
    assert said[0] == "since 01234567: 1 of 2 cells changed by more than two runs detect"
    assert re.fullmatch(r"  a: \+2\.00 %, slower \(two runs detect 0\.\d\d %\)", said[1])
    assert len(said) == 2
    (_, event) = changes(before, record_of("89abcdef", 1.02, 1.0, "1"), {"a": 0.0193}).splitlines()
    assert re.fullmatch(r"  a: \+1\.93 %, slower \(an event; two runs detect 0\.\d\d %\)", event)
    other = changes(before, record_of("89abcdef", 1.02, 1.0, "2"))
    assert other == (
        "since 01234567: transpose gpu not compared: another GPU, CPU, driver, compiler, package or harness\n"
    )


def test_a_new_choice_of_an_autotuner_is_said() -> None:
    def record_of(commit: str, *chosen: str) -> Record:
        cell = dataclasses.replace(cell_of(1.0, 1.1), measurements=({"configurations": list(chosen)},))
        return Record("m", commit, {"transpose gpu": {}}, {"k": cell})

    before = record_of("01234567", "turn: BLOCK: 32")
    said = changes(before, record_of("89abcdef", "turn: BLOCK: 64"))
    assert said.splitlines()[1] == "  k: autotuned anew: turn: BLOCK: 32 -> turn: BLOCK: 64"
    assert "autotuned" not in changes(before, record_of("89abcdef", "turn: BLOCK: 32"))
    assert "turn: BLOCK: 32 -> nothing" in changes(before, record_of("89abcdef"))
    both = record_of("89abcdef", "turn: BLOCK: 32", "turn: BLOCK: 64")
    assert "autotuned" not in changes(both, record_of("fedcba98", "turn: BLOCK: 64", "turn: BLOCK: 32"))


def test_the_nearest_ancestor_with_results(results: Path) -> None:
    path = results / "nvidia-h200.x" / "0123abcd-checkout-py3.12.facts.jsonl"
    older = path.with_name("deadbeef-checkout-py3.12.facts.jsonl")
    assert records.before(path, ["f" * 40, "deadbeef" + "0" * 32]) is None
    older.touch()
    path.with_name("f" * 8 + "-virtualenv-py3.12.facts.jsonl").touch()  # another environment
    assert records.before(path, ["f" * 40, "deadbeef" + "0" * 32]) == older


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.35e-6, "1.35 us"), (9.9e-7, "990 ns"), (0.0123, "12.3 ms"), (2.0, "2 s"), (1e-3, "1 ms"), (1e-6, "1 us")],
)
def test_times_as_people_read_them(seconds: float, text: str) -> None:
    assert texts.time_text(seconds) == text


def test_the_table_as_markdown(record: Record) -> None:
    text = markdown(record, PROJECT, ["transpose"], [(4096, 4096)])
    lines = text.splitlines()
    who = "NVIDIA H200, 4814 GB/s theoretical, driver 580.95.05, NVRTC 13.0.88"
    assert lines[:2] == [f"**transpose float32 4096x4096, cold, GPU** ({who}; commit 0123abcd)", ""]
    assert lines[2] == "| rung | time | spread | GB/s | of vector_copy | detectable, two runs | what it does |"
    assert lines[3].count("|") == lines[2].count("|")
    assert "| memcpy | 40 us |  | 3355 | 125.0 % |  | reference line |" in lines
    padded = table_row(text, "padded")
    assert padded[:-1] == ["padded", "110 us", "± 9.09 %", "1220", "45.5 %", "50.00 %"]
    assert padded[-1] == "the same tile with one spare column: no bank conflicts"
    assert lines[-1] == "best copy measured: memcpy, 3355 GB/s"
    assert "256x256" not in text


def test_a_block_is_written_between_its_marks(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    start, end = figures.marks("ladder")
    path.write_text(f"before\n{start}\nold\n{end}\nafter\n")
    figures.write_block(path, "ladder", "| new |")
    once = path.read_text()
    assert once == f"before\n{start}\n\n| new |\n\n{end}\nafter\n"
    figures.write_block(path, "ladder", "| new |")
    assert path.read_text() == once


BEGIN, END = figures.marks("ladder")


@pytest.mark.parametrize("text", ["nothing\n", f"{BEGIN}\n", f"{END}\n{BEGIN}\n"])
def test_a_file_without_the_marks_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "README.md"
    path.write_text(text)
    with pytest.raises(SystemExit, match=r"README\.md: no place for ladder; put <!-- ladder: .* where it belongs"):
        figures.write_block(path, "ladder", "new")
    assert path.read_text() == text


@pytest.fixture
def elsewhere(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """This project, with those results."""
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "asv.conf.json").write_text(json.dumps({"results_dir": str(results)}))
    return dataclasses.replace(PROJECT, here=folder / "benchmarks" / "project.py")


def test_ladder_prints_what_is_asked_for(elsewhere: Project, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*arguments: str) -> str:
        assert ladder.main(elsewhere, "scripts/ladder", list(arguments)) == 0
        return capsys.readouterr().out

    assert "commit 0123abcd" in said("transpose", "--markdown")
    assert "commit 89abcdef" in said("--markdown", "--machine", "no-gpu.x")
    assert "commit 89abcdef" in said("--markdown", "--commit", "89ab")
    assert "transpose float32 4096x4096, cold, GPU" in said()
    none = f"nothing recorded for this under {elsewhere.results}, which has no-gpu.x, nvidia-h200.x; the command bench"
    with pytest.raises(UserError, match=re.escape(none)):
        ladder.main(elsewhere, "scripts/ladder", ["--commit", "ffff"])
    with pytest.raises(SystemExit):  # of what a shell leaves of float16->float32
        ladder.main(elsewhere, "scripts/ladder", ["matmul", "--type", "float16-"])
    assert "scripts/ladder: error: no type float16-; there are " in (error := capsys.readouterr().err)
    assert "(in quotes: '>' is the shell's)" in error
    with pytest.raises(UserError, match=f"no op nonsense; there are {', '.join(PROJECT.ops)}"):
        ladder.main(elsewhere, "scripts/ladder", ["nonsense"])


def test_an_op_without_a_rung_has_no_rows(elsewhere: Project, results: Path) -> None:
    """As an op that the description has, in the checkout of a commit whose ladder does not have it yet."""
    newest = records.read(results / "nvidia-h200.x" / "0123abcd-checkout-py3.12.facts.jsonl")
    assert rows.sections(newest, elsewhere, ["transpose"], None)
    bare = dataclasses.replace(elsewhere.op("transpose"), rungs=())
    others = tuple(problem for problem in elsewhere.problems if problem.name != "transpose")
    assert rows.sections(newest, dataclasses.replace(elsewhere, problems=(bare, *others)), ["transpose"], None) == []


def test_the_ladder_of_an_op_that_the_newest_record_lacks(
    elsewhere: Project, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = results / "nvidia-h200.x" / "0123abcd-checkout-py3.12.facts.jsonl"
    newer = path.with_name("fedcba98-checkout-py3.12.facts.jsonl")
    newer.write_text(path.read_text().replace("transpose", "vector_add"))
    newer.with_name("fedcba98-checkout-py3.12.json").write_text(json.dumps({"date": 10**14}))
    for ops in (["transpose"], ["matmul", "transpose"]):
        assert ladder.main(elsewhere, "scripts/ladder", [*ops, "--markdown"]) == 0
        said = capsys.readouterr()
        assert "commit 0123abcd" in said.out
        assert f"note: {', '.join(ops)} was last timed at 0123abcd; there are newer records without it" in said.err
    assert ladder.main(elsewhere, "scripts/ladder", []) == 0
    others = ", ".join(op for op in PROJECT.ops if op != "vector_add")
    lacks = f"{others} was timed at fedcba98 on nvidia-h200.x; name an op to see the newest record in which"
    assert lacks in capsys.readouterr().err
    assert ladder.main(elsewhere, "scripts/ladder", ["matmul"]) == 0  # never timed
    assert "note: no cell of matmul was timed at fedcba98 on nvidia-h200.x" in capsys.readouterr().err


def test_the_ladder_of_a_device(elsewhere: Project, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the newest record in which it was timed; Markdown, too, has the tables of this device alone."""
    path = results / "nvidia-h200.x" / "0123abcd-checkout-py3.12.facts.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    newer = path.with_name("fedcba98-checkout-py3.12.facts.jsonl")
    newer.write_text("".join(line for line in lines if '"transpose cpu"' not in line))
    newer.with_name("fedcba98-checkout-py3.12.json").write_text(json.dumps({"date": 10**14}))
    for option in ([], ["--markdown"]):
        for device, commit, other in (("cpu", "0123abcd", "GPU"), ("gpu", "fedcba98", "CPU")):
            assert ladder.main(elsewhere, "scripts/ladder", ["--device", device, *option]) == 0
            said = capsys.readouterr()
            tables = " ".join(said.out.split())  # a narrow terminal breaks lines
            assert f"commit {commit}" in tables
            assert f", {device.upper()}" in tables
            assert f", {other}" not in tables
            assert ("note: some op was last timed on the CPU at 0123abcd;" in said.err) == (device == "cpu")
    assert ladder.main(elsewhere, "scripts/ladder", ["--device", "cpu", "--commit", "fedc"]) == 0
    lacks = f"{', '.join(op for op in PROJECT.ops if op != 'vector_add')} was timed on the CPU at fedcba98"
    assert f"{lacks} on nvidia-h200.x" in capsys.readouterr().err


FIGURES: Measurement = {
    "process": 0, "registers": 28, "shared_bytes": 4224, "spill_load_bytes": 8, "spill_store_bytes": 4,
    "occupancy_percent": 100 * 2 / 3, "instructions": 148,
    "mix": {"global": 8, "shared": 9, "fma": 1, "tensor": 2, "control": 13, "other": 115},
}  # fmt: skip
ROW = ["28", "4224", "12", "66.7 %", "148", "8", "9", "1", "2", "13", "115"]


@pytest.fixture
def compiled(elsewhere: Project, results: Path) -> Project:
    """Those results, and an older commit whose transposes were compiled."""
    lacking: Measurement = {"process": 0, "registers": 14, "shared_bytes": 0}  # no nvdisasm, no occupancy calculator
    said = [
        json.dumps(
            {"group": "transpose static", "record": "run", "facts": {"packages": {"nvidia-cuda-nvrtc": "13.0"}}}
        ),
        cell("transpose/padded float32 sm_90", group="transpose static", visits=[FIGURES]),
        cell("transpose/padded float32 sm_75", group="transpose static", visits=[FIGURES | {"registers": 31}]),
        cell("transpose/padded uint8 sm_90", group="transpose static", visits=[FIGURES | {"registers": 9}]),
        cell("transpose/dynamic float32 sm_90", group="transpose static", visits=[lacking]),
        cell("transpose/tiled float32 sm_90", "failed", "NVRTC: expected a ;", group="transpose static", visits=[]),
    ]
    path = results / "nvidia-h200.x" / "0000aaaa-checkout-py3.12.facts.jsonl"
    path.write_text("\n".join(said))
    path.with_name("0000aaaa-checkout-py3.12.json").write_text(json.dumps({"date": 1}))
    return elsewhere


def test_what_rungs_compile_to(
    compiled: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert ladder.main(compiled, "scripts/ladder", ["--arch", "sm_90", "transpose", "vector_add"]) == 0
    told = capsys.readouterr()
    by_rung = {
        line.split()[1]: re.split(r" *│ *", line)[2:-1] for line in told.out.splitlines() if line.startswith("│")
    }
    assert by_rung == {"padded": ROW, "dynamic": ["14", "0", *[""] * 9]}
    assert "transpose; compiled for sm_90; nvidia-cuda-nvrtc 13.0" in told.out
    assert "failed: transpose/tiled float32 sm_90: NVRTC: expected a ;" in told.out
    assert "note: transpose, vector_add was last compiled at 0000aaaa; there are newer records without it" in told.err
    assert "note: vector_add was not compiled for sm_90 at 0000aaaa on nvidia-h200.x" in told.err


@pytest.mark.parametrize(("options", "registers"), [(["sm_75"], "31"), (["sm_90", "--type", "uint8"], "9")])
def test_what_one_rung_compiles_to_as_markdown(
    compiled: Project, options: list[str], registers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ladder.main(compiled, "scripts/ladder", ["transpose", "--markdown", "--arch", *options]) == 0
    told = capsys.readouterr().out
    assert f"| padded | {registers} | {' | '.join(ROW[1:])} |" in told.splitlines()
    assert "(commit 0000aaaa)" in told
    with pytest.raises(SystemExit):
        ladder.main(compiled, "scripts/ladder", ["transpose", "--arch", *options, "--device", "gpu"])
    assert "--arch prints compile-time figures, which have no --device, no --shape" in capsys.readouterr().err


def test_a_narrow_terminal_has_no_classes_of_instructions(
    compiled: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert ladder.main(compiled, "scripts/ladder", ["--arch", "sm_90"]) == 0
    told = capsys.readouterr().out
    assert "instructions by class: in a wider terminal, or with --markdown" in told
    assert "control" not in told
    assert "…" not in told
    assert max(map(len, told.splitlines())) <= 80
