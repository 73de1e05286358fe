"""The example project: its history, its bounds, and what is flagged in its recorded results."""

import dataclasses
import importlib
import io
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from rich.console import Console

from kernelwatch.plan.project import Project, load_from
from lab import examples, figures, planted
from lab.planted import Flag
from tests.pages import browser, opened, pages_group
from tests.repositories import without_modules

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser"]  # a fixture

pytestmark = pytest.mark.xdist_group("examples")  # one history for all of these

ROOT = examples.EXAMPLES / "repository"


@pytest.fixture(scope="module")
def project() -> Iterator[Project]:
    """The example's description, as the engine loads it, with the package beside it importable."""
    with without_modules("benchmarks", "layers"), pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        yield load_from(ROOT / "benchmarks")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("example") / "repository"
    assert examples.main(["build", str(folder)]) == 0
    return folder


# Small shapes, ragged where an op takes any.
SHAPES = {
    "row_sum": ((1, 1), (3, 1000)),
    "softmax": ((1, 1), (5, 777)),
    "rms_norm": ((1, 1), (4, 130)),
    "attention": ((2, 33, 16),),
    "scaled_matmul": ((3, 5, 70), (16, 16, 64)),
}


def operands(project: Project, op: str, shape: tuple[int, ...]) -> tuple[list[Any], Any, dict[str, Any]]:
    """Inputs, an output of NaN, and the scalars."""
    random = np.random.default_rng()
    made = project.op(op).computation.operands(shape, project.op(op).types[0])
    inputs = [
        array.values(random, array.shape, array.dtype)
        if array.values
        else random.standard_normal(array.shape).astype(array.dtype)
        for array in made.inputs
    ]
    (out,) = made.outputs
    return inputs, np.full(out.shape, np.nan, out.dtype), dict(made.scalars)


def by_numpy(op: str) -> Any:
    return getattr(importlib.import_module("layers.by_numpy"), op)


@pytest.mark.parametrize("op", ["row_sum", "softmax", "rms_norm", "scaled_matmul"])
def test_numpy_is_within_the_bound_and_a_mistake_is_not(project: Project, op: str) -> None:
    computation = project.op(op).computation
    assert computation.bound is not None
    for shape in SHAPES[op]:
        inputs, out, scalars = operands(project, op, shape)
        inputs[0] = abs(inputs[0])  # no sum is small
        by_numpy(op)(*inputs, out=out, **scalars)
        right: Any = computation.reference(*inputs, **scalars)
        bound: Any = computation.bound(project.op(op).types[0], *inputs, **scalars)
        assert (abs(out - right) <= bound).all()
        at = np.unravel_index(int(abs(right).argmax()), right.shape)
        assert not abs(1.001 * right - right)[at] <= np.broadcast_to(bound, right.shape)[at]


def test_attention_in_half_precision_is_within_its_bound(project: Project) -> None:
    """As the fused kernels do it: float32 scores, weights of float16, a float16 result."""
    computation = project.op("attention").computation
    assert computation.bound is not None
    for shape in SHAPES["attention"]:
        (q, k, v), _, scalars = operands(project, "attention", shape)
        scores = (q.astype(np.float32) @ k.astype(np.float32).swapaxes(1, 2)) * np.float32(scalars["scale"])
        powers = np.exp(scores - scores.max(axis=2, keepdims=True))
        sums = powers.astype(np.float16).astype(np.float32) @ v.astype(np.float32)
        out = (sums / powers.sum(axis=2, keepdims=True)).astype(np.float16).astype(np.float64)
        right: Any = computation.reference(q, k, v, **scalars)
        bound: Any = computation.bound("float16", q, k, v, **scalars)
        assert (abs(out - right) <= bound).all()
        assert not (abs(np.roll(out, 1, axis=1) - right) <= bound).all(axis=2).any()  # no row is another's


def test_every_op_has_its_suite_and_every_rung_its_function(project: Project) -> None:
    layers: ModuleType = importlib.import_module("layers")
    suites = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - {"__init__", "project"}
    assert set(layers.KERNELS) == set(project.ops) == suites
    for problem in project.problems:
        assert set(layers.KERNELS[problem.name]) == {rung.name for rung in problem.rungs}
        assert set(layers.BINARIES[problem.name]) == {rung.name for rung in problem.rungs if rung.compiled}


def test_the_history_can_be_built_anywhere(built: Path) -> None:
    hashes = planted.commits(built)
    assert len(hashes) == len(examples.changes()) + 1
    recorded = {path.name[:8] for path in (examples.EXAMPLES / "results").glob("*/*-checkout-*.json")}
    assert recorded == {commit[:8] for commit in hashes}
    with pytest.raises(SystemExit, match="is not empty; name a new folder"):
        examples.build(built)


@pytest.fixture(scope="module")
def without_a_gpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recorded results of the machine that has no GPU."""
    folder = tmp_path_factory.mktemp("results")
    (recorded,) = (examples.EXAMPLES / "results").glob("no-gpu.*")
    shutil.copytree(recorded, folder / recorded.name)
    shutil.copy(examples.EXAMPLES / "results" / "benchmarks.json", folder)
    return folder


@pytest.fixture(scope="module")
def page(built: Path, without_a_gpu: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    return planted.publish(built, without_a_gpu, folder, examples.NAME, explained=0)


def judged(seconds: list[Flag] | None, exact: list[Flag]) -> tuple[bool, str]:
    console = Console(file=io.StringIO(), record=True, width=200)
    return examples.judge(seconds, exact, console), console.export_text()


def test_the_recorded_results_are_judged_by_what_they_have(
    built: Path, without_a_gpu: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert examples.main(["judge", str(built), "--recorded"]) == 0
    said = capsys.readouterr().out
    assert "8 commits, 5 of them planted: flagged is exactly what was planted" in said  # by the seconds
    assert "8 commits, 2 of them planted: flagged is exactly what was planted" in said  # by the exact figures
    assert "occupancy" in said
    folder = without_a_gpu.parent / "examples"
    folder.mkdir()
    (folder / "results").symlink_to(without_a_gpu)
    (folder / "commits.toml").symlink_to(examples.EXAMPLES / "commits.toml")
    monkeypatch.setattr(examples, "EXAMPLES", folder)
    assert examples.main(["judge", str(built), "--recorded"]) == 0
    said = capsys.readouterr().out
    assert "no GPU timed these commits: judged by the exact figures alone" in said
    assert "8 commits, 2 of them planted: flagged is exactly what was planted" in said


def test_the_tables_are_those_of_the_recorded_results(built: Path) -> None:
    text = (examples.EXAMPLES / "README.md").read_text(encoding="utf-8")
    records = examples.on_a_gpu(examples.EXAMPLES / "results", planted.commits(built))
    assert len(records) == 8
    for name, tables in examples.tables(records).items():
        begin, end = figures.marks(name, "scripts/lab/examples figures")
        assert f"{begin}\n\n{tables}\n\n{end}" in text


def test_a_change_of_a_cell_is_no_variation_of_it() -> None:
    assert examples.repeated([1.0, 1.0, 2.0, 2.0], 2) == 0
    assert examples.repeated([1.0, 3.0], 0) == pytest.approx(math.sqrt(0.5))
    assert examples.repeated([1.0, 3.0, 4.0, 12.0], 2) == pytest.approx(math.sqrt(0.5))


def test_a_flag_too_many_or_too_few_is_told(page: Path) -> None:
    exact = planted.flags_on(page, exact=True)
    assert judged(None, exact)[0]
    subject = exact[0].subject
    assert not judged(None, [flag for flag in exact if flag.subject != subject])[0]
    assert not judged(None, [*exact, dataclasses.replace(exact[0], subject="README: what is measured")])[0]
    assert not judged(None, [*exact, dataclasses.replace(exact[0], kind="regression")])[0]
    assert not judged([], exact)[0]  # a GPU timed the commits, and nothing was flagged
    seconds = [
        Flag(planted.KINDS[change.effect], change.subject, f"{op} {rung} 16384x4096 cold", rung, 0.5)
        for change in examples.changes()
        if change.effect
        for op, rung in [change.rung.split("/")]
    ]
    right, said = judged(seconds, exact)
    assert right
    assert "8 commits, 5 of them planted: flagged is exactly what was planted" in said
    assert not judged([*seconds, dataclasses.replace(seconds[0], cell="softmax triton 16384x4096 cold")], exact)[0]


@pytest.mark.parametrize(("value", "known"), [(1e-3, True), (math.nan, False), (None, False)])
def test_seconds_are_judged_if_a_gpu_timed_any(value: float | None, known: bool, tmp_path: Path) -> None:
    file = tmp_path / "machine" / "01234567-checkout-py3.12.json"
    file.parent.mkdir()
    file.write_text(
        json.dumps({"results": {"softmax.GPU.track_seconds": [[value], []], "softmax.Static.x": [[1], []]}})
    )
    assert examples.timed(tmp_path) is known


def test_what_was_planted_in_compiled_kernels_is_flagged_by_its_exact_figures(page: Path) -> None:
    events = json.loads((page.parent / "data" / "events.json").read_text(encoding="utf-8"))["events"]
    kinds = {"regression": "worse", "improvement": "better"}
    flagged = {
        (event["last"]["subject"], change["benchmark"].split(".")[0], change["params"]["rung"], kinds[event["kind"]])
        for event in events
        for change in event["changes"]
        if change["exact"]
    }
    wanted = {
        (change.subject, op, f"'{rung}'", change.exact)
        for change in examples.changes()
        if change.exact
        for op, rung in [change.rung.split("/")]
    }
    assert len(wanted) == 2
    assert flagged == wanted


@pages_group
def test_pages_without_a_time_say_so(browser: "Browser", page: Path) -> None:
    with opened(browser, page.parent, "status") as status:
        card = status.locator(".machine").inner_text()
        assert "No open regression in the exact figures of the newest commit; no time is recorded." in card
        assert "since the first" not in card
    with opened(browser, page.parent, "history") as shown:
        assert "No time is recorded on no-gpu.amd-epyc" in shown.locator("main").inner_text()
    with opened(browser, page.parent, "rung?op=attention&rung=triton") as shown:
        text = shown.locator("main").inner_text()
        assert "this machine\u2019s GPU" not in text
        assert "Other architectures" not in text
        assert "float16 sm_100" in shown.get_by_role("region", name="Exact figures of attention/triton").inner_text()


@pages_group
def test_pages_open_on_a_machine_with_times(browser: "Browser", built: Path, tmp_path: Path) -> None:
    page = planted.publish(built, examples.EXAMPLES / "results", tmp_path / "pages", examples.NAME, explained=0)
    with opened(browser, page.parent, "history") as shown:
        assert shown.get_by_label("machine").input_value().startswith("nvidia-h200.")
    with opened(browser, page.parent, "history?machine=no-gpu.amd-epyc.x86-64.linux") as shown:
        assert "No time is recorded on no-gpu" in shown.locator("main").inner_text()
        shown.get_by_label("machine").select_option(label="nvidia-h200.intel-xeon-processor.x86-64.linux")
        shown.get_by_text("median over fresh processes").wait_for()
