"""The command that holds `best` against the vendors at shapes that a seed draws: what it draws, checks and tells."""

import json
import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import gpukernels
from benchmarks.project import PROJECT
from gpukernels import best, ladder
from kernelwatch.api.rounds import Round
from kernelwatch.system.errors import CANNOT
from lab import figures, shapes, shapes_cells
from lab.ahead import compile_ahead
from lab.shapes_cells import Drawn, draw
from tests.fake_gpu import Memory
from tests.test_api_gpu import device

__all__ = ["device"]  # a fixture

SEED = 1
DRAWN = [draw(SEED, number) for number in range(shapes.SHAPES)]


# --- what is drawn -------------------------------------------------------------------------------------------------


def test_the_seed_and_the_number_alone_decide() -> None:
    assert [draw(SEED, number) for number in reversed(range(shapes.SHAPES))] == DRAWN[::-1]
    others = [draw(2, number) for number in range(shapes.SHAPES)]
    assert [one.type for one in others] == [one.type for one in DRAWN]
    assert len({one.key for one in others} & {one.key for one in DRAWN}) == 0


def test_every_type_that_best_takes_is_drawn_in_every_kind_of_shape() -> None:
    assert set(shapes_cells.ORDER) == set(shapes_cells.KINDS)  # no other op is drawn
    for op in map(ladder.op, shapes_cells.KINDS):
        own = [one for one in DRAWN if one.op == op.name]
        taken = {type for rung in op.rungs for type in rung.types if best.fits(rung, type, shapes_cells.CAPABILITY)}
        assert {one.type for one in own} == taken
        for type in taken:
            kinds = [one.kind for one in own if one.type == type]
            assert len(kinds) >= len(shapes_cells.KINDS[op.name])
            assert set(kinds) == set(shapes_cells.KINDS[op.name])


def test_products_are_of_all_sizes_skinny_and_ragged() -> None:
    products = [one for one in DRAWN if one.op == "matmul"]
    sides = [side for one in products for side in one.shape]
    assert 64 <= min(sides) < 80
    assert 12000 < max(sides) <= 16384
    skinny = [one for one in products if max(one.shape) >= 16 * min(one.shape)]
    ragged = [one for one in products if any(side % 8 for side in one.shape)]
    assert 0.3 < len(skinny) / len(products) < 0.9
    assert 0.3 < len(ragged) / len(products) < 0.7
    for kind, at in (("few rows", 0), ("few columns", 1), ("small K", 2)):
        own = [one.shape for one in products if one.kind == kind]
        assert all(shape[at] <= 256 < min(shape[:at] + shape[at + 1 :]) / 3 for shape in own), kind
    square = [one.shape for one in products if one.kind == "nearly square" and min(one.shape) > 1000]
    assert all(max(shape) < 1.8 * min(shape) for shape in square)


def test_no_shape_is_larger_than_the_memory_or_a_day() -> None:
    assert max(one.nbytes for one in DRAWN) <= shapes_cells.MEMORY_BYTES
    flops = sum(2 * math.prod(one.shape) for one in DRAWN if one.op == "matmul")
    assert flops / 50e12 < 3  # seconds of one call of each product, at a rate of float32


def test_the_operands_of_a_shape() -> None:
    one = Drawn(0, "matmul", "float16->float32", "any", (70, 80, 90))
    half, single = np.dtype(np.float16), np.dtype(np.float32)
    assert one.operands() == [((70, 90), half), ((90, 80), half), ((70, 80), single)]
    assert one.nbytes == 2 * (70 * 90 + 90 * 80) + 4 * 70 * 80
    assert Drawn(0, "transpose", "complex128", "any", (3, 5)).operands()[-1] == ((5, 3), np.dtype(np.complex128))


def test_only_takes_the_first_that_fit() -> None:
    own = shapes.chosen(SEED, 5, "matmul float64 ", "gpu")
    assert own == [one for one in DRAWN if one.op == "matmul" and one.type == "float64"][:5]
    trained = shapes.chosen(SEED, 100, "", "gpu", training=True)
    assert ("matmul", "float64") not in {(one.op, one.type) for one in trained}
    assert {one.type for one in trained} == {one.type for one in DRAWN} - {"float64"} | {"float64"}


# --- what is right -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type", shapes_cells.types("matmul"))
def test_the_sums_of_the_check_are_exact_in_the_output(type: str) -> None:
    """Rounded at most once, and finite; and A has more bits than a narrower type keeps, unless the output is narrow."""
    one = Drawn(0, "matmul", type, "large K", (64, 64, 16384))
    rng = np.random.default_rng()
    *inputs, (_, out) = one.operands()
    a, b = (
        shapes_cells.numbers(shape, dtype, bits, rng, np)
        for (shape, dtype), bits in zip(inputs, shapes_cells.exact_bits(one), strict=True)
    )
    wide = [shapes_cells.comparable(each).astype(np.float64) for each in (a, b)]
    assert all((each == np.round(each)).all() for each in wide)
    expected = shapes_cells.rounded(wide[0] @ wide[1], out)
    assert np.isfinite(expected.astype(np.float64)).all()
    typical = np.sqrt(np.square(wide[0]) @ np.square(wide[1])).max()  # of a sum of numbers of both signs
    assert 8 * typical < 2.0 ** (53 if type == "float64" else 24)


def test_bfloat16_is_rounded_as_ml_dtypes_does() -> None:
    dtype = np.dtype("bfloat16")
    exact = np.random.default_rng().integers(-(2**23), 2**23, 10_000).astype(np.float64)
    assert (shapes_cells.rounded(exact, dtype) == exact.astype(dtype).astype(np.float32)).all()
    assert (shapes_cells.comparable(exact.astype(dtype)) == exact.astype(dtype).astype(np.float32)).all()


def bind(change: int) -> Any:
    """A binder of transposes, of which the first `change` elements are wrong."""

    def binder(a: Any, out: Any) -> Any:
        def call() -> None:
            out[...] = a.T
            out.reshape(-1)[:change] += 1

        return call

    return binder


def raising(*_: Any, out: Any) -> Any:
    raise ValueError("no such type\nand more")


def test_what_best_may_take_is_compiled_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUKERNELS_CACHE", str(tmp_path))  # other tests compile to the shared one meanwhile
    wanted = [
        ("transpose", "naive_read", "complex128"),
        ("matmul", "cublas", "float32"),
        ("matmul", "wgmma", "float16"),
    ]
    compile_ahead(wanted, "sm_80", workers=1)
    assert len([*tmp_path.rglob("*.cubin")]) == 1
    assert "matmul/wgmma float16: " in capsys.readouterr().err


def test_the_training_leaves_out_what_was_slow_everywhere() -> None:
    names = shapes.contending("matmul", "float32", 90)
    assert {"bf16x6", "cublas", "pipelined_32x64", "split_tail"} <= set(names)
    assert not {"initial", "coalesced", "texture", "fp16x3", "torch"} & set(names)
    assert shapes.contending("matmul", "float16", 90) == [
        name
        for name in shapes.contending("matmul", "float16->float32", 90)
        if "float16" in ladder.rung("matmul", name).types
    ]
    assert shapes.contending("matmul", "float64", 90) == ["cublas"]


def test_a_wrong_output_and_an_exception_are_told() -> None:
    one = Drawn(0, "transpose", "uint16", "any", (30, 20))
    binders = {"right": bind(0), "off": bind(2), "raises": raising, "nothing": lambda *_, out: lambda: None}
    found = shapes.wrong(one, binders, np, 1)
    assert found == {
        "off": "2 of 600 elements are wrong",
        "raises": "ValueError: no such type",
        "nothing": "600 of 600 elements are wrong",
    }


# --- a record ------------------------------------------------------------------------------------------------------


def test_on_a_cpu_it_draws_checks_times_and_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shapes, "CPU_MOST", 96)
    monkeypatch.setattr(shapes, "TURNS_MOST", shapes.TURNS_LEAST)
    out = tmp_path / "shapes.jsonl"
    assert shapes.main(["--device", "cpu", "--shapes", "8", "--seed", "3", "--budget", "300", "--out", str(out)]) == 0
    lines = shapes.read(out)
    assert [line["number"] for line in lines] == list(range(8))
    assert len({tuple(line["shape"]) for line in lines}) == 8
    assert {line["op"] for line in lines} == {"matmul", "transpose", "vector_add"}
    for line in lines:
        assert line["seed"] == 3
        assert line["rung"] == "c_openmp"
        assert line["fastest"] == "numpy"
        low, high = line["interval"]
        assert low <= line["ratio"] <= high
        own, other = line["best"], line["others"]["numpy"]
        assert len(own["samples"]) == len(other["samples"]) >= shapes.TURNS_LEAST
        assert 0.2 < line["ratio"] / (own["seconds"] / other["seconds"]) < 5  # the CPU is not quiet
    assert shapes.text(lines) in capsys.readouterr().out


def test_an_error_costs_its_own_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, told = tmp_path / "shapes.jsonl", list[int]()

    def figures(self: Any, one: Drawn, seconds: float) -> dict[str, Any]:
        told.append(len(out.read_text().splitlines()) if out.exists() else 0)
        if one.number == 1:
            raise MemoryError("out of memory\nsomewhere")
        return measured(ratio=1.0)

    monkeypatch.setattr(shapes.Shapes, "_figures", figures)
    assert shapes.main(["--device", "cpu", "--shapes", "3", "--out", str(out)]) == 2
    assert told == [0, 1, 2], "each shape is on the disk before the next one begins"
    assert [line.get("error") for line in shapes.read(out)] == [None, "MemoryError: out of memory", None]
    assert "MemoryError: out of memory" in shapes.text(shapes.read(out))


def test_a_run_that_was_stopped_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, taken = tmp_path / "shapes.jsonl", list[int]()
    faults: dict[int, BaseException] = {3: MemoryError("out of memory"), 4: KeyboardInterrupt()}

    def figures(self: Any, one: Drawn, seconds: float) -> dict[str, Any]:
        taken.append(one.number)
        if one.number in faults:
            raise faults.pop(one.number)
        return measured(ratio=1.0) | {"device": self.timer.name, "conditions": self.timer.conditions()}

    def run(*more: str) -> list[int]:
        taken.clear()
        assert shapes.main(["--device", "cpu", "--shapes", "6", "--out", str(out), *more]) == 0
        return list(taken)

    monkeypatch.setattr(shapes.Shapes, "_figures", figures)
    with pytest.raises(KeyboardInterrupt):
        run()
    assert [line["number"] for line in shapes.read(out)] == [0, 1, 2, 3]
    assert run("--resume") == [3, 4, 5], "the shape that was an error is measured again"
    assert [line["number"] for line in shapes.read(out)] == list(range(6))
    assert "6 shapes of seed 1" in capsys.readouterr().out
    assert run("--resume") == []
    assert run() == list(range(6)), "without the option all is measured anew"
    assert run("--resume", "--seed", "2") == list(range(6)), "another seed draws other shapes"
    monkeypatch.setattr(shapes, "kernels", lambda: "others")
    assert run("--resume", "--seed", "2") == list(range(6))
    for change in ({"device": "another"}, {"torch": "1"}, {"conditions": {"driver": "1"}}):
        out.write_text("".join(f"{json.dumps(line | change)}\n" for line in shapes.read(out)))
        assert run("--resume", "--seed", "2") == list(range(6)), change


def test_the_training_adds_the_shapes_of_another_seed_or_of_other_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "shapes.jsonl"
    monkeypatch.setattr(shapes.Shapes, "_figures", lambda *_: {"rungs": {"numpy": 1.0}})
    monkeypatch.setattr(shapes, "contending", lambda *_: ["numpy", "c_openmp"])

    def run(*more: str) -> list[tuple[int, Any, int]]:
        assert shapes.main(["--device", "cpu", "--train", "--shapes", "3", "--out", str(out), *more]) == 0
        return [(line["seed"], line.get("steps"), line["number"]) for line in shapes.read(out)]

    usual, third = [(2, None, at) for at in range(3)], [(3, None, at) for at in range(3)]
    assert run() == usual
    assert run("--seed", "3") == usual + third
    assert run("--seed", "3", "--steps", "2", "4") == usual + third + [(3, [2, 4], at) for at in range(3)]
    new = shapes.read(out)[-3:]
    assert all(side % 2 == 0 for line in new for side in line["shape"])
    assert run() == third + [(3, [2, 4], at) for at in range(3)] + usual, "its own shapes are measured anew"


def test_the_training_keeps_each_shape_that_is_not_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, taken = tmp_path / "shapes.jsonl", list[int]()
    told: dict[str, Any] = {"seconds": 1.0, "stop_at": None}

    def figures(self: Any, one: Drawn, seconds: float) -> dict[str, Any]:
        if one.number == told["stop_at"]:
            raise KeyboardInterrupt
        taken.append(one.number)
        return {
            "rungs": {"numpy": told["seconds"]},
            "device": self.timer.name,
            "conditions": self.timer.conditions(),
        }

    monkeypatch.setattr(shapes.Shapes, "_figures", figures)
    monkeypatch.setattr(shapes, "contending", lambda *_: ["numpy", "c_openmp"])

    def run(only: str, *more: str, seed: int = 3, count: int = 3) -> list[int]:
        taken.clear()
        arguments = ["--device", "cpu", "--train", "--seed", str(seed), "--shapes", str(count), "--out", str(out)]
        assert shapes.main([*arguments, "--only", only, *more]) == 0
        return list(taken)

    def record() -> dict[int, float]:
        own = [line for line in shapes.read(out) if line["seed"] == 3]
        assert [line["number"] for line in own] == sorted({line["number"] for line in own})
        return {line["number"]: line["rungs"]["numpy"] for line in own}

    transposes, products = run("transpose"), run("matmul", "--resume")
    assert len(transposes) == len(products) == 3
    assert record() == dict.fromkeys([*transposes, *products], 1.0), "with --resume"
    run("transpose", seed=4)
    told["seconds"] = 2.0
    assert run("matmul", count=2) == products[:2]
    assert record() == dict.fromkeys(transposes, 1.0) | dict(zip(products, (2.0, 2.0, 1.0), strict=True)), "without it"
    assert sum(line["seed"] == 4 for line in shapes.read(out)) == 3
    told |= {"seconds": 3.0, "stop_at": transposes[1]}
    with pytest.raises(KeyboardInterrupt):
        run("transpose")
    assert [record()[number] for number in transposes] == [3.0, 1.0, 1.0], "a run that is stopped keeps the rest"
    told |= {"seconds": 4.0, "stop_at": None}
    monkeypatch.setattr(shapes, "kernels", lambda: "others")
    assert run("transpose", "--resume", count=1) == transposes[:1], "other kernels are measured anew"
    assert [record()[number] for number in transposes] == [4.0, 1.0, 1.0]


def test_any_text_of_the_package_makes_other_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "matmul" / "__pycache__").mkdir(parents=True)
    monkeypatch.setattr(gpukernels, "__file__", str(tmp_path / "__init__.py"))
    (tmp_path / "matmul" / "wgmma.cu").write_text("one")
    first = shapes.kernels()
    (tmp_path / "matmul" / "__pycache__" / "torch.pyc").write_bytes(b"compiled")
    assert shapes.kernels() == first
    (tmp_path / "matmul" / "wgmma.cu").write_text("two")
    second = shapes.kernels()
    (tmp_path / "matmul" / "wgmma.cu").rename(tmp_path / "matmul" / "wmma.cu")
    assert len({first, second, shapes.kernels()}) == 3


def test_when_the_budget_is_over_no_shape_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "shapes.jsonl"
    assert shapes.main(["--device", "cpu", "--budget", "0", "--out", str(out)]) == CANNOT
    assert not out.exists()
    assert "0 s are over: 200 shapes are not begun" in capsys.readouterr().err


def test_best_that_is_wrong_is_an_error_and_a_vendor_that_is_wrong_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    taker = shapes.Shapes("cpu", 1, training=False)
    one = Drawn(0, "transpose", "uint16", "any", (30, 20))

    def binders(**wanted: Any) -> dict[str, Any]:
        monkeypatch.setattr(shapes.Shapes, "binders", lambda *_: (dict(wanted), {}))
        return taker.take(one, 0.0)

    assert binders(best=bind(1), numpy=bind(0))["error"] == "UserError: best (c_openmp): 1 of 600 elements are wrong"
    assert "nothing to compare with" in binders(best=bind(0), numpy=bind(1))["error"]
    line = binders(best=bind(0), numpy=bind(0), other=raising)
    assert line["failed"] == {"other": "ValueError: no such type"}
    assert set(line["others"]) == {"numpy"}


def test_the_training_times_rungs_and_drops_the_slow_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taker = shapes.Shapes("cpu", 2, training=True)
    one = Drawn(0, "transpose", "float32", "any", (30, 20))
    calls: list[str] = []

    def timed(name: str, seconds: float) -> Any:
        class Timed:
            method, warnings = "host", ()

            def round(self, sets: Any) -> Any:
                calls.append(name)
                return Round(seconds, 1)

        return Timed()

    made = {"fast": timed("fast", 1.0), "near": timed("near", 1.4), "slow": timed("slow", 1.6)}
    monkeypatch.setattr(shapes.Shapes, "binders", lambda *_: ({name: bind(0) for name in made}, {}))
    monkeypatch.setattr(taker.timer, "subject", lambda name, *_: made[name], raising=False)
    line = taker.take(one, 0.0)
    assert line["rungs"] == pytest.approx({"fast": 1.0, "near": 1.4})
    assert line["failed"] == {"slow": "slower than 1.5 times the fastest"}
    assert calls.count("fast") == shapes.TURNS_OF_TRAINING
    assert calls.count("slow") == 1
    assert calls[:5] == ["fast", "near", "slow", "near", "fast"], "forth and back"


def test_on_a_fake_gpu_each_turn_binds_anew_and_times_graphs(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of bfloat16, of which CuPy makes no arrays. A launch is bound outside of captures, to memory of its turn."""
    seconds, bound = {"best": 2e-6, "cublas": 1e-6, "torch": 4e-6}, dict[str, set[int]]()

    def binder(name: str) -> Any:
        def bind(a: Any, b: Any, out: Any) -> Any:
            assert device.captured is None, "a launch with memory of its own cannot be bound in a capture"
            assert [each.dtype.name for each in (a, b, out)] == ["bfloat16"] * 3
            bound.setdefault(name, set()).add(out.ctypes.data)
            product = a.astype(np.float32) @ b.astype(np.float32)

            def run() -> None:
                out[...] = product.astype(out.dtype)

            return lambda: device.enqueue(name, (), seconds[name], run)

        return bind

    numbers = shapes_cells.numbers
    monkeypatch.setattr(shapes_cells, "numbers", lambda *given: numbers(*given).view(Memory))
    monkeypatch.setattr(shapes_cells, "binder", lambda op, rung, type: binder(rung))
    monkeypatch.setattr(shapes_cells, "_torch", lambda op, type: binder("torch"))
    monkeypatch.setattr(shapes_cells, "_cupy", lambda op: raising)
    monkeypatch.setattr(shapes, "compile_ahead", lambda wanted, arch: None)
    taker = shapes.Shapes("gpu", 1, training=False)
    one = Drawn(0, "matmul", "bfloat16", "any", (40, 48, 56))
    (line,) = shapes.run(taker, [one], 1.0)
    assert line.get("error") is None
    assert line["fastest"] == "cublas"
    assert line["ratio"] == pytest.approx(2.0)
    assert line["others"]["torch"]["seconds"] == pytest.approx(4e-6)
    assert {each["method"] for each in (line["best"], *line["others"].values())} == {"graph"}
    assert line["failed"] == {"cupy": "ValueError: no such type"}
    assert len(line["best"]["samples"]) >= shapes.TURNS_LEAST
    assert bound["best"] == bound["cublas"] == bound["torch"], "on the same copies"
    assert len(bound["best"]) > 1


# --- the table -----------------------------------------------------------------------------------------------------


def measured(ratio: float, half: float = 0.001, **changes: Any) -> dict[str, Any]:
    """What a line of the record has, if `best` takes `ratio` times as long as the others."""
    one = {"seconds": 1e-5, "interval": [0.9e-5, 1.1e-5], "samples": [1e-5] * 3, "method": "graph"}
    line = {
        "rung": "bf16x6",
        "best": one | {"seconds": ratio * 1e-5},
        "others": {"cublas": one, "torch": one | {"seconds": 2e-5}},
        "fastest": "cublas",
        "ratio": ratio,
        "interval": [ratio - half, ratio + half],
        "failed": {},
        "warnings": [],
        "device": "a GPU",
        "conditions": {"driver": "1", "cupy": "2"},
    }
    return line | changes


def record(*lines: dict[str, Any]) -> list[dict[str, Any]]:
    common = {"op": "matmul", "type": "float32", "kind": "any", "seed": 7, "date": "2026-01-01", "torch": "3"}
    return [common | {"number": at, "shape": [64 + at, 65, 66]} | line for at, line in enumerate(lines)]


def test_the_table_tells_where_best_loses_beyond_the_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = record(
        measured(0.5),
        measured(1.0),
        measured(1.2),
        measured(1.3, half=0.4),  # by noise alone
        measured(1.5, rung="pipelined"),
        measured(1.009, op="transpose", type="uint8", shape=[3, 5], others={"cupy": {"seconds": 1e-5}}, fastest="cupy"),
        {"error": "it broke"},
    )
    told = shapes.text(lines)
    first, *_ = told.splitlines()
    assert first.startswith("a GPU, driver 1, CuPy 2, PyTorch 3, 2026-01-01; 7 shapes of seed 7. A ratio is")
    assert "| matmul float32 | cublas, torch | 5 | 40 % | 1.200 | 0.500 | 1.500 | 2 |" in told
    assert "| transpose uint8 | cupy | 1 | 100 % | 1.009 | 1.009 | 1.009 | 0 |" in told
    lost = [line.split(" | ")[0] for line in told.splitlines() if "cublas | 10 us" in line]
    assert lost == ["| matmul float32 68x65x66", "| matmul float32 66x65x66"], "the worst first"
    assert "| matmul float32 68x65x66 | pipelined | 15 us | cublas | 10 us | 1.500 (1.499 to 1.501) |" in told
    assert "(2 of 6 shapes)" in told
    assert "| matmul float32 70x65x66 | it broke |" in told

    page, out = tmp_path / "page.md", tmp_path / "record.jsonl"
    page.write_text("before\n" + "\n\n".join(figures.marks("best", shapes.WRITER)) + "\nafter\n")
    out.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    monkeypatch.setattr(shapes, "PAGE", page)
    assert shapes.main(["--table", "--out", str(out)]) == 0
    assert told in page.read_text()
    assert page.read_text().startswith("before\n")


def test_without_losses_the_table_says_so() -> None:
    assert "`best` loses at none of the 1 shapes beyond the noise." in shapes.text(record(measured(1.0)))


def test_the_ratio_is_that_of_the_turns() -> None:
    own = {"seconds": 2.0, "samples": [2.0, 4.0, 8.0]}
    others = {"a": {"seconds": 9.0, "samples": [9.0] * 3}, "b": {"seconds": 1.0, "samples": [1.0, 2.0, 4.0]}}
    found = shapes.compared(own, others)
    assert found["fastest"] == "b"
    assert found["ratio"] == pytest.approx(2.0)
    assert found["interval"] == pytest.approx([2.0, 2.0])


def test_the_page_has_the_table_of_the_record() -> None:
    page = shapes.PAGE.read_text(encoding="utf-8")
    begin, end = figures.marks("best", shapes.WRITER)
    if not shapes.RECORD.exists():
        pytest.skip("scripts/lab/shapes was not run on a GPU yet: there is no record")
    assert page.count(begin) == page.count(end) == 1
    assert shapes.text(shapes.read(shapes.RECORD)) in page


# --- on a GPU ------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_on_a_gpu_best_is_right_and_each_vendor_is_timed(tmp_path: Path) -> None:
    out = tmp_path / "shapes.jsonl"
    arguments = ["--shapes", "3", "--seed", "5", "--budget", "90", "--out", str(out)]
    for only in ("matmul float32 ", "matmul bfloat16 ", "transpose "):
        assert shapes.main([*arguments, "--only", only]) == 0
        for line in shapes.read(out):
            assert "cupy" in line["others"] or line["type"] == "bfloat16"
            assert "cublas" in line["others"] or line["op"] != "matmul"
            assert line["best"]["method"] == "graph"
            wrong = {name for name, why in line["failed"].items() if "elements are wrong" in why}
            # cuBLAS may split K, and CuPy lets it round the parts to 16 bits
            assert wrong <= ({"cupy"} if line["type"] == "bfloat16" else set()), line["failed"]


@pytest.mark.gpu
def test_on_a_gpu_the_training_times_the_rungs_that_best_may_take(tmp_path: Path) -> None:
    out = tmp_path / "shapes.jsonl"
    arguments = ["--train", "--shapes", "2", "--budget", "90", "--only", "matmul float32 ", "--out", str(out)]
    assert shapes.main(arguments) == 0
    for line in shapes.read(out):
        assert len(line["rungs"]) >= 1
        assert {*line["rungs"], *line["failed"]} >= {"cublas", "bf16x6"}
        assert cast(float, min(line["rungs"].values())) > 0
    assert PROJECT.results not in out.parents


def test_some_shapes_do_not_take_the_place_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        shapes.main(["--only", "transpose"])
    assert "--only would leave no other shapes in docs/shapes.jsonl: say where to by --out" in capsys.readouterr().err


def test_what_the_page_says_beside_its_table_is_in_the_records() -> None:
    page = " ".join(shapes.PAGE.read_text(encoding="utf-8").split())
    trained = shapes.read(next(PROJECT.results.glob("nvidia-h200*/shapes.jsonl")))
    assert f"another {sum(line['seed'] == 3 for line in trained)} shapes were trained" in page
    others = [
        line["type"]
        for line in shapes.read(shapes.RECORD)
        if (extents := dict(zip(ladder.op(line["op"]).dims, line["shape"], strict=True)))
        and next(best.candidates(line["op"], line["type"], extents, "NVIDIA H200", 90)) != line["rung"]
    ]
    assert others == []
    commit = best.measured()["NVIDIA H200"]["commits"]["transpose"]
    assert f"with the full run of {commit}, it takes the same rung at each of the 200 shapes" in page
    near = best.relevant(best.known("matmul", "NVIDIA H200", 90), "bfloat16", "ragged")["1080x590x348"]
    assert f"`cublas` takes {near['cublas']:.2f} times as long as the fastest rung" in page
