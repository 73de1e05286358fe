"""asv on a small history of this project: what it collects and records, and its other commands."""

import ast
import json
import math
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.project import PROJECT
from kernelwatch.asv.machine_names import described
from kernelwatch.plan.cells import plan, rungs
from kernelwatch.plan.devices import DEVICES
from kernelwatch.plan.problem import Problem, label
from tests.repositories import ROOT, Project, copy_into, new_project

pytestmark = pytest.mark.xdist_group("asv")  # one history for all of these

CELLS = r"transpose/(c_blocked|numpy) float32 256x256|vector_add/numpy float32 65536"
BENCH = r"^(transpose|vector_add)\.CPU\.|^device\.|^transpose\.Launch"  # CPU; of the others, which are n/a here, one op
PLACES = ("cold", "hot")

SERIES = {
    "seconds": ("seconds", False),
    "bandwidth": ("GB/s", True),
    "share_of_copy": ("% of copy", True),
    "share_of_theoretical": ("% of theoretical", True),
    "flops": ("GFLOP/s", True),
    "share_of_vendor": ("% of vendor", True),
    "hidden_copies": ("% of copies", True),
    "share_of_gpus": ("% of all GPUs", True),
    "launch": ("seconds", False),
    "peak_allocated": ("bytes", False),
    "canary": ("seconds", False),
    "sm_clock": ("MHz", None),
    "temperature": ("C", None),
    "power": ("W", None),
    "registers": ("registers", None),
    "spill_bytes": ("bytes", False),
    "shared_bytes": ("bytes", None),
    "instructions": ("instructions", None),
    "occupancy": ("% of warps", True),
    "class": ("instructions", None),
    "load_sectors": ("sectors/request", False),
    "store_sectors": ("sectors/request", False),
    "sectors_over_ideal": ("x ideal", False),
    "shared_load_wavefronts": ("wavefronts/request", False),
    "shared_store_wavefronts": ("wavefronts/request", False),
    "wavefronts_over_ideal": ("x ideal", False),
    "moved": ("x compulsory bytes", False),
    "requests": ("requests", False),
    "barriers": ("barriers/block", False),
}
ACCESS = tuple(SERIES)[list(SERIES).index("load_sectors") :]


def title(op: str) -> str:
    """An op in the names of its suites in static.py and access.py."""
    return "".join(map(str.capitalize, op.split("_")))


def collected(problem: Problem) -> set[str]:
    """The series that an op has by CONTRIBUTING.md: what its description says decides the rates, and the further
    suites."""
    op = problem.name
    arithmetic = problem.computation.flops is not None
    rates = ("seconds", "flops", "share_of_vendor") if arithmetic else ("seconds", "bandwidth")
    shares = () if arithmetic else ("share_of_copy", "share_of_theoretical")
    by_suite: dict[str, tuple[str, ...]] = {
        f"{op}.GPU": (*rates, *shares, "peak_allocated"),
        f"{op}.ElementTypes": (*rates, *shares, "peak_allocated"),
        f"{op}.Launch": ("launch",),
        f"{op}.CPU": rates,
        f"{op}.Streamed": ("seconds", "flops", "hidden_copies") if problem.devices else (),
        f"{op}.Several": ("seconds", "flops", "share_of_gpus") if problem.devices else (),
        f"static.{title(op)}": ("registers", "spill_bytes", "shared_bytes", "instructions", "occupancy"),
        f"static.{title(op)}Mix": ("class",),
        f"access.{title(op)}": ACCESS,
    }
    return {f"{suite}.track_{series}" for suite, several in by_suite.items() for series in several}


COLLECTED = {
    "device.Canary.track_canary",
    "device.State.track_power",
    "device.State.track_sm_clock",
    "device.State.track_temperature",
    *(series for problem in PROJECT.problems for series in collected(problem)),
}


@dataclass(frozen=True)
class History(Project):
    """A copy of this project with three commits: without c_blocked, with it, with a wrong one."""

    commits: tuple[str, str, str]

    def environment(self, **more: str) -> dict[str, str]:
        return super().environment(**{"KERNELWATCH_QUICK": "1", "KERNELWATCH_ONLY": CELLS, **more})

    @property
    def machine(self) -> Path:
        (found,) = (path for path in (self.folder / "results").iterdir() if path.is_dir())
        return found

    def stem(self, commit: str) -> str:
        return f"{commit[:8]}-checkout-py{sys.version_info.major}.{sys.version_info.minor}"

    def result(self, commit: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.machine / f"{self.stem(commit)}.json").read_text())
        return found

    def series(self, commit: str, name: str) -> dict[tuple[str, ...], dict[str, Any]]:
        """One benchmark's columns by combination of parameters."""
        result = self.result(commit)
        columns = dict(zip(result["result_columns"], result["results"][name], strict=False))
        combinations: list[tuple[str, ...]] = [()]
        for values in columns["params"]:
            combinations = [(*before, ast.literal_eval(value)) for before in combinations for value in values]
        lists = {
            key: columns.get(key) or [None] * len(combinations)
            for key in ("result", "stats_ci_99_a", "stats_ci_99_b", "stats_q_25", "stats_q_75", "stats_repeat")
        }
        return {where: {key: values[at] for key, values in lists.items()} for at, where in enumerate(combinations)}

    def facts(self, commit: str) -> list[dict[str, Any]]:
        lines = (self.machine / f"{self.stem(commit)}.facts.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def cell(self, commit: str, key: str) -> dict[str, Any]:
        (found,) = (line for line in self.facts(commit) if line.get("key") == key)
        return found

    def benchmarks(self) -> dict[str, dict[str, Any]]:
        found: dict[str, Any] = json.loads((self.folder / "results" / "benchmarks.json").read_text())
        return {name: value for name, value in found.items() if name != "version"}


@pytest.fixture(scope="module")
def history(kernel_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> History:
    made = new_project(tmp_path_factory.mktemp("history"))
    folder = made.folder
    copy_into(folder)
    ladder, source = folder / "gpukernels" / "ladder.toml", folder / "gpukernels" / "transpose" / "c_blocked.c"
    with_it = ladder.read_text(), source.read_text()

    parts = with_it[0].split("[[transpose.rungs]]")
    ladder.write_text("[[transpose.rungs]]".join(part for part in parts if 'name = "c_blocked"' not in part))
    source.unlink()
    first = made.commit_all("without c_blocked")
    ladder.write_text(with_it[0])
    source.write_text(with_it[1])
    second = made.commit_all("with it")
    source.write_text(with_it[1].replace("out[n * M + m] = ", "out[n * M + m] = 2 + "))
    return History(folder, made.home, (first, second, made.commit_all("a wrong one")))


@dataclass(frozen=True)
class Recorded:
    history: History
    done: "subprocess.CompletedProcess[str]"


@pytest.fixture(scope="module")
def recorded(history: History) -> Recorded:
    """The history, measured."""
    hashes = history.home / "hashes"
    hashes.write_text("\n".join(history.commits))
    return Recorded(history, history.asv("run", "-E", "checkout", "--bench", BENCH, f"HASHFILE:{hashes}"))


# --- a run ---------------------------------------------------------------------------------------------------------


def test_the_exit_code_says_that_a_rung_is_wrong(recorded: Recorded) -> None:
    """What is n/a is no failure: see `test_continuous`."""
    assert recorded.done.returncode == 2, recorded.done.stdout + recorded.done.stderr


def test_a_commit_without_the_rung_is_not_measured_for_it(recorded: Recorded) -> None:
    history, first = recorded.history, recorded.history.commits[0]
    for series in ("seconds", "bandwidth"):
        found = history.series(first, f"transpose.CPU.track_{series}")
        for cache in PLACES:
            assert math.isnan(found["c_blocked", "256x256", cache]["result"])
            assert found["numpy", "256x256", cache]["result"] > 0
    for cache in PLACES:
        cell = history.cell(first, f"transpose/c_blocked float32 256x256 {cache}")
        assert cell["state"] == "na"
        assert cell["reason"].startswith("this commit has no rung transpose/c_blocked; the ladder has ")


@pytest.mark.parametrize("at", [0, 1])
def test_numbers_come_with_statistics_of_processes(recorded: Recorded, at: int) -> None:
    """asv gives a track_* that returns {"samples", "number"} what it gives a time_*."""
    history, commit = recorded.history, recorded.history.commits[at]
    for rung in ("c_blocked", "numpy")[1 - at :]:
        for cache in PLACES:
            visits = history.cell(commit, f"transpose/{rung} float32 256x256 {cache}")["visits"]
            seconds = [visit["seconds"] for visit in visits]
            assert len(seconds) == DEVICES["cpu"].quick_processes
            found = history.series(commit, "transpose.CPU.track_seconds")[rung, "256x256", cache]
            assert found["result"] == pytest.approx(sum(seconds) / 2, rel=1e-12)  # the median of two
            assert found["stats_repeat"] == len(seconds)
            assert found["stats_ci_99_a"] <= found["stats_q_25"] <= found["result"]
            assert found["result"] <= found["stats_q_75"] <= found["stats_ci_99_b"]
            rates = [2 * 256 * 256 * 4 / value / 1e9 for value in seconds]
            rate = history.series(commit, "transpose.CPU.track_bandwidth")[rung, "256x256", cache]
            assert rate["result"] == pytest.approx(sum(rates) / 2, rel=1e-12)


def test_vector_add_counts_three_operands(recorded: Recorded) -> None:
    history, commit = recorded.history, recorded.history.commits[1]
    seconds = history.series(commit, "vector_add.CPU.track_seconds")["numpy", "65536", "hot"]["result"]
    visits = history.cell(commit, "vector_add/numpy float32 65536 hot")["visits"]
    assert seconds == pytest.approx(sum(visit["seconds"] for visit in visits) / len(visits), rel=1e-12)
    rates = [3 * 65536 * 4 / visit["seconds"] / 1e9 for visit in visits]
    found = history.series(commit, "vector_add.CPU.track_bandwidth")["numpy", "65536", "hot"]["result"]
    assert found == pytest.approx(sum(rates) / len(rates), rel=1e-12)


def test_a_wrong_rung_has_failed_with_its_reason(recorded: Recorded) -> None:
    history, third = recorded.history, recorded.history.commits[2]
    for series in ("seconds", "bandwidth"):
        found = history.series(third, f"transpose.CPU.track_{series}")
        for cache in PLACES:
            assert found["c_blocked", "256x256", cache]["result"] is None
            assert found["numpy", "256x256", cache]["result"] > 0
    for cache in PLACES:
        cell = history.cell(third, f"transpose/c_blocked float32 256x256 {cache}")
        assert (cell["state"], cell["visits"]) == ("failed", [])
        where = "transpose/c_blocked at (256, 256) float32: 65536 of 65536 elements wrong, the first at [0, 0]"
        assert cell["reason"] == f"WrongOutput: {where}; 0 never written"


def test_what_is_not_in_the_plan_is_not_available(recorded: Recorded) -> None:
    history, second = recorded.history, recorded.history.commits[1]
    found = history.series(second, "transpose.CPU.track_seconds")
    numbers = {where for where, columns in found.items() if not math.isnan(columns["result"])}
    assert numbers == {(rung, "256x256", cache) for rung in ("c_blocked", "numpy") for cache in PLACES}
    for name in ("device.State.track_sm_clock", "transpose.Launch.track_launch", "device.Canary.track_canary"):
        values = history.series(second, name).values()
        assert all(math.isnan(columns["result"]) for columns in values), name


def test_each_commit_has_facts_of_its_own_groups(recorded: Recorded) -> None:
    for commit in recorded.history.commits:
        facts = recorded.history.facts(commit)
        runs = [line for line in facts if line["record"] == "run"]
        assert len({line["group"] for line in runs}) == len(runs)
        (cpu,) = (line["facts"] for line in runs if line["group"] == "transpose cpu")
        assert {"cpu", "cores", "packages"} <= set(cpu)
        keys = [line["key"] for line in facts if line["record"] == "cell"]
        assert len(keys) == len(set(keys)) == 6


def test_a_machine_is_registered_without_a_question(recorded: Recorded) -> None:
    found = json.loads((recorded.history.machine / "machine.json").read_text())
    assert found.pop("version") == 1
    assert found == described()
    assert recorded.history.machine.name == found["machine"]


def test_what_identifies_a_series(recorded: Recorded) -> None:
    """Result parameters split the history: nothing that changes by itself may be one."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    for commit in recorded.history.commits:
        result = recorded.history.result(commit)
        assert set(result["params"]) == {"machine", "gpu", "cpu", "arch", "os", "python"}
        assert result["params"]["python"] == result["python"] == python
        assert (result["requirements"], result["env_vars"]) == ({}, {})
        assert not any("/" in value for value in result["params"].values())


def test_results_lie_where_they_are_looked_for(recorded: Recorded) -> None:
    stems = [recorded.history.stem(commit) for commit in recorded.history.commits]
    names = {f"{stem}.{kind}" for stem in stems for kind in ("json", "facts.jsonl")}
    assert {path.name for path in recorded.history.machine.iterdir()} == {"machine.json", *names}


# --- what is collected ---------------------------------------------------------------------------------------------


def test_exactly_these_series_are_collected(recorded: Recorded) -> None:
    assert set(recorded.history.benchmarks()) == COLLECTED


def test_every_series_says_its_unit_and_direction(recorded: Recorded) -> None:
    for name, found in recorded.history.benchmarks().items():
        unit, higher_is_better = SERIES[name.rpartition(".track_")[2]]
        assert (found["unit"], found["version"], found["type"]) == (unit, found["version"], "track"), name
        assert found["version"] in ("1", "2"), name
        assert found.get("higher_is_better") is higher_is_better, name
        assert found["timeout"] == 1800, name


def test_parameters_are_the_checkouts(recorded: Recorded) -> None:
    found = recorded.history.benchmarks()
    for problem in PROJECT.problems:
        of = {
            suite: found[f"{problem.name}.{suite}.track_seconds"]["params"] for suite in ("CPU", "GPU", "ElementTypes")
        }
        assert of["CPU"][0] == [repr(rung) for rung in rungs(problem, "cpu")]
        assert of["CPU"][1] == [repr(label(shape)) for shape in problem.timed("cpu", quick=True)]
        assert of["GPU"][0] == [repr(rung) for rung in rungs(problem, "gpu")]
        assert of["GPU"][1] == [repr(label(shape)) for shape in problem.timed("gpu", quick=True)]
        repeated = {rung.name for rung in problem.rungs if rung.repeats > 1}  # timed with float32 only
        once = [repr(rung) for rung in rungs(problem, "gpu") if rung not in repeated]
        assert of["ElementTypes"] == [once, [repr(type) for type in problem.types[1:]]]
    names = [repr(rung.name) for rung in PROJECT.op("matmul").rungs if rung.where == "host"]
    shapes = [repr(label(cell.shape)) for cell in plan(PROJECT.op("matmul"), "streamed")]
    assert found["matmul.Streamed.track_seconds"]["params"] == [names, shapes]


def test_parameters_of_a_whole_look() -> None:
    """In a process of its own: the parameters are made when the suites are imported."""
    suites = "[m.ElementTypes.params, m.GPU.params, m.Streamed.params, m.Several.params]"
    code = f"import json; from benchmarks import matmul as m; print(json.dumps({suites}))"
    done = Project(ROOT, Path.home()).run(sys.executable, "-c", code, KERNELWATCH_QUICK="", KERNELWATCH_ONLY="")
    assert done.returncode == 0, done.stderr
    by_type, by_shape, streamed, several = json.loads(done.stdout)
    matmul = PROJECT.op("matmul")
    assert by_type == [rungs(matmul, "gpu"), list(matmul.types[1:])]
    assert by_shape[1] == [label(shape) for shape in matmul.shapes]
    assert streamed == [["between_grids"], ["24576x24576x24576"]]
    sizes = ["16384x16384x16384", "32768x32768x32768", "65536x65536x65536"]
    assert several == [["nccl", "cublas"], ["float32", "bfloat16->float32"], sizes]


def test_suites_share_a_measurement_only_on_purpose(recorded: Recorded) -> None:
    """asv keys a setup_cache by file and line: what is inherited from a base would be one for all."""
    groups: dict[str, set[str]] = {}
    for name, found in recorded.history.benchmarks().items():
        groups.setdefault(found["setup_cache_key"], set()).add(name.rpartition(".")[0])
    wanted = {"device.Canary": "transpose.GPU", "device.State": "transpose.GPU"}  # suite -> the first that measures
    for op in PROJECT.ops:
        wanted |= dict.fromkeys((f"{op}.ElementTypes", f"{op}.Launch"), f"{op}.GPU")
        wanted[f"static.{title(op)}Mix"] = f"static.{title(op)}"
    shared: dict[str, set[str]] = {}
    for suite in {series.rpartition(".")[0] for series in COLLECTED}:
        shared.setdefault(wanted.get(suite, suite), set()).add(suite)
    assert sorted(map(sorted, groups.values())) == sorted(map(sorted, shared.values()))
    assert all(key.split(":")[0] in (*PROJECT.ops, "static", "access") for key in groups)


# --- asv's other commands ------------------------------------------------------------------------------------------


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_dry_run_leaves_nothing(recorded: Recorded) -> None:
    before = snapshot(recorded.history.folder / "results")
    done = recorded.history.asv("run", "-E", "checkout", "--dry-run", "--bench", "vector_add.CPU", "HEAD^!")
    assert done.returncode == 0, done.stdout + done.stderr
    assert snapshot(recorded.history.folder / "results") == before


def test_measuring_again_replaces_only_what_was_measured(recorded: Recorded) -> None:
    history, third = recorded.history, recorded.history.commits[2]
    before = history.facts(third)
    done = history.asv("run", "-E", "checkout", "--bench", "vector_add.CPU", "HEAD^!")
    assert done.returncode == 0, done.stdout + done.stderr
    after = history.facts(third)
    assert sorted(line.get("key", "") for line in after) == sorted(line.get("key", "") for line in before)
    for group, same in (("transpose cpu", True), ("vector_add cpu", False)):
        one, other = ([line for line in lines if line["group"] == group] for lines in (before, after))
        assert (one == other) is same


def test_publish(recorded: Recorded) -> None:
    done = recorded.history.asv("publish", "--no-pull")
    assert done.returncode == 0, done.stdout + done.stderr
    pages = recorded.history.folder / ".asv" / "html"
    assert (pages / "index.html").is_file()
    shown = json.loads((pages / "asv" / "index.json").read_text())
    assert set(shown["benchmarks"]) == COLLECTED
    assert len(shown["revision_to_hash"]) == 3
    graphs = [
        json.loads(path.read_text()) for path in (pages / "asv" / "graphs").rglob("transpose.CPU.track_seconds.json")
    ]
    assert graphs


def test_show_and_compare(recorded: Recorded) -> None:
    history = recorded.history
    first, second, third = history.commits
    shown = history.asv("show", second)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "transpose.CPU.track_seconds" in shown.stdout
    compared = history.asv("compare", second, third)
    assert compared.returncode == 1, compared.stdout + compared.stderr  # the third commit's rung is wrong
    assert "failed" in compared.stdout
    again = history.asv("compare", "--factor", "1000", first, second)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "n/a" in again.stdout


def test_continuous(history: History) -> None:
    """The first commit lacks c_blocked, which is no failure."""
    factor = "1000"  # one run against another: this is no test of the machine
    done = history.asv(
        "continuous", "-E", "checkout", "--no-only-changed", "-f", factor, "--bench", "transpose.CPU.track_seconds",
        history.commits[0], history.commits[1], KERNELWATCH_ONLY="transpose/(c_blocked|numpy) float32 256x256 hot",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "transpose.CPU.track_seconds" in done.stdout


# --- imports -------------------------------------------------------------------------------------------------------


UNWANTED = ("cupy", "cuda", "pynvml", "gpukernels", "filelock", "elftools", "scipy", "networkx", "rich", "asv")


def test_importing_the_suites_touches_no_gpu_starts_no_thread_compiles_nothing(tmp_path: Path) -> None:
    """asv forks every benchmark from the process that imported them; CUDA does not survive that."""
    code = (
        "import importlib, os, pkgutil, subprocess, sys, threading\n"
        "def no(*a, **k): raise AssertionError(f'a process was started: {a}')\n"
        "subprocess.Popen.__init__ = os.posix_spawn = os.fork = no\n"
        "import benchmarks\n"
        "names = [found.name for found in pkgutil.walk_packages(benchmarks.__path__, 'benchmarks.')]\n"
        "for name in names: importlib.import_module(name)\n"
        f"loaded = [name for name in {UNWANTED} if name in sys.modules]\n"
        "print(sorted(names), loaded, threading.active_count(), len(os.listdir('/proc/self/task')))\n"
    )
    caches = {name: str(tmp_path / name) for name in ("GPUKERNELS_CACHE", "KERNELWATCH_CACHE", "CUPY_CACHE_DIR")}
    # NumPy's BLAS starts threads when it is imported: not ours, and it survives a fork.
    variables = Project(tmp_path, tmp_path).environment(PYTHONPATH=str(ROOT), OPENBLAS_NUM_THREADS="1", **caches)
    command = [sys.executable, "-c", code]  # an interpreter of its own, which has imported nothing
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    names = sorted(f"benchmarks.{path.stem}" for path in (ROOT / "benchmarks").glob("[!_]*.py"))
    assert (done.stdout, done.stderr) == (f"{names} [] 1 1\n", "")
    assert list(tmp_path.iterdir()) == []


def test_the_suites_take_the_engine_from_their_checkout_and_no_package(tmp_path: Path) -> None:
    """As asv imports them, by their folder: whatever is installed, the engine is the one beside them; the package that
    is measured is found where asv's environment has it, never beside them."""
    for name in ("kernelwatch", "gpukernels"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise ImportError('the installed {name}')\n")
    out = tmp_path / "found.json"
    code = (
        "import importlib.util, sys; from asv_runner.discovery import _discover; _discover(sys.argv[1:])\n"
        "print(importlib.util.find_spec('gpukernels').origin)"
    )
    here = Project(tmp_path, tmp_path)
    suites = str(ROOT / "benchmarks")
    done = here.run(sys.executable, "-c", code, suites, str(out), PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert {found["name"] for found in json.loads(out.read_text())} == COLLECTED
    assert done.stdout == f"{tmp_path / 'gpukernels' / '__init__.py'}\n"


# --- one process for all parameters of a series --------------------------------------------------------------------


FEWER = 'name = "(copy|naive_read|naive_write|dynamic|vectorized|sector_aligned)"'
ONE_BY_ONE = """
from asv import runner
from kernelwatch.asv import together

def setup():
    runner.run_benchmark = together.one_by_one
"""


def test_a_series_answers_at_once_what_it_answers_one_by_one(history: History) -> None:
    cells = r"transpose/(tiled|padded) (float32|uint8) 256x256"
    commit, hashes = history.commits[1], history.home / "hashes-once"
    hashes.write_text(commit)
    stock = history.folder / "one_by_one.py"
    stock.write_text(ONE_BY_ONE)
    ladder = history.folder / "gpukernels" / "ladder.toml"  # of few rungs: each asks for six processes, one by one
    parts = ladder.read_text().split("[[transpose.rungs]]\n")
    ladder.write_text("[[transpose.rungs]]\n".join(part for part in parts if not re.match(FEWER, part)))
    bench = r"^access\.Transpose\.track_moved"
    values = []
    for name, plugins in (("at-once", []), ("one-by-one", [f".{stock.stem}"])):
        conf = json.loads((history.folder / "asv.conf.json").read_text())
        conf["plugins"] += plugins
        conf["results_dir"] = str(history.home / name)
        path = history.folder / f".{name}.conf.json"
        path.write_text(json.dumps(conf))
        done = history.asv(
            "--config",
            str(path),
            "run",
            "-E",
            "checkout",
            "--bench",
            bench,
            f"HASHFILE:{hashes}",
            KERNELWATCH_ONLY=cells,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        (written,) = (history.home / name).glob(f"*/{commit[:8]}*.json")
        columns = json.loads(written.read_text())
        values.append({name: dict(zip(columns["result_columns"], row)) for name, row in columns["results"].items()})  # noqa: B905
        path.unlink()
    stock.unlink()
    history.git("checkout", "-q", str(ladder))
    for found in values:
        assert sum(value is not None and not math.isnan(value) for value in found[MOVED]["result"]) == 4
    for name in values[0]:
        assert repr(values[0][name]["result"]) == repr(values[1][name]["result"])
        assert values[0][name]["params"] == values[1][name]["params"]


MOVED = "access.Transpose.track_moved"
