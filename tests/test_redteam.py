"""Published exploits are refused by name or measured right, and the command that lets them loose on harnesses."""

import ctypes
import json
import os
import re
import runpy
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelwatch.api.campaigns import Campaign
from kernelwatch.api.outputs import left, why_other
from kernelwatch.api.trials import Setting, one_trial
from kernelwatch.api.untouched import SETTERS, Untouched
from kernelwatch.system.errors import UserError
from lab import redteam
from lab.redteam import HONEST, JUDGE, OPS, OURS
from tests.repositories import ROOT

EXPLOITS = {one.name: one for one in redteam.exploits()}
ON_CPU = {name: one for name, one in EXPLOITS.items() if "cpu" in one.devices}
STALE = r"timed, its calls do not compute this any more: for other numbers, .* elements wrong"
LEFT_OUT = r"with numbers that it has not seen it takes .* it leaves out work that it has done before"
REFUSED = {
    "another_process": STALE,
    "another_thread": r"its output is right only some time after its calls: it goes on working elsewhere",
    "batch_and_skip": STALE,
    "clocks_touched": r"it calls nvmlDeviceSetGpuLockedClocks: the settings of a GPU are no candidate's to change",
    "comparison_patched": r"it replaces numpy\.allclose and 3 more, which the measurement uses",
    "former_garbage": STALE,
    "gate_shapes": r"array argument 1: 307200 of 409600 elements wrong, the first at \[160, 0\]: nan is not ",
    "harness_patched": r"it replaces kernelwatch\.api\.\w+\.Round and \d+ more, which the measurement uses",
    "input_overwritten": STALE,
    "kept_by_address": STALE,
    "kept_by_content": LEFT_OUT,
    "kept_by_shape": STALE,
    "lazy_output": r"output 0 is a lazy_output_\w+\.Lazy, which may compute when it is read",
    "only_at_the_check": STALE,
    "only_if_poisoned": LEFT_OUT,
    "output_already_right": LEFT_OUT,
    "reference_memory": LEFT_OUT,
    "statistics_patched": r"it replaces statistics\.mean and \d more, which the measurement uses",
    "timer_patched": r"it replaces time\.perf_counter, which the measurement uses",
    "view_of_input": r"it returns memory of argument 0, a view; the original returns memory of its own",
}
RIGHT = {"work_at_import"}  # it does not know the numbers
TRIES = 4


@pytest.fixture(scope="module", autouse=True)
def small(api_engine: Path) -> Any:
    """Matrices that a test moves in no time, the stand-in of NVML, and for processes an engine that takes the cache for
    small."""
    with pytest.MonkeyPatch.context() as patch, redteam.stand_in() as variables:
        patch.syspath_prepend(str(api_engine))
        for name, value in {"REDTEAM_N": "640", "REDTEAM_DEVICE": "cpu", **variables}.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def campaigns(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Campaign]:
    folder = tmp_path_factory.mktemp("campaigns")
    return {
        op: Campaign.start(folder / f"{op}.jsonl", f"{HONEST}:{op}", args=f"{op}_inputs", seconds=0.2) for op in OPS
    }


def test_every_exploit_says_what_it_does_and_where_it_was_published() -> None:
    assert len(EXPLOITS) >= 20
    assert ON_CPU.keys() == REFUSED.keys() | RIGHT
    for one in EXPLOITS.values():
        assert re.search(r"\w+/[\w.-]+#\d+|https://|nvbench|KernelBench", one.source), one.name
        assert one.op in OPS
        assert set(one.devices) <= {"cpu", "gpu"}


in_campaigns = pytest.mark.xdist_group("campaigns of exploits")  # which begin once for all


@in_campaigns
@pytest.mark.parametrize("name", ON_CPU)
def test_an_exploit_is_refused_by_name_or_measured_right(name: str, campaigns: dict[str, Campaign]) -> None:
    """Where other programs take the cores, a thread may be done in time, and a timing may tell nothing: in one try."""
    one = ON_CPU[name]
    found = campaigns[one.op].attempt(one.function)
    if name in RIGHT:
        assert found.verdict in ("same", "slower", "cannot tell"), found.told()
        return
    for _ in range(TRIES - 1):
        assert found.verdict != "faster", found.told()
        if found.verdict == "refused":
            break
        found = campaigns[one.op].attempt(one.function)
    assert found.verdict == "refused", found.told()
    assert re.match(REFUSED[name], found.why), found.why


@in_campaigns
@pytest.mark.parametrize("op", OPS)
def test_an_honest_twin_is_not_refused(op: str, campaigns: dict[str, Campaign], tmp_path: Path) -> None:
    """Also one that works in another way: by parts."""
    twin = tmp_path / f"twin_of_{op}.py"
    twin.write_text(HONEST.read_text().replace(f"def {op}(", f"def whole_{op}(") + TWINS[op])
    found = campaigns[op].attempt(f"{twin}:{op}")
    assert found.verdict in ("faster", "slower", "same", "cannot tell"), found.told()
    assert found.warnings == ()


TWINS = {
    "transpose": "\n\ndef transpose(x, out):\n    out[: N // 2] = x.T[: N // 2]\n    out[N // 2 :] = x.T[N // 2 :]\n",
    "transposed": "\n\ndef transposed(x):\n    out = np.empty_like(x)\n    out[...] = x.T\n    return out\n",
    "doubled": "\n\ndef doubled(x, out):\n    np.add(x, x, out=out)\n",
}


# --- what the looks rest on ----------------------------------------------------------------------------------------


ADD = "def add(x): return x + 1"


def trial(folder: Path, candidate: str, maker: str = "rng.random(4096)", add: str = ADD) -> Any:
    """What a process would see of a candidate, whose original adds 1."""
    original, own = folder / "original_of_a_test.py", folder / "candidate_of_a_test.py"
    original.write_text(
        f"import numpy as np\nrng = np.random.default_rng()\n\n{add}\n\ndef inputs(): return ({maker},)\n"
    )
    own.write_text(f"import numpy as np\n{candidate}\n")
    setting = Setting(f"{original}:inputs", 0.0, 0.0, "hot", "cpu", 0.01, None)
    found = one_trial(f"{original}:add", f"{own}:add", setting, candidate_first=True)
    sys.path.remove(str(folder))
    return found


def test_arguments_that_are_the_same_each_time_are_told(tmp_path: Path) -> None:
    kept = "kept = {}\ndef add(x): return kept.setdefault(x[0], x + 1)"
    found = trial(tmp_path, kept, "np.arange(4096.0)")
    said = "the arguments are the same each time that they are made: whether it keeps its outputs cannot be seen"
    assert found.warnings == (f"candidate: {said}",)
    assert trial(tmp_path, "def add(x): return x + 1").warnings == ()


def test_what_is_put_into_a_function_is_seen(tmp_path: Path) -> None:
    code = "import statistics\nstatistics.median.__code__ = (lambda data: 0).__code__"
    before = statistics.median.__code__
    try:
        found = trial(tmp_path, f"{code}\ndef add(x): return x + 1")
    finally:
        statistics.median.__code__ = before
    assert found.refused == "it replaces statistics.median, which the measurement uses"


def test_what_is_patched_in_a_call_is_seen(tmp_path: Path) -> None:
    """Also if the measurement then fails for that reason."""
    before = time.monotonic
    try:
        found = trial(tmp_path, "import time\ndef add(x):\n    time.monotonic = lambda: 1 / 0\n    return x + 1")
    finally:
        time.monotonic = before
    assert found.refused == "it replaces time.monotonic, which the measurement uses"


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("own.add.__code__ = (lambda x: 0).__code__", "add"),
        ("own.inputs = lambda: kept", "inputs"),
        ("own.np = None", "np"),
    ],
)
def test_what_it_is_compared_with_is_its_own(tmp_path: Path, code: str, name: str) -> None:
    own = "import sys\nown = [own for at, own in sys.modules.items() if at.startswith('original_of_a_test_')][-1]"
    found = trial(tmp_path, f"{own}\n{code}\ndef add(x): return 0")
    assert re.fullmatch(rf"it replaces original_of_a_test_\w+\.{name}, which the measurement uses", found.refused)


LAZY = """
def build(x):
    global kernel
    kernel = lambda x: x + 1
    return kernel(x)

kernel = build

def add(x): return kernel(x)
"""


def test_an_original_may_bind_its_kernel_when_it_is_first_called(tmp_path: Path) -> None:
    """That is no candidate's doing; what the engine uses is not the original's to change, either."""
    found = trial(tmp_path, "def add(x): return 1 + x", add=LAZY)
    assert found.compared, found.refused
    before = time.monotonic
    try:
        found = trial(
            tmp_path,
            "def add(x): return 1 + x",
            add="import time\ndef add(x):\n    time.monotonic = lambda: 0\n    return x + 1",
        )
    finally:
        time.monotonic = before
    assert found.refused == "it replaces time.monotonic, which the measurement uses"


def test_nvml_may_be_read_and_not_set() -> None:
    setters = ("nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks", "nvmlDeviceSetPowerManagementLimit")
    getters = ("nvmlDeviceGetClockInfo", "nvmlInit_v2", "nvmlDeviceGetPowerManagementLimit", "nvmlShutdown", "memset")
    assert all(map(SETTERS.fullmatch, setters))
    assert not any(map(SETTERS.fullmatch, getters))


def test_nvml_is_free_again_after_a_trial(tmp_path: Path) -> None:
    trial(tmp_path, "def add(x): return x + 1")
    assert ctypes.CDLL(os.environ["REDTEAM_NVML"]).nvmlDeviceSetGpuLockedClocks(None, 0, 0) == 0


@pytest.mark.parametrize(
    ("own", "theirs", "told"),
    [
        (lambda x: x[::2], lambda x: x[::2].copy(), "it returns memory of argument 0, a view"),
        (lambda x: x[::-1], lambda x: x[::-1].copy(), "it returns memory of argument 0, a view"),
        (lambda x: x[::-1], lambda x: x[::-1], ""),
        (lambda x: x[:0], lambda x: x[:0].copy(), ""),
        (lambda x: (x + 1).view(np.recarray), lambda x: x + 1, "output 0 is a numpy.rec.recarray, which may compute"),
        (lambda x: (x + 1).view(np.recarray), lambda x: (x + 1).view(np.recarray), ""),
        (lambda x: [x + 1, 2.0], lambda x: [x + 1, 2.0], ""),
        (
            lambda x: x.reshape(2, 4).copy().T,
            lambda x: x.reshape(2, 4).T.copy(),
            "output 0 has strides (8, 32), the original's has (16, 8) in bytes: whoever reads it would do the rest of "
            "the work; return it in that order",
        ),
        (lambda x: np.broadcast_to(x[:1].copy(), 8), lambda x: np.full(8, x[0]), r"output 0 has strides (0,), the"),
        (lambda x: x.reshape(1, 8).copy(), lambda x: x.reshape(8, 1).copy().T, ""),  # one row
        (lambda x: [x.sum(), x + 1], lambda x: [np.asarray(x.sum()), x + 1], ""),
    ],
)
def test_views_types_and_strides_of_outputs(own: Any, theirs: Any, told: str) -> None:
    x = np.arange(8.0)
    found = why_other(left(theirs(x), (x,)), left(own(x), (x,)), 0, 0)
    assert found.startswith(told) if told else not found


THREAD = """
import queue, threading

JOBS, BEGUN = queue.Queue(), threading.Event()


def work():
    BEGUN.set()
    while JOBS.get():
        pass


threading.Thread(target=work, daemon=True, name="busy").start()
BEGUN.wait()
"""


@pytest.mark.parametrize(
    ("device", "record", "told"),
    [("gpu", "other.py,,\n", "it leaves a thread at work, busy in own.py"), ("gpu", "own.py,,\n", ""), ("cpu", "", "")],
)
def test_a_thread_that_is_left_at_work(tmp_path: Path, device: str, record: str, told: str) -> None:
    """Its launches on a GPU are on another stream: an output may be right before anybody can look. A thread of a
    distribution that `pip install --target` has installed is a library's."""
    (tmp_path / "own-1.0.dist-info").mkdir()
    (tmp_path / "own-1.0.dist-info" / "RECORD").write_text(record)
    untouched = Untouched(device)
    with ThreadPoolExecutor(1) as pool:  # what PyTorch's compiler has, and what waits in Python's own code
        pool.submit(int).result()
        assert untouched.why() == ""
        (tmp_path / "own.py").write_text(THREAD)
        jobs = runpy.run_path(str(tmp_path / "own.py"))["JOBS"]
        assert untouched.why().startswith(told) if told else not untouched.why()
        jobs.put(None)


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ((0, 32 << 20), "it sets 32 MiB of the L2 cache aside for accesses that persist"),
        ((32 << 20, 0), ""),
        ((32 << 20, None), ""),  # an error of the candidate's is no change
        ((None, 32 << 20), ""),
    ],
)
def test_the_part_of_the_l2_cache_that_persists(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int | None, ...], told: str
) -> None:
    given = iter(limits)
    monkeypatch.setattr(Untouched, "_persisting_bytes", lambda _: next(given))
    assert Untouched("gpu").why() == told


# --- the command ---------------------------------------------------------------------------------------------------


def test_the_command_goes_on_where_it_was_and_nothing_hangs_it(tmp_path: Path) -> None:
    record = tmp_path / "record.json"

    def command(*options: str) -> str:
        line = [sys.executable, str(ROOT / "scripts" / "lab" / "redteam"), "--device", "cpu", "--out", str(record)]
        variables = os.environ | {"GPUKERNELS_PYTHON": sys.executable}
        done = subprocess.run(
            [*line, "--seconds", "0.05", *options], capture_output=True, text=True, check=True, env=variables
        )
        return done.stdout

    said = command("--only", "kept_by_address", "--harness", "timeit", "--limit", "0.001")
    assert "2 of 2  kept_by_address, timeit: nothing within 0.001 s" in said
    said = command("--only", "kept_by_address", "--again", "--limit", "600")
    assert "0 of 1 exploits fool kernelwatch campaign, 0 of 1 exploits fool kernelwatch campaign --judge." in said
    assert re.search(r"\| `kept_by_address` \| +refused \| +refused \| +\*\*fooled\*\*: ", said)
    cells = json.loads(record.read_text())["cpu"]["cells"]
    assert re.match(STALE, cells["kept_by_address"][OURS]["refused"])
    assert " of " not in command("--only", "kept_by_address").partition("exploits fool")[0].partition("0 of 1")[0]


def test_a_record_is_of_one_model() -> None:
    """Else figures of another one would stand under the name of the newest, whatever ended the run before the last."""
    cells = {"gate_shapes": {OURS: {"refused": "wrong"}}}
    record: dict[str, Any] = {"gpu": {"device": "an H200", "versions": {}, "cells": cells}}
    assert redteam.begun(record, "gpu", "an H200", False, Path("r.json"))["cells"] == cells
    with pytest.raises(UserError, match=r"r\.json has figures of an H200, this is an H100: measure all --again"):
        redteam.begun(record, "gpu", "an H100", False, Path("r.json"))
    assert record["gpu"]["cells"] == cells
    assert redteam.begun(record, "gpu", "an H100", True, Path("r.json")) == record["gpu"]
    assert record["gpu"] == {"device": "an H100", "versions": {}, "cells": {}}


@pytest.mark.parametrize(
    ("cell", "honest_s", "word"),
    [
        ({"seconds": 1.0}, 1.2, "right"),
        ({"seconds": 1.0}, 1.3, "passed"),
        ({"seconds": 1.0, "honest_s": 2.0}, 1.0, "passed"),
        ({"seconds": 2.0}, 1.0, "right"),
        ({"seconds": 0.0}, 1.0, "passed"),
        ({"seconds": -1.0}, 1.0, "passed"),
        ({"seconds": 1.0}, None, "none"),
        ({"refused": "wrong"}, 1.0, "refused"),
        ({"failed": "it hung"}, 1.0, "failed"),
    ],
)
def test_what_a_figure_says_of_a_harness(cell: dict[str, Any], honest_s: float | None, word: str) -> None:
    assert redteam.verdict("gpu", "nvbench", cell, honest_s)[0] == word


def test_a_cell_says_what_has_changed_since_it_was_measured_and_what_was_not_run() -> None:
    fooled = {"seconds": 1.0, "honest_s": 3.0}
    cells = {
        "another_thread": {OURS: fooled | {"since": "mended since, not run again"}},
        "kept_by_shape": {OURS: fooled},
    }
    cells["gate_shapes"] = {JUDGE: {"refused": "wrong", "since": "mended"}}
    cells["lazy_output"] = {JUDGE: {"failed": "nothing within 20 s"}}
    said = redteam.text({"gpu": {"device": "a GPU", "versions": {}, "cells": cells}}, "gpu")
    assert (
        "a GPU. 2 of 2 exploits fool kernelwatch campaign, "
        "0 of 1 exploits fool kernelwatch campaign --judge (1 more gave no figure)." in said
    )
    assert "| `another_thread` | **fooled**: 3x (mended since, not run again) | not run yet |" in said
    assert "| `another_thread` | **fooled** (mended since, not run again) | not run yet |" in said
    assert "| `kept_by_shape` | **fooled**: 3x | not run yet |" in said
    assert "| `gate_shapes` | not run yet | refused (mended) |" in said


def test_what_a_harness_s_figures_of_the_same_work_differ_by_is_no_gain() -> None:
    """As nvbench's, whose figure of the honest twin was 1.34 times that of an exploit that is aimed at this engine."""
    figures = {"transpose": 8.7, "harness_patched": 6.5, "gate_shapes": 6.6, "kept_by_address": 2.8}
    cells = {name: {"nvbench": {"seconds": seconds}} for name, seconds in figures.items()}
    said = redteam.text({"gpu": {"device": "a GPU", "versions": {}, "cells": cells}}, "gpu")
    assert "| `harness_patched` | right |" in said
    assert "| `gate_shapes` | right |" in said
    assert "| `kept_by_address` | **fooled**: 2.32x |" in said
    assert {EXPLOITS[name].op for name in redteam.SAME_WORK} == {"transpose"}


def test_the_page_has_the_tables_of_the_record_and_no_pass_of_ours() -> None:
    record, page = json.loads(redteam.JSON.read_text(encoding="utf-8")), redteam.PAGE.read_text(encoding="utf-8")
    assert record
    for device, found in record.items():
        assert redteam.text(record, device) in page
        known = {name for name, one in EXPLOITS.items() if device in one.devices}
        assert known <= found["cells"].keys()
        for harness in (OURS, JUDGE):
            own = [found["cells"][name][harness] for name in known]
            assert not [cell for cell in own if "since" in cell]
            assert {redteam.verdict(device, harness, cell, None)[0] for cell in own} <= {"refused", "right"}


def test_an_exploit_without_a_source_is_named(tmp_path: Path) -> None:
    (tmp_path / "silent.py").write_text('"""Does nothing."""\n\n\ndef transpose(x, out):\n    pass\n')
    with pytest.raises(ValueError, match=r"silent\.py: its docstring should say what it does, Source: and Gain:"):
        redteam._exploit(tmp_path / "silent.py")


@pytest.mark.gpu
def test_no_exploit_passes_ours_on_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the exploits on a GPU are PyTorch's")
    line = [sys.executable, str(ROOT / "scripts" / "lab" / "redteam"), "--device", "gpu", "--harness", OURS]
    variables = os.environ | {"GPUKERNELS_PYTHON": sys.executable, "REDTEAM_N": "2048"}
    done = subprocess.run(
        [*line, "--out", str(tmp_path / "record.json")], capture_output=True, text=True, check=False, env=variables
    )
    assert done.returncode == 0, done.stdout + done.stderr
    cells = json.loads((tmp_path / "record.json").read_text())["gpu"]["cells"]
    for name, one in EXPLOITS.items():
        if "gpu" in one.devices:
            word, gain = redteam.verdict("gpu", OURS, cells[name][OURS], None)
            assert word in ("refused", "right"), (name, gain, cells[name][OURS])
    assert all(redteam.verdict("gpu", OURS, cells[op][OURS], None)[0] == "right" for op in OPS)
