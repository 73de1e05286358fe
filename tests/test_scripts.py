"""The scripts: the environment they make, the tables they draw, scripts/bench from end to end on a small history."""

import dataclasses
import hashlib
import io
import json
import math
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import gpukernels
from benchmarks._gpu import LOW_CLOCK
from scripts import _bench, _counters, _environment, _history, _papers, _tables

ROOT = Path(__file__).resolve().parents[1]

# --- the environment -----------------------------------------------------------------------------------------------


@pytest.fixture
def linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


def test_requirements_are_what_pyproject_pins() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert _environment.requirements() == project["dependencies"]
    assert _environment.requirements("bench", None, "test") == [
        *project["dependencies"],
        *extras["bench"],
        *extras["test"],
    ]
    assert _environment.direct("worker", "dependencies") == [*extras["worker"], *project["dependencies"]]
    for extra in ("cuda12", "cuda13", "gpu12", "gpu13", "sass", "worker", "bench", "test"):
        assert all(re.fullmatch(r"[A-Za-z0-9_-]+==[0-9.]+", line) for line in extras[extra]), extra


@pytest.mark.usefixtures("linux")
@pytest.mark.parametrize(
    ("version", "extra", "said"),
    [
        (0, "cuda13", ""),  # no driver: the newest compiles as well
        (13000, "cuda13", ""),
        (13010, "cuda13", ""),
        (12090, "cuda12", ""),
        (12000, "cuda12", ""),
        (11080, "cuda13", "the GPU's driver supports CUDA 11.8; CuPy needs 12.0 or newer. Update the driver"),
    ],
)
def test_the_cuda_that_fits_the_driver(capsys: pytest.CaptureFixture[str], version: int, extra: str, said: str) -> None:
    assert _environment.cuda_extra(version) == extra
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert bool(err) == bool(said)


def test_no_cuda_where_there_are_no_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert _environment.cuda_extra(0) is None
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert _environment.cuda_extra(13000) is None


def test_what_is_missing_is_named() -> None:
    import importlib.metadata

    asv, numpy = (importlib.metadata.version(name) for name in ("asv", "numpy"))
    assert _environment.missing([f"asv=={asv}", "numpy>=2.2,<3", "rich==0.0.1"]) == []  # rich may be another version
    wrong = ["asv==0.0.1", f"numpy=={numpy}", "gpukernels-no-such-thing==1.0", "asv_runner==0.0.2"]
    runner = importlib.metadata.version("asv_runner")
    assert _environment.missing(wrong) == [
        f"asv==0.0.1 (found {asv})",
        "gpukernels-no-such-thing==1.0",
        f"asv_runner==0.0.2 (found {runner})",
    ]


def test_an_interpreter_that_is_given_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_environment, "HOME", tmp_path / "venv")
    monkeypatch.setenv("GPUKERNELS_PYTHON", sys.executable)
    assert _environment.ensure() == sys.executable
    monkeypatch.setenv("GPUKERNELS_PYTHON", "/some/where/python")
    why = "GPUKERNELS_PYTHON=/some/where/python: no such interpreter; give the path of one"
    with pytest.raises(SystemExit, match=why):
        _environment.ensure()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[Path]]:
    """An environment folder that is empty, and a pip that never gets through; what it was asked for."""
    asked: list[list[Path]] = []

    def pip(python: Path | str, wanted: list[Path]) -> str:
        asked.append(wanted)
        return "first line\nno network"

    monkeypatch.delenv("GPUKERNELS_PYTHON", raising=False)
    monkeypatch.setattr(_environment, "HOME", tmp_path / "venv")
    monkeypatch.setattr(_environment, "_pip", pip)
    monkeypatch.setattr(venv.EnvBuilder, "create", lambda self, where: Path(where).mkdir(exist_ok=True))
    monkeypatch.setattr(_environment, "driver_cuda", lambda: 0)
    return asked


def test_without_pip_the_interpreter_at_hand_will_do(
    no_pip: list[list[Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _environment.ensure() == sys.executable
    assert no_pip == [_environment.locks("tools", _environment.cuda_extra(0))]
    assert "pip could not install (no network); going on with" in capsys.readouterr().err


def test_without_pip_and_without_what_is_needed_it_ends(
    no_pip: list[list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_environment, "missing", lambda wanted: ["asv==0.6.6", "scipy==1.17.1"])
    with pytest.raises(SystemExit, match=r"no environment\. pip says: first line") as ended:
        _environment.ensure()
    assert "it lacks asv==0.6.6, scipy==1.17.1." in str(ended.value)
    assert "GPUKERNELS_PYTHON" in str(ended.value)


def test_an_environment_is_made_once(
    no_pip: list[list[Path]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def pip(python: Path | str, wanted: list[Path]) -> str:
        no_pip.append(wanted)
        return ""

    monkeypatch.setattr(_environment, "_pip", pip)
    made = _environment.ensure()
    assert Path(made).parents[1] == _environment.HOME
    assert _environment.ensure() == made
    assert len(no_pip) == 1
    changed = shutil.copytree(_environment.LOCK_FOLDER, tmp_path / "requirements")
    monkeypatch.setattr(_environment, "LOCK_FOLDER", changed)
    assert _environment.ensure() == made  # it lies elsewhere, and says the same
    assert len(no_pip) == 1
    with (changed / "tools.txt").open("a") as file:
        file.write("numpy==9\n")
    assert _environment.ensure() == made
    assert no_pip[1:] == [_environment.locks("tools", _environment.cuda_extra())]
    assert capsys.readouterr().err.count("installing what requirements/ locks into venv/") == 2


def test_pip_installs_only_what_has_a_hash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "nothing-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("nothing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: nothing\nVersion: 1.0\n")
        wheel.writestr("nothing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("nothing-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "target"))
    locked = tmp_path / "locked.txt"
    locked.write_text("nothing==1.0\n")
    assert "hash" in _environment._pip(sys.executable, [locked])
    digest = hashlib.sha256((tmp_path / "nothing-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    locked.write_text(f"nothing==1.0 --hash=sha256:{digest}\n")
    assert _environment._pip(sys.executable, [locked]) == ""


@pytest.mark.parametrize("works", [True, False])
def test_an_environment_that_works_is_kept_where_pip_fails(
    no_pip: list[list[Path]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], works: bool
) -> None:
    home = _environment.HOME
    home.mkdir()
    (home / "gpukernels.stamp").write_text("of another day")
    (home / "kept").touch()
    monkeypatch.setattr(_environment, "_works", lambda python: works)
    found = Path(_environment.ensure())
    assert (found.parents[1] == home) is works
    assert works or str(found) == sys.executable
    assert sorted(path.name for path in home.iterdir()) == ["gpukernels.stamp", "kept"]
    assert [path.name for path in home.parent.iterdir()] == ["venv"]
    assert "pip could not install (no network); going on with" in capsys.readouterr().err


def test_an_environment_works_with_the_pinned_asv(tmp_path: Path) -> None:
    assert _environment._works(Path(sys.executable))
    assert not _environment._works(tmp_path / "python")


def test_the_program_does_one_thing() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "_environment.py"), "remove"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "usage: _environment.py install\n")


# --- a record by hand ----------------------------------------------------------------------------------------------

COPY_S, PADDED_S, NAIVE_S = 5e-5, 1e-4, 4e-4
BYTES = 2 * 4096 * 4096 * 4
DAMAGED = '{"group": "transpose gpu", "record": "cell", "key": "transpose/tiled float32 4096x4096 cold", "sta'


def visits(*seconds: float, throttled: tuple[str, ...] = ()) -> list[dict[str, Any]]:
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
def record(results: Path) -> _history.Record:
    return _history.read(_history.sidecars(results)[-1])


def printed(record: _history.Record, *ops: str) -> str:
    console = Console(width=200, file=io.StringIO(), color_system=None)
    _tables.show(record, console, list(ops) or ["vector_add", "transpose"])
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def table_row(text: str, *names: str) -> list[str]:
    """The cells of the line of a printed table that begins so."""
    for line in text.splitlines():
        parts = [part.strip() for part in re.split(r"[│┃|]", line)[1:-1]]
        if tuple(parts[: len(names)]) == names:
            return parts
    raise AssertionError(f"no row {names} in\n{text}")


def test_a_record_is_read_and_damaged_lines_left_out(record: _history.Record) -> None:
    assert (record.machine, record.commit) == ("nvidia-h200.x", "0123abcd")
    assert set(record.facts) == {"transpose gpu", "transpose cpu"}
    assert len(record.cells) == 9
    assert "transpose/tiled float32 4096x4096 cold" not in record.cells
    assert record.cells["transpose/naive_read float32 4096x4096 cold"].throttled == ("software power cap",)


def test_a_line_of_no_text_is_left_out(results: Path) -> None:
    path = _history.sidecars(results)[-1]
    path.write_bytes(b"\xff\xfe broken\n" + path.read_bytes())
    assert len(_history.read(path).cells) == 9


def test_the_newest_sidecar_is_last(results: Path) -> None:
    names = [path.name[:8] for path in _history.sidecars(results)]
    assert names == ["89abcdef", "0123abcd"]
    assert [path.name[:8] for path in _history.sidecars(results, "no-gpu.x")] == ["89abcdef"]
    (results / "nvidia-h200.x" / "0123abcd-checkout-py3.12.json").write_text("cut sh")
    assert [path.name[:8] for path in _history.sidecars(results)] == ["0123abcd", "89abcdef"]  # no date is the oldest


def test_rates_and_shares(record: _history.Record) -> None:
    rows = {row.rung: row for row in _history.ladder(record, "transpose", "gpu", (4096, 4096), "cold")}
    assert list(rows) == ["naive_read", "naive_write", "padded", "memcpy", "vector_copy"]
    assert rows["vector_copy"].rate == pytest.approx(BYTES / COPY_S)
    assert rows["vector_copy"].share == 1.0
    assert rows["padded"].rate == pytest.approx(BYTES / (1.1 * PADDED_S))
    assert rows["padded"].share == pytest.approx(COPY_S / (1.1 * PADDED_S))
    assert rows["memcpy"].share == pytest.approx(1.25)
    assert math.isnan(rows["naive_write"].rate)
    (cpu,) = _history.ladder(record, "transpose", "cpu", (256, 256), "hot")
    assert cpu.rate == pytest.approx(2 * 256 * 256 * 4 / 2e-6)
    assert math.isnan(cpu.share)


def test_a_sum_is_held_against_a_copy_by_its_bytes() -> None:
    cells = {
        f"vector_add/{rung} float32 65536 cold": _history.measured(rung, json.loads(cell("k", visits=visits(seconds))))
        for rung, seconds in (("elementwise", 3e-6), ("vector_copy", 2e-6))
    }
    rows = _history.ladder(_history.Record("m", "c", {}, cells), "vector_add", "gpu", (65536,), "cold")
    assert [row.share for row in rows] == [pytest.approx(1.0), 1.0]


def test_spread_and_the_smallest_change() -> None:
    """Three processes, 4 degrees of freedom: t is 4.6041 for 1 in 100 on two sides, 2.1318 for 19 out of 20."""
    three = _history.Measured("k", "ok", "", (1.0, 1.1, 1.2), ())
    assert three.median_s == 1.1
    assert three.spread == pytest.approx(0.1 / 1.1)
    assert three.smallest_change == pytest.approx((4.604095 + 2.131847) * math.sqrt(2 / 3) * 0.1 / 1.1, rel=1e-6)
    six = _history.Measured("k", "ok", "", (1.0, 1.01, 0.99, 1.0, 1.01, 0.99), ())
    spread = 0.01 * math.sqrt(4 / 5)
    assert six.smallest_change == pytest.approx((3.169273 + 1.812461) * math.sqrt(2 / 6) * spread, rel=1e-6)
    one = _history.Measured("k", "ok", "", (1.0,), ())
    assert math.isnan(one.spread)
    assert math.isnan(one.smallest_change)


def test_the_table_in_the_terminal(record: _history.Record) -> None:
    text = printed(record)
    assert "GPU: NVIDIA H200, 4814 GB/s theoretical, driver 580.95.05, NVRTC 13.0.88" in text
    assert "CPU: A CPU, 2 cores, NumPy 2.4.6" in text
    assert "transpose float32 4096x4096, cold, GPU" in text
    assert table_row(text, "padded") == ["padded", "110 us", "± 9.09 %", "1220", "45.5 %", "50.00 %"]
    assert table_row(text, "vector_copy") == ["vector_copy", "50 us", "± 0.00 %", "2684", "100.0 %", "0.00 %"]
    assert table_row(text, "memcpy") == ["memcpy", "40 us", "", "3355", "125.0 %", ""]
    assert table_row(text, "naive_read")[1] == "400 us (throttled)"
    assert table_row(text, "naive_write") == ["naive_write", "failed", "", "", "", ""]
    assert table_row(text, "c") == ["c", "2 us", "", "262", ""]  # no copy of the GPU's to take a share of
    assert "best copy: memcpy, 3355 GB/s" in text
    why = "failed: transpose/naive_write float32 4096x4096 cold: WrongOutput: transpose/naive_write [bold]"
    assert why in text
    assert "n/a: transpose/dynamic float32 4096x4096 cold: this commit has no rung transpose/dynamic" in text
    assert "never hot" not in text
    assert "tiled" not in text


def test_a_reason_is_said_once() -> None:
    cells = [_history.Measured(f"k{at}", "na", "no GPU here", (), ()) for at in range(3)]
    assert _history.reasons(cells, "na") == {"no GPU here": ["k0", "k1", "k2"]}
    assert printed(_history.Record("m", "c", {}, {one.key: one for one in cells})) == (
        "n/a: 3 cells (k0, ...): no GPU here\n"
    )


def test_a_change_that_is_lost_in_noise() -> None:
    wild = _history.Measured("k", "ok", "", (1.0, 3.0), ())
    assert wild.smallest_change > 1
    assert _tables.cells_of(_history.Row("c", "", wild, 1e9, math.nan), 5)[-1] == "> 100 %"


def cell_of(*seconds: float, key: str = "k") -> _history.Measured:
    return _history.Measured(key, "ok", "", seconds, (), "transpose gpu")


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
    assert _history.Change.between(cell_of(*before), cell_of(*after)).verdict == verdict


def changes(before: _history.Record, after: _history.Record) -> str:
    console = Console(width=200, file=io.StringIO(), color_system=None)
    _tables.show_changes(before, after, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_what_changed_since_another_commit() -> None:
    def record_of(commit: str, a: float, b: float, **facts: str) -> _history.Record:
        cells = {key: cell_of(at, at * 1.001, at * 0.999, key=key) for key, at in (("a", a), ("b", b))}
        return _history.Record("m", commit, {"transpose gpu": facts}, cells)

    before = record_of("01234567", 1.0, 1.0, nvml_uuid_sha256="1")
    said = changes(before, record_of("89abcdef", 1.02, 1.0, nvml_uuid_sha256="1")).splitlines()
    assert said[0] == "since 01234567: 1 of 2 cells changed by more than would show"
    assert re.fullmatch(r"  a: \+2\.00 %, slower \(would show 0\.\d\d %\)", said[1])
    assert len(said) == 2
    other = changes(before, record_of("89abcdef", 1.02, 1.0, nvml_uuid_sha256="2"))
    assert other == (
        "since 01234567: transpose gpu not compared: another GPU, CPU, driver, compiler, package or harness\n"
    )


def test_the_nearest_ancestor_with_results(results: Path) -> None:
    path = results / "nvidia-h200.x" / "0123abcd-checkout-py3.12.facts.jsonl"
    older = path.with_name("deadbeef-checkout-py3.12.facts.jsonl")
    assert _history.before(path, ["f" * 40, "deadbeef" + "0" * 32]) is None
    older.touch()
    path.with_name("f" * 8 + "-virtualenv-py3.12.facts.jsonl").touch()  # another environment
    assert _history.before(path, ["f" * 40, "deadbeef" + "0" * 32]) == older


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.35e-6, "1.35 us"), (9.9e-7, "990 ns"), (0.0123, "12.3 ms"), (2.0, "2 s"), (1e-3, "1 ms"), (1e-6, "1 us")],
)
def test_times_as_people_read_them(seconds: float, text: str) -> None:
    assert _tables.time_text(seconds) == text


def test_the_table_as_markdown(record: _history.Record) -> None:
    text = _tables.markdown(record, ["transpose"], [(4096, 4096)])
    lines = text.splitlines()
    who = "NVIDIA H200, 4814 GB/s theoretical, driver 580.95.05, NVRTC 13.0.88"
    assert lines[:2] == [f"**transpose float32 4096x4096, cold, GPU** ({who}; commit 0123abcd)", ""]
    assert lines[2] == "| rung | time | spread | GB/s | of vector_copy | would show | what it does |"
    assert lines[3].count("|") == lines[2].count("|")
    assert "| memcpy | 40 us |  | 3355 | 125.0 % |  | reference line |" in lines
    padded = table_row(text, "padded")
    assert padded[:-1] == ["padded", "110 us", "± 9.09 %", "1220", "45.5 %", "50.00 %"]
    assert padded[-1] == "the same tile with one spare column: no bank conflicts"
    assert lines[-1] == "best copy: memcpy, 3355 GB/s"
    assert "256x256" not in text


def test_a_block_is_written_between_its_marks(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    start, end = _papers.marks("ladder")
    path.write_text(f"before\n{start}\nold\n{end}\nafter\n")
    _papers.write_block(path, "ladder", "| new |")
    once = path.read_text()
    assert once == f"before\n{start}\n\n| new |\n\n{end}\nafter\n"
    _papers.write_block(path, "ladder", "| new |")
    assert path.read_text() == once


BEGIN, END = _papers.marks("ladder")


@pytest.mark.parametrize("text", ["nothing\n", f"{BEGIN}\n", f"{END}\n{BEGIN}\n"])
def test_a_file_without_the_marks_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "README.md"
    path.write_text(text)
    with pytest.raises(SystemExit, match=r"README\.md: no place for ladder; put <!-- ladder: .* where it belongs"):
        _papers.write_block(path, "ladder", "new")
    assert path.read_text() == text


def test_ladder_prints_what_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], results: Path
) -> None:
    monkeypatch.setattr(_tables, "RESULTS", results)
    assert _tables.main(["transpose", "--markdown"]) == 0
    assert "commit 0123abcd" in capsys.readouterr().out
    assert _tables.main(["--markdown", "--machine", "no-gpu.x"]) == 0
    assert "commit 89abcdef" in capsys.readouterr().out
    assert _tables.main(["--markdown", "--commit", "89ab"]) == 0
    assert "commit 89abcdef" in capsys.readouterr().out
    assert _tables.main(["--commit", "ffff"]) == 1
    assert "scripts/ladder: nothing recorded for this under" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        _tables.main(["matmul", "--type", "float16-"])  # what a shell leaves of float16->float32
    assert "no type float16-; there are " in (said := capsys.readouterr().err)
    assert "(in quotes: '>' is the shell's)" in said
    with pytest.raises(SystemExit):
        _tables.main(["nonsense"])
    assert "no op nonsense; there are vector_add, transpose, matmul" in capsys.readouterr().err


def test_the_readme_takes_a_record_with_a_gpu(monkeypatch: pytest.MonkeyPatch, results: Path, tmp_path: Path) -> None:
    (results / "no-gpu.x" / "89abcdef-checkout-py3.12.json").write_text(json.dumps({"date": 3_000}))  # now the newest
    readme = tmp_path / "README.md"
    readme.write_text("\n".join(_papers.marks("transpose")))
    monkeypatch.setattr(_tables, "RESULTS", results)
    monkeypatch.setattr(_tables, "ROOT", tmp_path)
    assert _tables.main(["--readme"]) == 0
    assert "commit 0123abcd" in readme.read_text()
    shutil.rmtree(results / "nvidia-h200.x")
    before = readme.read_text()
    assert _tables.main(["--readme"]) == 1
    assert readme.read_text() == before


def product_record() -> _history.Record:
    """Two rungs and cuBLAS at n = 256 and 4096 on the GPU, one and NumPy on the CPU."""
    seconds = {
        "matmul/initial float32 256x256x256 cold": 1e-4,
        "matmul/cublas float32 256x256x256 cold": 1e-5,
        "matmul/initial float32 4096x4096x4096 cold": 1e-2,
        "matmul/cublas float32 4096x4096x4096 cold": 2.5e-3,
        "matmul/wmma float16->float32 4096x4096x4096 cold": 1e-3,
        "matmul/cublas float16->float32 4096x4096x4096 cold": 2e-4,
        "matmul/initial float32 128x4096x4096 cold": 1e-3,
        "matmul/cublas float32 128x4096x4096 cold": 1e-3,
        "matmul/c float32 256x256x256 cold": 1e-2,
        "matmul/numpy float32 256x256x256 cold": 1e-3,
    }
    limits = {"matmul/cublas float16->float32 4096x4096x4096 cold": (LOW_CLOCK,)}
    cells = {key: _history.Measured(key, "ok", "", (value,) * 3, limits.get(key, ())) for key, value in seconds.items()}
    facts = {"gpu": "A GPU", "cpu": "A CPU", "cores": [0, 1]}
    return _history.Record("a-gpu.x", "0123abcd", {"matmul gpu": facts, "matmul cpu": facts}, cells)


def row_of(text: str, name: str) -> list[str]:
    return next([part.strip() for part in line.split("|")[1:-1]] for line in text.splitlines() if f"| {name} |" in line)


def test_products_stand_beside_what_the_lecture_printed() -> None:
    """2 n^3 over the seconds; the share of cuBLAS; the lecture's milliseconds as a rate."""
    text = _papers.squares(product_record(), "gpu")
    assert "share of cublas" in text
    header = row_of(text, "rung")
    assert header[1:5] == ["n = 256", "lecture", "n = 512", "lecture"]
    assert header[-1] == "n = 8192"  # nothing was printed for it
    row = dict(zip(header, row_of(text, "initial"), strict=True))
    assert row["n = 256"] == "336 (10 %)"
    assert row_of(text, "initial")[2] == f"{2 * 256**3 / 0.13e-3 / 1e9:.3g}"
    assert row["n = 4096"] == "13744 (25 %)"
    assert row["n = 512"] == "n/a"
    printed_ms = {256: 0.13, 512: 0.13, 1024: 0.19, 2048: 0.45, 4096: 3.6}
    lectures = [f"{2 * n**3 / ms / 1e6:.0f}" for n, ms in printed_ms.items()]
    assert row_of(text, "initial")[2:11:2] == lectures
    tensor = dict(zip(header, row_of(text, "wmma (float16->float32)"), strict=True))
    assert tensor["n = 4096"] == "137439 (20 %)"
    cpu = _papers.squares(product_record(), "cpu")
    assert row_of(cpu, "c")[1:3] == ["3.36 (10 %)", f"{2 * 256**3 / 0.06e-3 / 1e9:.3g}"]


def test_products_by_shape_and_by_type() -> None:
    assert row_of(_papers.shapes(product_record()), "initial")[1] == "4295 (100 %)"
    typed = _papers.by_type(product_record())
    assert row_of(typed, "cublas")[3] == "687195 (100 %) *"
    assert row_of(typed, "wmma") == ["wmma", "n/a", "n/a", "137439 (20 %)", "n/a"]


def test_every_block_is_written_from_the_newest_record_that_has_it(tmp_path: Path) -> None:
    new, turned = product_record(), dataclasses.replace(product_record(), facts={"transpose gpu": {"gpu": "another"}})
    (tmp_path / "docs").mkdir()
    names = {"README.md": ["transpose", "matmul"], "docs/matmul.md": ["cpu", "shapes", "types", "counters", "between"]}
    for file, blocks in names.items():
        (tmp_path / file).write_text("\n".join(mark for name in blocks for mark in _papers.marks(name)))
    _papers.write([new, turned], tmp_path, tmp_path)
    readme, docs = ((tmp_path / file).read_text() for file in names)
    assert "matmul n x n x n, cold, GPU: GFLOP/s (share of cublas)" in readme
    assert "matmul n x n x n, cold, CPU: GFLOP/s (share of numpy)" in docs
    assert "matmul 4096x4096x4096, cold, GPU" in docs
    assert docs.count("A GPU") == 2
    assert docs.endswith(_papers.marks("between")[0] + "\n" + _papers.marks("between")[1])  # nothing to say yet


def test_the_papers_of_this_project_have_all_their_blocks() -> None:
    text = "".join((_tables.ROOT / file).read_text(encoding="utf-8") for file in ("README.md", "docs/matmul.md"))
    for name in ("transpose", "matmul", "cpu", "shapes", "types", "counters", "between"):
        begin, end = _papers.marks(name)
        assert text.count(begin) == text.count(end) == 1
        assert text.index(begin) < text.index(end)


def test_counters_and_streamed_products_in_the_papers(tmp_path: Path) -> None:
    folder = tmp_path / "a-gpu.x"
    folder.mkdir()
    record = product_record()
    assert (_papers.counters(record, tmp_path), _papers.between(record, tmp_path)) == ("", "")
    metrics = dict.fromkeys(_counters.METRICS, 2e6)
    line = {"key": "matmul/initial float32 256x256x256 cold", "metrics": metrics}
    (folder / "counters.jsonl").write_text(json.dumps(line) + "\n")
    assert row_of(_papers.counters(record, tmp_path), "matmul/initial")[1:4] == ["2000", "2000000", "2e+06"]
    run = {
        "seconds": 2.0, "upload_bytes": 2**30, "upload_seconds": 0.3, "compute_seconds": 1.9,
        "download_bytes": 2**30, "download_seconds": 0.1,
    }  # fmt: skip
    streamed = {
        "edge": 1000, "inner": "cublas", "type": "float32", "limit_bytes": 2**30, "matrices_bytes": 3 * 2**30,
        "in_core_s": 1.8, "runs_s": [2.0], "share_of_in_core": 0.9, "hidden_share": 0.75, "median_run": run,
    }  # fmt: skip
    (folder / "between_grids.jsonl").write_text(json.dumps(streamed) + "\n")
    text = _papers.between(record, tmp_path)
    assert row_of(text, "share of the in-core rate")[1] == "90.0 %"
    assert row_of(text, "copy time hidden")[1] == "75.0 % of 0.400 s"


# --- scripts/bench -------------------------------------------------------------------------------------------------


def test_which_commits_have_results(results: Path) -> None:
    commits = ["0123abcd" + "0" * 32, "ffffffff" + "0" * 32]
    assert _bench.have_results(results / "nvidia-h200.x", commits) == commits[:1]
    assert _bench.have_results(results / "none", commits) == []


FILES = ("gpukernels", "benchmarks", "scripts", "asv.conf.json", "pyproject.toml", ".gitignore")
CELLS = r"transpose/(numpy|c_blocked|c_lines) float32 256x256"
ENTRY = """
[[transpose.rungs]]
name = "c_lines"
idea = "a line of out after the other"
origin = "a test"
"""
# What the tree and HEAD differ in, by rungs.
CHANGED = """
import json, tempfile
from pathlib import Path
from scripts import _commits
with tempfile.TemporaryDirectory() as folder:
    print(json.dumps(_commits.changes(_commits.export("HEAD", Path(folder)), str(_commits.ROOT)).rungs))
"""
SOURCE = """// transpose/c_lines: out[n][m] = in[m][n], a line of out after the other.

void transpose_c_lines(const T *restrict in, T *restrict out, long long M, long long N) {
    for (long long n = 0; n < N; ++n)
        for (long long m = 0; m < M; ++m)
            out[n * M + m] = in[m * N + n];
}
"""


@dataclass(frozen=True)
class Project:
    """A copy of this project, committed: as it is, then with one more rung (a source and an entry, nothing else)."""

    folder: Path
    home: Path

    def environment(self, **more: str) -> dict[str, str]:
        who = {f"GIT_{role}_{what}": "a@b.org" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        own = {"HOME": str(self.home), "GPUKERNELS_PYTHON": sys.executable, "GPUKERNELS_CELLS": CELLS, "COLUMNS": "200"}
        return os.environ | who | own | {"PYTHONPATH": "", "NO_COLOR": "1"} | more

    def run(self, *command: str, **more: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment(**more),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def git(self, *arguments: str) -> str:
        done = self.run("git", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.rstrip()

    def bench(self, *arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
        return self.run(sys.executable, "scripts/bench", *arguments, **more)

    def python(self, code: str) -> str:
        done = self.run(sys.executable, "-c", code, PYTHONPATH=str(self.folder))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    @property
    def blocked(self) -> Path:
        return self.folder / "gpukernels" / "transpose" / "c_blocked.c"


@pytest.fixture(scope="module")
def committed(kernel_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    base = tmp_path_factory.mktemp("bench")
    project = Project(base / "project", base / "home")
    project.folder.mkdir()
    project.home.mkdir()
    for name in FILES:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, project.folder / name, ignore=shutil.ignore_patterns("__pycache__", ".*_cache")
            )
        else:
            shutil.copy(ROOT / name, project.folder / name)
    project.git("init", "-q", "-b", "main")
    project.git("add", "-A")
    project.git("commit", "-q", "-m", "as it is")
    with (project.folder / "gpukernels" / "ladder.toml").open("a") as file:
        file.write(ENTRY)
    (project.folder / "gpukernels" / "transpose" / "c_lines.c").write_text(SOURCE)
    project.git("add", "-A")
    project.git("commit", "-q", "-m", "one more rung")
    return project


@pytest.fixture
def project(committed: Project) -> Any:
    """The project with a clean tree before and after."""
    yield committed
    committed.git("checkout", "-q", ".")
    committed.git("clean", "-q", "-f", "-d")


bench_group = pytest.mark.xdist_group("bench")  # one project for all of these


@dataclass(frozen=True)
class Look:
    """A quick look, and what it had left in the tree when it ended."""

    done: "subprocess.CompletedProcess[str]"
    status: str
    folders: frozenset[str]


@pytest.fixture(scope="module")
def quick(committed: Project) -> Look:
    done = committed.bench("--quick", "--no-gate")
    folders = frozenset(path.name for path in (committed.folder / ".asv").iterdir() if path.is_dir())
    return Look(done, committed.git("status", "--porcelain", "--ignored"), folders)


@bench_group
def test_a_quick_look_prints_the_table_and_where_the_pages_are(project: Project, quick: Look) -> None:
    assert quick.done.returncode == 0, quick.done.stdout + quick.done.stderr
    assert "1 new of 1 commits in " in quick.done.stdout
    for rung in ("numpy", "c_blocked", "c_lines"):
        name, taken, spread, rate, _ = table_row(quick.done.stdout, rung)
        assert name == rung
        assert re.fullmatch(r"[\d.]+ (us|ms)", taken)
        assert re.fullmatch(r"± [\d.]+ %", spread)
        assert float(rate) > 0
    page = project.folder / ".asv" / "quick" / "html" / "index.html"
    assert f"pages: {page.as_uri()}" in quick.done.stdout
    assert page.is_file()


@bench_group
def test_a_quick_look_stays_out_of_the_history(project: Project, quick: Look) -> None:
    assert quick.done.returncode == 0
    left = {line for line in quick.status.splitlines() if "__pycache__" not in line}
    assert left == {"!! .asv/"}  # nothing in results/, and the configuration of its own is gone
    assert quick.folders == {"env", "quick"}


@bench_group
def test_a_rung_is_a_source_and_an_entry(project: Project, quick: Look) -> None:
    """Nothing but these two files: its cells, its parameter in asv and its row are there."""
    assert project.git("diff", "--name-only", "HEAD~1").split() == [
        "gpukernels/ladder.toml",
        "gpukernels/transpose/c_lines.c",
    ]
    cells = "[cell.key for cell in plan('transpose', 'cpu') if cell.rung == 'c_lines']"
    keys = json.loads(project.python(f"import json; from benchmarks._cells import plan; print(json.dumps({cells}))"))
    assert keys == [f"transpose/c_lines float32 256x256 {cache}" for cache in ("cold", "hot")]
    params = json.loads(
        project.python("import json; from benchmarks import transpose as t; print(json.dumps(t.CPU.params))")
    )
    assert params[0][-1] == "c_lines"
    recorded = json.loads((project.folder / ".asv" / "quick" / "results" / "benchmarks.json").read_text())
    assert recorded["transpose.CPU.track_seconds"]["params"][0][-1] == "'c_lines'"
    (result,) = (project.folder / ".asv" / "quick" / "results").glob("*/*-checkout-*.json")
    assert {name.split(".", 1)[1] for name in json.loads(result.read_text())["results"]} == {
        "CPU.track_seconds",
        "GPU.track_seconds",
        "Launch.track_launch",
    }
    assert table_row(quick.done.stdout, "c_lines")


@bench_group
def test_a_slower_tree_shows_and_nothing_is_saved(project: Project) -> None:
    source = project.blocked.read_text()
    loop = "    for (long long m0 = 0;"
    assert source.count(loop) == 1
    project.blocked.write_text(source.replace(loop, f"    for (volatile int again = 0; again < 400; ++again)\n{loop}"))
    before = sorted(path for path in project.folder.rglob("*") if ".git" not in path.parts and path.suffix != ".pyc")
    done = project.bench("--worktree", "transpose/c_blocked", GPUKERNELS_CELLS="256x256 hot")
    assert done.returncode == 1, done.stdout + done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("256x256 hot"))
    _, _, head, head_unit, tree, tree_unit, change, *_, verdict = row.split()
    assert change.startswith("x"), done.stdout  # a factor
    assert float(change[1:]) > 2, done.stdout  # of 400 times the work
    assert (head, head_unit) != (tree, tree_unit)
    assert verdict == "worse"
    assert done.stdout.index("c_blocked") < done.stdout.index("numpy float32, CPU (control)")
    assert done.stdout.endswith("tree is worse than HEAD: 1 cell\n")
    after = sorted(path for path in project.folder.rglob("*") if ".git" not in path.parts and path.suffix != ".pyc")
    assert [path for path in after if path not in before and path.name != "__pycache__"] == []
    assert project.git("status", "--porcelain") == " M gpukernels/transpose/c_blocked.c"


@bench_group
def test_a_wrong_tree_is_told(project: Project) -> None:
    project.blocked.write_text(project.blocked.read_text().replace("out[n * M + m] = ", "out[n * M + m] = 2 + "))
    done = project.bench("--worktree")  # it finds by itself what differs
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout.startswith("the dirty tree against HEAD\ntree failed: ")
    assert "transpose/c_blocked at (256, 256) float32: 65536 of 65536 elements wrong" in done.stdout
    assert "c_lines" not in done.stdout
    assert "HEAD:" not in done.stdout  # no table, nothing else


@bench_group
def test_a_new_rung_in_the_tree(project: Project) -> None:
    project.git("checkout", "-q", "HEAD~1", "--", "gpukernels/ladder.toml")
    project.git("rm", "-q", "-f", "gpukernels/transpose/c_lines.c")
    project.git("commit", "-q", "-m", "without it again")
    try:
        project.git("checkout", "-q", "HEAD~1", "--", "gpukernels")
        done = project.bench("--worktree", "transpose/c_lines")
    finally:
        project.git("reset", "-q", "--hard", "HEAD~1")
    assert done.returncode == 0, done.stdout + done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("256x256 hot"))
    assert re.fullmatch(r"256x256 hot +[\d.]+ [mun]?s +new *", row)
    assert "new: 2 cells (transpose/c_lines float32 256x256 cold, ...): HEAD: this commit has no rung" in done.stdout


@bench_group
def test_which_rungs_differ(project: Project) -> None:
    def changed() -> list[str]:
        found: list[str] = json.loads(project.python(CHANGED))
        return found

    assert changed() == []
    project.blocked.write_text(project.blocked.read_text() + "\n")
    assert changed() == ["transpose/c_blocked"]
    other = project.folder / "gpukernels" / "vector_add" / "elementwise.cu"
    other.write_text(other.read_text() + "\n")
    assert changed() == ["vector_add/elementwise", "transpose/c_blocked"]
    project.git("add", "-A")
    assert changed() == ["vector_add/elementwise", "transpose/c_blocked"]
    project.git("reset", "-q", "--hard")
    (project.folder / "gpukernels" / "vector_add" / "shared.h").touch()  # a file of no rung: all of the op's
    assert changed() == [str(rung) for rung in gpukernels.op("vector_add").rungs]
    (project.folder / "gpukernels" / "kernel.py").write_text("# what launches them all\n")
    assert len(changed()) == 1 + sum(len(op.rungs) for op in gpukernels.ops())


@bench_group
def test_an_entry_that_differs_is_its_rung(project: Project) -> None:
    def changed() -> list[str]:
        found: list[str] = json.loads(project.python(CHANGED))
        return found

    ladder = project.folder / "gpukernels" / "ladder.toml"
    text = ladder.read_text()
    ladder.write_text(text.replace("pad = 1", "pad = 2"))
    assert changed() == ["transpose/dynamic"]
    ladder.write_text(f"# a comment\n{text}")
    assert changed() == []
    ladder.write_text(text.replace('types = ["float32", "float64"]', 'types = ["float32"]', 1))
    assert changed() == [str(rung) for rung in gpukernels.op("vector_add").rungs]


@bench_group
def test_a_source_of_two_rungs_is_both_and_no_more(project: Project) -> None:
    source = project.folder / "gpukernels" / "matmul" / "tiled.cu"
    text = source.read_text()
    try:
        source.write_text(f"{text}\n// a word more\n")
        assert json.loads(project.python(CHANGED)) == ["matmul/tiled_16", "matmul/tiled_32"]
    finally:
        source.write_text(text)


@bench_group
def test_a_clean_tree_has_nothing_to_compare(project: Project) -> None:
    done = project.bench("--worktree")
    assert done.returncode == 0
    assert "gpukernels/ is as it is in HEAD: nothing to compare" in done.stdout


@bench_group
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--worktree", "transpose/warp"),
            "scripts/bench: no rung transpose/warp; the ladder has vector_add/elementwise, ",
        ),
        (("HEAD..HEAD", "--no-gate", "--quick"), "scripts/bench: no commits in HEAD..HEAD"),
        (
            ("no-such-branch", "--quick"),
            "scripts/bench: git rev-list --first-parent no-such-branch: fatal: ambiguous argument",
        ),
        (("--no-gate",), "scripts/bench: GPUKERNELS_CELLS is set: it would leave holes in results/; unset it, or use"),
    ],
)
def test_what_cannot_be_done_is_said(project: Project, arguments: tuple[str, ...], message: str) -> None:
    done = project.bench(*arguments)
    assert done.returncode == 1
    assert done.stderr.startswith(message)
    assert "Traceback" not in done.stderr
    assert not (project.folder / "results").exists()


@bench_group
def test_nothing_is_measured_where_the_gate_fails(project: Project) -> None:
    (project.folder / "tests").mkdir()
    (project.folder / "tests" / "test_kernels.py").write_text("def test_it():\n    assert 'this rung' == 'wrong'\n")
    done = project.bench("--quick")
    assert done.returncode == 1
    assert "the gate failed; nothing was measured" in done.stderr
    assert "this rung" in done.stdout
    assert "measured" not in done.stdout


def processes_in(folder: Path) -> dict[int, str]:
    """The living processes that name a folder, and their command lines."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes() if entry.name.isdecimal() else b""
        except OSError:  # it has gone
            continue
        if str(folder).encode() in command:
            found[int(entry.name)] = command.replace(b"\0", b" ").decode()
    return found


@bench_group
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are looked up in Linux's /proc")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_all_that_was_started(
    project: Project, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    begun = tmp_path / "begun"
    head = "#include <stdio.h>\nvoid transpose_c_blocked(const T *in, T *out, long long M, long long N) {\n"
    body = f'    fclose(fopen("{begun}", "w"));\n    for (volatile int i = 1; i;);\n'
    project.blocked.write_text(f"{head}    (void)in, (void)out, (void)M, (void)N;\n{body}}}\n")
    project.git("commit", "-q", "-a", "-m", "for ever")
    # What runs in the background ignores the terminal's interrupt, and so would its children.
    start = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL);"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", start, "scripts/bench", "--quick", "--no-gate", "--bench", "transpose.CPU"],
        cwd=project.folder,
        env=project.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        end = time.monotonic() + 60
        while not begun.exists() and time.monotonic() < end and process.poll() is None:
            time.sleep(0.05)
        assert begun.exists(), "the kernel was never launched"
        os.killpg(process.pid, number)  # as the terminal does
        said, _ = process.communicate(timeout=60)
        assert process.returncode == code
        assert ("interrupted; nothing was saved" in said) is (number == signal.SIGINT)
        end = time.monotonic() + 30
        while (left := processes_in(project.folder)) and time.monotonic() < end:
            time.sleep(0.05)
        assert left == {}
        assert not (project.folder / ".asv.quick.conf.json").exists()
    finally:
        process.kill()
        process.communicate()
        for process_id in processes_in(project.folder):
            os.kill(process_id, signal.SIGKILL)
        project.git("reset", "-q", "--hard", "HEAD~1")


@bench_group
def test_ladder_has_nothing_to_print(project: Project) -> None:
    done = project.run(sys.executable, "scripts/ladder")
    assert done.returncode == 1
    assert done.stderr.startswith("scripts/ladder: nothing recorded for this under ")
    assert done.stderr.endswith("; scripts/bench measures\n")
