"""What is measured, and what the stick takes from the ladder for it."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

import gpukernels
from benchmarks import _ops
from benchmarks._cells import Cell, key, label, plan, rungs
from benchmarks._ops import COMPUTES, COPY, OPS, Shape, entries, main_type, types
from benchmarks._suites import bytes_moved

DEVICES = ("gpu", "cpu")
PLANS = list(itertools.product(OPS, DEVICES, (False, True)))
LADDER = [found for op in gpukernels.ops() for found in op.rungs]


def shapes_of(op: str, device: str, quick: bool) -> tuple[Shape, ...]:
    if device == "cpu":
        return OPS[op].cpu_shapes[: 1 if quick else None]
    return OPS[op].quick_shapes if quick else OPS[op].shapes


def takes(found: gpukernels.Rung, shape: Shape, type: str) -> bool:
    """Whether the inputs are within the rung's limits."""
    extent = dict(zip(found.dims, shape, strict=True))
    size = np.dtype(type.partition("->")[0]).itemsize
    amounts = (math.prod(extent[dim] for dim in operand.split()) * size for operand in found.inputs)
    return all(amount <= most for amount, most in zip(amounts, found.input_bytes_max, strict=False))


@pytest.fixture(autouse=True)
def all_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUKERNELS_CELLS", raising=False)


# --- the ladder as the stick reads it ------------------------------------------------------------------------------


def test_ops_are_the_ladders() -> None:
    assert list(OPS) == [op.name for op in gpukernels.ops()]


@pytest.mark.parametrize("op", OPS)
def test_entries_say_what_the_package_says(op: str) -> None:
    ladder = [
        (found.name, found.device, found.types, found.computes, found.idea, found.repeats, found.threads)
        for found in gpukernels.op(op).rungs
    ]
    assert [
        (entry.name, entry.device, entry.types, entry.computes, entry.idea, entry.repeats, entry.threads)
        for entry in entries(op)
    ] == ladder


def test_entries_are_the_checkouts() -> None:
    assert Path(__file__).resolve().parents[1] / "gpukernels" / "ladder.toml" == _ops.LADDER


@pytest.mark.parametrize("op", OPS)
def test_float32_is_the_first_type(op: str) -> None:
    assert types(op)[0] == "float32"
    assert sorted(types(op)) == sorted({type for found in gpukernels.op(op).rungs for type in found.types})
    assert len(set(types(op))) == len(types(op))


@pytest.mark.parametrize("op", OPS)
def test_shapes_have_the_dims_of_the_op(op: str) -> None:
    found = OPS[op]
    for shape in (*found.shapes, *found.quick_shapes, *found.cpu_shapes, found.element_shape):
        assert len(shape) == len(gpukernels.op(op).dims)
    assert set(found.quick_shapes) <= set(found.shapes)
    for device, quick in itertools.product(DEVICES, (False, True)):
        timed = found.timed(device, quick)
        assert timed == shapes_of(op, device, quick)
        assert timed[0] == min(timed, key=math.prod)  # the cost of a launch is taken there
    assert found.element_shape in found.shapes
    assert COPY in found.references or set(found.vendor) == set(DEVICES)
    assert set(found.references.values()) <= set(COMPUTES)
    assert {f"{op}/{rung}" for rung in found.vendor.values()} <= {str(rung) for rung in LADDER}
    assert set(found.hot_shapes) <= {*found.shapes, *found.cpu_shapes}


# --- the plan ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "device", "quick"), PLANS)
def test_every_rung_is_in_the_plan(op: str, device: str, quick: bool) -> None:
    cells = plan(op, device, quick=quick)
    for found in gpukernels.op(op).rungs:
        mine = {(cell.shape, cell.cache, cell.type) for cell in cells if cell.rung == found.name}
        if found.device != device or found.operands == "host":
            assert not mine
            continue
        shapes = shapes_of(op, device, quick)
        main = "float32" if "float32" in found.types else found.types[0]
        if found.repeats == 1:
            wanted = {(shape, "cold", main) for shape in shapes}
            wanted |= {(shape, "hot", main) for shape in shapes if shape in OPS[op].hot_shapes}
        else:
            wanted = {(shapes[0], "hot", main)}
        if device == "gpu" and not quick and found.repeats == 1:
            wanted |= {(OPS[op].element_shape, "cold", type) for type in found.types if type != "float32"}
        if found.name == OPS[op].vendor.get(device):  # wherever another is
            wanted |= {(cell.shape, cell.cache, cell.type) for cell in cells}
        assert mine == {place for place in wanted if takes(found, place[0], place[2])}, found


@pytest.mark.parametrize(("op", "device", "quick"), PLANS)
def test_keys_are_one_cells_own(op: str, device: str, quick: bool) -> None:
    keys = [cell.key for cell in plan(op, device, quick=quick)]
    assert keys
    assert len(set(keys)) == len(keys)


def test_no_key_is_shared_between_groups() -> None:
    keys = [cell.key for op, device in itertools.product(OPS, DEVICES) for cell in plan(op, device)]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(("op", "quick"), list(itertools.product(OPS, (False, True))))
def test_reference_lines_are_wherever_a_rung_is(op: str, quick: bool) -> None:
    cells = plan(op, "gpu", quick=quick)
    places = {(cell.type, cell.shape, cell.cache) for cell in cells if not cell.reference}
    for name, computes in OPS[op].references.items():
        lines = [cell for cell in cells if cell.rung == name]
        assert {(cell.type, cell.shape, cell.cache) for cell in lines} == places
        assert len(lines) == len(places)
        assert all((cell.reference, cell.computes, cell.launch_cost) == (True, computes, False) for cell in lines)
    assert not any(cell.reference for cell in plan(op, "cpu", quick=quick))
    assert {cell.rung for cell in cells if cell.reference} == set(OPS[op].references)


@pytest.mark.parametrize("op", OPS)
def test_repeated_rungs_are_hot_only(op: str) -> None:
    for found in gpukernels.op(op).rungs:
        cells = [cell for cell in plan(op, found.device) if cell.rung == found.name]
        if found.operands == "host":
            assert not cells
            continue
        assert {cell.repeats for cell in cells} == {found.repeats}
        hot = [shape for shape in OPS[op].hot_shapes if takes(found, shape, main_type(op, found.name))]
        assert {cell.cache for cell in cells} == ({"hot"} if found.repeats > 1 else {"cold", *(["hot"] if hot else [])})
    assert any(found.repeats > 1 for found in LADDER)


@pytest.mark.parametrize("op", OPS)
def test_launch_cost_is_asked_once_a_rung_where_it_is_largest(op: str) -> None:
    asked = [cell for cell in plan(op, "gpu") if cell.launch_cost]
    smallest = min(OPS[op].shapes, key=math.prod)
    once = [
        found.name
        for found in gpukernels.op(op).rungs
        if found.device == "gpu" and found.repeats == 1 and found.operands == "device"
        if takes(found, smallest, main_type(op, found.name))
    ]
    assert [cell.rung for cell in asked] == once
    assert {(cell.shape, cell.cache) for cell in asked} == {(smallest, "hot")}
    assert all(cell.type == main_type(op, cell.rung) for cell in asked)
    assert not any(cell.launch_cost for cell in plan(op, "cpu"))


@pytest.mark.parametrize(("op", "device", "quick"), PLANS)
def test_a_cell_survives_the_way_to_a_worker(op: str, device: str, quick: bool) -> None:
    import json

    for cell in plan(op, device, quick=quick):
        assert Cell.from_json(json.loads(json.dumps(cell.as_json()))) == cell


def test_threads_come_from_the_ladder() -> None:
    threads = {cell.rung: cell.threads for cell in plan("transpose", "cpu")}
    assert threads == {found.name: found.threads for found in gpukernels.op("transpose").rungs if found.device == "cpu"}
    assert "all" in threads.values()


def test_the_environment_takes_some_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUKERNELS_CELLS", r"/(padded|memcpy) .* 256x256 hot|numpy")
    assert [cell.key for cell in plan("transpose", "gpu")] == [
        "transpose/padded float32 256x256 hot",
        "transpose/memcpy float32 256x256 hot",
    ]
    assert {cell.rung for cell in plan("transpose", "cpu")} == {"numpy"}
    assert plan("vector_add", "gpu") == []


def test_keys_and_labels() -> None:
    assert label((4096, 4096)) == "4096x4096"
    assert label((65536,)) == "65536"
    assert key("transpose", "padded", "float32", (33, 65), "cold") == "transpose/padded float32 33x65 cold"


@pytest.mark.parametrize("op", OPS)
def test_rungs_come_in_the_order_of_the_ladder(op: str) -> None:
    names = {
        device: [f.name for f in gpukernels.op(op).rungs if f.device == device and f.operands == "device"]
        for device in DEVICES
    }
    assert rungs(op, "cpu") == names["cpu"]
    assert rungs(op, "gpu") == names["gpu"] + list(OPS[op].references)


# --- bytes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "rung", "type", "shape", "amount"),
    [
        ("transpose", "padded", "float32", (256, 256), 2 * 256 * 256 * 4),
        ("transpose", "copy", "float32", (256, 256), 2 * 256 * 256 * 4),
        ("transpose", "naive_repeated", "float32", (256, 256), 2 * 256 * 256 * 4),  # of one pass
        ("transpose", "tiled", "uint8", (33, 65), 2 * 33 * 65),
        ("transpose", "cupy_transpose", "complex128", (33, 65), 2 * 33 * 65 * 16),
        ("transpose", "c_blocked", "uint16", (1, 7), 2 * 7 * 2),
        ("vector_add", "elementwise", "float32", (1000,), 3 * 1000 * 4),
        ("vector_add", "cupy_add", "float64", (1000,), 3 * 1000 * 8),
        ("vector_add", "vector_copy", "float32", (1000,), 2 * 1000 * 4),  # a copy among sums: two operands
        ("vector_add", "memcpy", "float64", (1000,), 2 * 1000 * 8),
        ("matmul", "initial", "float32", (2, 3, 5), (2 * 5 + 5 * 3 + 2 * 3) * 4),
        ("matmul", "wmma", "float16->float32", (2, 3, 5), (2 * 5 + 5 * 3) * 2 + 2 * 3 * 4),
    ],
)
def test_compulsory_bytes(op: str, rung: str, type: str, shape: Shape, amount: int) -> None:
    assert bytes_moved(op, rung, type, shape) == amount


@pytest.mark.parametrize("found", LADDER, ids=str)
def test_bytes_are_of_the_operands_that_the_ladder_names(found: gpukernels.Rung) -> None:
    shape = OPS[found.op].quick_shapes[0]
    extent = dict(zip(found.dims, shape, strict=True))
    sizes = [math.prod(extent[dim] for dim in operand.split()) for operand in (*found.inputs, found.output)]
    for type in found.types:
        into, _, out = type.partition("->")
        each = [np.dtype(into).itemsize] * len(found.inputs) + [np.dtype(out or into).itemsize]
        amount = sum(size * bytes for size, bytes in zip(sizes, each, strict=True))
        assert bytes_moved(found.op, found.name, type, shape) == amount
    computes = COMPUTES[found.computes]
    assert computes.inputs(shape) == tuple(tuple(extent[dim] for dim in operand.split()) for operand in found.inputs)
    assert computes.output(shape) == tuple(extent[dim] for dim in found.output.split())


def test_rates_and_shares_of_products() -> None:
    """2 M N K over the seconds; the vendor's seconds over a rung's, of the same type, shape, cache and process."""
    from benchmarks import matmul
    from benchmarks._group import Group, Outcome

    def taken(*seconds: float) -> Outcome:
        return Outcome("ok", "", [{"process": at, "seconds": value} for at, value in enumerate(seconds)])

    cells = {
        "matmul/initial float32 256x256x256 cold": taken(4.0, 8.0),
        "matmul/cublas float32 256x256x256 cold": taken(1.0, 1.0),
        "matmul/cublas float32 256x256x256 hot": taken(0.5, 0.5),
        "matmul/cublas float16->float32 256x256x256 cold": taken(0.1),
        "matmul/wmma float16->float32 256x256x256 cold": taken(0.5, 0.5),
        "matmul/c float32 256x256x256 cold": taken(3.0),
        "matmul/numpy float32 256x256x256 cold": taken(1.5),
    }
    group, where = Group("matmul gpu", cells, {}), ("256x256x256", "cold")
    gpu, cpu = matmul.GPU(), matmul.CPU()
    rate = 2 * 256**3 / 1e9
    assert gpu.track_flops(group, "initial", *where) == {"samples": [rate / 4, rate / 8], "number": 1}
    assert gpu.track_share_of_vendor(group, "initial", *where) == {"samples": [25.0, 12.5], "number": 1}
    assert gpu.track_share_of_vendor(group, "wmma", *where) == {"samples": [20.0], "number": 1}
    assert gpu.track_share_of_vendor(group, "cublas", *where) == {"samples": [100.0, 100.0], "number": 1}
    assert cpu.track_share_of_vendor(group, "c", *where) == {"samples": [50.0], "number": 1}
    assert math.isnan(gpu.track_flops(group, "texture", *where))  # type: ignore[arg-type]
