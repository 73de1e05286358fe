"""What is measured, and what the description of the project takes from the ladder for it."""

import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

import gpukernels
from benchmarks import project
from benchmarks.project import PROJECT
from kernelwatch.plan.cells import CACHES, Cell, key, plan, rungs, selection, timed
from kernelwatch.plan.problem import COPIES, COPY, Computation, Operand, Operands, Shape, dtypes, label
from kernelwatch.system.errors import UserError

OPS = PROJECT.ops
DEVICES = ("gpu", "cpu")
STREAMED, SEVERAL = "streamed", "several"
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


# --- the ladder as the description reads it ------------------------------------------------------------------------


def test_ops_are_the_ladders() -> None:
    assert list(OPS) == [op.name for op in gpukernels.ops()]


SHARED = ("name", "device", "types", "computes", "idea", "source", "repeats", "threads", "input_bytes_max")


@pytest.mark.parametrize("op", OPS)
def test_rungs_say_what_the_package_says(op: str) -> None:
    ladder = gpukernels.op(op).rungs
    said = OPS[op].rungs
    assert [[getattr(one, name) for name in SHARED] for one in said] == [
        [getattr(found, name) for name in SHARED] for found in ladder
    ]
    assert [one.where for one in said] == [found.operands for found in ladder]
    assert [dict(one.published_ms) for one in said] == [dict(found.published_ms) for found in ladder]
    assert [one.is_cuda for one in said] == [found.source.suffix == ".cu" for found in ladder]
    assert [one.compiled for one in said] == ["triton" in found.needs for found in ladder]
    assert {one.where for one in said} <= {"device", "host", "several"}


def test_the_ladder_is_the_checkouts() -> None:
    assert Path(__file__).resolve().parents[1] / "gpukernels" == project.PACKAGE
    assert project._ladder() is not gpukernels.ladder


def test_an_op_that_does_not_exist() -> None:
    assert [PROJECT.op(op) for op in OPS] == list(PROJECT.problems)
    with pytest.raises(UserError, match=f"no op matmull; there are {', '.join(PROJECT.ops)}"):
        PROJECT.op("matmull")
    assert PROJECT.rungs() == [str(found) for found in LADDER]


@pytest.mark.parametrize("op", OPS)
def test_float32_is_the_first_type(op: str) -> None:
    types = OPS[op].types
    assert types[0] == "float32"
    assert sorted(types) == sorted({type for found in gpukernels.op(op).rungs for type in found.types})
    assert len(set(types)) == len(types)


@pytest.mark.parametrize("op", OPS)
def test_shapes_have_the_dims_of_the_op(op: str) -> None:
    found = OPS[op]
    for shape in (*found.shapes, *found.quick_shapes, *found.cpu_shapes, *found.counted_shapes, found.element_shape):
        assert len(shape) == len(gpukernels.op(op).dims)
    assert set(found.quick_shapes) <= set(found.shapes)
    for device, quick in itertools.product(DEVICES, (False, True)):
        shapes = found.timed(device, quick)
        assert shapes == shapes_of(op, device, quick)
        assert shapes[0] == min(shapes, key=math.prod)  # the cost of a launch is taken there
    assert found.element_shape in found.shapes
    compared = COPY in found.lines or set(found.vendor) == set(DEVICES)
    assert compared, f"{op} is compared with nothing: its Problem needs lines=COPIES, or a vendor for {DEVICES}"
    assert {line.computes for line in found.lines.values()} <= {op, *found.variants}
    assert {name for name, line in found.lines.items() if line.bind is None} <= set(COPIES)
    assert {f"{op}/{rung}" for rung in found.vendor.values()} <= {str(rung) for rung in LADDER}
    assert set(found.hot_shapes) <= {*found.shapes, *found.cpu_shapes}
    assert [found.held_against(device) for device in DEVICES] == [
        found.vendor.get(device) or (COPY if device == "gpu" else "") for device in DEVICES
    ]


# --- the plan ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "device", "quick"), PLANS)
def test_every_rung_is_in_the_plan(op: str, device: str, quick: bool) -> None:
    cells = plan(OPS[op], device, quick=quick)
    for found in gpukernels.op(op).rungs:
        mine = {(cell.shape, cell.cache, cell.type) for cell in cells if cell.rung == found.name}
        if found.device != device or found.operands != "device":
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
            wanted |= {(cell.shape, cell.cache, cell.type) for cell in cells if cell.type in found.types}
        assert mine == {place for place in wanted if takes(found, place[0], place[2])}, found


@pytest.mark.parametrize(("op", "device", "quick"), PLANS)
def test_keys_are_one_cells_own(op: str, device: str, quick: bool) -> None:
    keys = [cell.key for cell in plan(OPS[op], device, quick=quick)]
    assert keys
    assert len(set(keys)) == len(keys)


def test_no_key_is_shared_between_groups() -> None:
    keys = [cell.key for op, device in itertools.product(OPS, DEVICES) for cell in plan(OPS[op], device)]
    assert len(set(keys)) == len(keys)
    assert sorted(keys) == sorted(cell.key for cell in timed(PROJECT))
    assert len(timed(PROJECT, quick=True)) < len(keys)
    assert {cell.rung for cell in timed(PROJECT, only="/numpy ")} == {"numpy"}


@pytest.mark.parametrize(("op", "quick"), list(itertools.product(OPS, (False, True))))
def test_reference_lines_are_wherever_a_rung_is(op: str, quick: bool) -> None:
    cells = plan(OPS[op], "gpu", quick=quick)
    places = {(cell.type, cell.shape, cell.cache) for cell in cells if not cell.reference}
    for name, line in OPS[op].lines.items():
        lines = [cell for cell in cells if cell.rung == name]
        assert {(cell.type, cell.shape, cell.cache) for cell in lines} == places
        assert len(lines) == len(places)
        assert all((cell.reference, cell.launch_cost) == (True, False) for cell in lines)
        wanted = {**OPS[op].variants, "copy": project.COPY, op: OPS[op].computation}
        assert PROJECT.computes(op, name) is wanted[line.computes]
    assert not any(cell.reference for cell in plan(OPS[op], "cpu", quick=quick))
    assert {cell.rung for cell in cells if cell.reference} == set(OPS[op].lines)


@pytest.mark.parametrize("op", OPS)
def test_repeated_rungs_are_hot_only(op: str) -> None:
    for found in gpukernels.op(op).rungs:
        cells = [cell for cell in plan(OPS[op], found.device) if cell.rung == found.name]
        if found.operands != "device":
            assert not cells
            continue
        assert {cell.repeats for cell in cells} == {found.repeats}
        hot = [shape for shape in OPS[op].hot_shapes if takes(found, shape, OPS[op].main_type(found.name))]
        assert {cell.cache for cell in cells} == ({"hot"} if found.repeats > 1 else {"cold", *(["hot"] if hot else [])})
    assert any(found.repeats > 1 for found in LADDER)


@pytest.mark.parametrize("op", OPS)
def test_launch_cost_is_asked_once_a_rung_where_it_is_largest(op: str) -> None:
    asked = [cell for cell in plan(OPS[op], "gpu") if cell.launch_cost]
    smallest = min(OPS[op].shapes, key=math.prod)
    once = [
        found.name
        for found in gpukernels.op(op).rungs
        if found.device == "gpu" and found.repeats == 1 and found.operands == "device"
        if takes(found, smallest, OPS[op].main_type(found.name))
    ]
    assert [cell.rung for cell in asked] == once
    assert {(cell.shape, cell.cache) for cell in asked} == {(smallest, "hot")}
    assert all(cell.type == OPS[op].main_type(cell.rung) for cell in asked)
    assert not any(cell.launch_cost for cell in plan(OPS[op], "cpu"))


@pytest.mark.parametrize(("op", "device", "quick"), PLANS)
def test_a_cell_survives_the_way_to_a_worker(op: str, device: str, quick: bool) -> None:
    for cell in plan(OPS[op], device, quick=quick):
        assert Cell.from_json(json.loads(json.dumps(cell.as_json()))) == cell


def test_threads_come_from_the_ladder() -> None:
    threads = {cell.rung: cell.threads for cell in plan(OPS["transpose"], "cpu")}
    assert threads == {found.name: found.threads for found in gpukernels.op("transpose").rungs if found.device == "cpu"}
    assert "all" in threads.values()


def test_some_cells_are_taken_by_their_keys() -> None:
    only = r"/(padded|memcpy) .* 256x256 hot|numpy"
    assert [cell.key for cell in plan(OPS["transpose"], "gpu", only=only)] == [
        "transpose/padded float32 256x256 hot",
        "transpose/memcpy float32 256x256 hot",
    ]
    assert {cell.rung for cell in plan(OPS["transpose"], "cpu", only=only)} == {"numpy"}
    assert plan(OPS["vector_add"], "gpu", only=only) == []


def shapes_on(op: str, device: str) -> tuple[Shape, ...]:
    """The shapes of a further device of an op; () if the op has no such device."""
    return next((each.shapes for each in OPS[op].devices if each.name == device), ())  # type: ignore[attr-defined]


@pytest.mark.parametrize("op", OPS)
def test_only_streamed_rungs_are_streamed(op: str) -> None:
    cells = plan(OPS[op], STREAMED)
    shapes = shapes_on(op, STREAMED)
    host = [found for found in gpukernels.op(op).rungs if found.operands == "host"]
    assert [(cell.rung, cell.type, cell.shape) for cell in cells] == [
        (found.name, "float32", shape) for found in host for shape in shapes
    ]
    assert {(cell.device, cell.cache, cell.launch_cost) for cell in cells} <= {(STREAMED, STREAMED, False)}
    assert bool(host) is (op == "matmul") is bool(shapes)
    assert plan(OPS[op], STREAMED, quick=True) == []
    assert plan(OPS[op], STREAMED, only="no such cell") == []


@pytest.mark.parametrize("op", OPS)
def test_rungs_of_several_gpus_and_the_vendors_on_one(op: str) -> None:
    cells = plan(OPS[op], SEVERAL)
    several = [found for found in gpukernels.op(op).rungs if found.operands == "several"]
    shapes = shapes_on(op, SEVERAL)
    own = [(found.name, type, shape) for found in several for type in found.types for shape in shapes]
    assert [(cell.rung, cell.type, cell.shape) for cell in cells if cell.rung != "cublas"] == own
    assert {(cell.type, cell.shape) for cell in cells if cell.rung == "cublas"} == {place[1:] for place in own}
    assert {(cell.device, cell.cache) for cell in cells} <= {(SEVERAL, SEVERAL)}
    assert bool(several) is (op == "matmul") is bool(own)
    assert plan(OPS[op], SEVERAL, quick=True) == []
    assert [cell.key for cell in plan(OPS[op], SEVERAL, only="nccl float32 16384x")] == [
        "matmul/nccl float32 16384x16384x16384 several" for found in several
    ]


# --- some cells ----------------------------------------------------------------------------------------------------

EVERY = [cell.key for cell in timed(PROJECT)]


def matching(pattern: str) -> list[str]:
    return [name for name in EVERY if re.search(pattern, name)]


def test_a_selection_of_nothing_takes_all() -> None:
    assert selection() == ""
    assert matching(selection()) == EVERY


@pytest.mark.parametrize("shape", sorted({name.split()[2] for name in EVERY}))
def test_a_selection_by_shape(shape: str) -> None:
    """The whole shape: 256x256 is no part of 256x256x256."""
    assert matching(selection(shape=shape)) == [name for name in EVERY if name.split()[2] == shape]


@pytest.mark.parametrize("type", sorted({name.split()[1] for name in EVERY}))
def test_a_selection_by_type(type: str) -> None:
    """The whole type: float32 is no part of float16->float32."""
    assert matching(selection(type=type)) == [name for name in EVERY if name.split()[1] == type]


@pytest.mark.parametrize("cache", CACHES)
def test_a_selection_by_cache(cache: str) -> None:
    assert matching(selection(cache=cache)) == [name for name in EVERY if name.endswith(f" {cache}")]


def test_what_selects_cells_narrows() -> None:
    """`only` may hold alternatives and anchors of its own."""
    pattern = selection("padded|^transpose/c ", "256x256", "float32", "hot")
    assert matching(pattern) == ["transpose/padded float32 256x256 hot", "transpose/c float32 256x256 hot"]
    assert matching(selection("hot$", "256x256", "float32", "cold")) == []
    assert matching(selection("hot$|/numpy ")) == [name for name in EVERY if name.endswith("hot") or "/numpy " in name]
    assert matching(selection(shape="256.256")) == matching(selection(type="float.2")) == []  # no pattern, but the text
    assert [cell.key for cell in timed(PROJECT, only=pattern)] == matching(pattern)


def test_keys_and_labels() -> None:
    assert label((4096, 4096)) == "4096x4096"
    assert label((65536,)) == "65536"
    name = "transpose/padded float32 33x65 cold"
    assert key("transpose", "padded", "float32", (33, 65), "cold") == name
    cell = Cell("transpose", "padded", "float32", (33, 65), "cold", "gpu")
    assert (cell.key, cell.name) == (name, "transpose/padded")
    compiled = Cell("transpose", "padded", "float32", (), "", "static", arch="sm_90")
    assert compiled.key == "transpose/padded float32 sm_90"
    assert Cell.from_json(json.loads(json.dumps(compiled.as_json()))) == compiled


@pytest.mark.parametrize("op", OPS)
def test_rungs_come_in_the_order_of_the_ladder(op: str) -> None:
    names = {
        device: [f.name for f in gpukernels.op(op).rungs if f.device == device and f.operands == "device"]
        for device in DEVICES
    }
    assert rungs(OPS[op], "cpu") == names["cpu"]
    assert rungs(OPS[op], "gpu") == names["gpu"] + list(OPS[op].lines)


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
    assert OPS[op].bytes_moved(rung, type, shape) == amount


@pytest.mark.parametrize("found", LADDER, ids=str)
def test_bytes_are_of_the_operands_that_the_ladder_names(found: gpukernels.Rung) -> None:
    shape = OPS[found.op].quick_shapes[0]
    extent = dict(zip(found.dims, shape, strict=True))
    sizes = [math.prod(extent[dim] for dim in operand.split()) for operand in (*found.inputs, found.output)]
    for type in found.types:
        into, _, out = type.partition("->")
        each = [np.dtype(into).itemsize] * len(found.inputs) + [np.dtype(out or into).itemsize]
        amount = sum(size * bytes for size, bytes in zip(sizes, each, strict=True))
        assert OPS[found.op].bytes_moved(found.name, type, shape) == amount
        what = PROJECT.computes(found.op, found.name).operands(shape, type)
        assert [array.shape for array in what.inputs] == [
            tuple(extent[dim] for dim in operand.split()) for operand in found.inputs
        ]
        assert [array.shape for array in what.outputs] == [tuple(extent[dim] for dim in found.output.split())]
        assert [array.dtype for array in what.arrays] == [*[dtypes(type)[0]] * len(found.inputs), dtypes(type)[1]]
        assert what.nbytes == amount


def test_bytes_that_are_not_each_array_once() -> None:
    """An op may say itself what must be moved."""

    def operands(shape: Shape, type: str) -> Operands:
        return Operands((Operand(shape, dtypes(type)[0]),), (Operand(shape, dtypes(type)[1]),))

    assert Computation(operands, lambda a: a).bytes_moved((5,), "float16->float32") == 5 * (2 + 4)
    sparse = Computation(operands, lambda a: a, traffic=lambda shape, type: 7 * shape[0])
    assert sparse.bytes_moved((5,), "float32") == 35


def test_what_is_arithmetic_says_how_it_is_judged() -> None:
    """Rounded sums are not compared bit for bit: that would fail every kernel that adds in another order."""

    def of(**judged: object) -> Computation:
        return Computation.of_shapes(lambda shape: (shape,), lambda _: (1,), sum, flops=math.prod, **judged)

    with pytest.raises(ValueError, match="give a bound or exact_bits"):
        of()
    assert of(bound=lambda type, a: 1e-3).flops is not None
    assert of(exact_bits=lambda type: (3,)).flops is not None
    assert Computation.of_shapes(lambda shape: (shape,), lambda shape: shape, lambda a: a).flops is None


@pytest.mark.parametrize("op", OPS)
def test_rates(op: str) -> None:
    """Operations a second where they count, else bytes."""
    shape = OPS[op].quick_shapes[0]
    name = OPS[op].rungs[0].name
    amount = OPS[op].flops(name, shape) or OPS[op].bytes_moved(name, "float32", shape)
    assert OPS[op].rate(name, "float32", shape, 0.5) == 2 * amount


def test_rates_and_shares_of_products() -> None:
    """2 M N K over the seconds; the vendor's seconds over a rung's, of the same type, shape, cache and process."""
    from benchmarks import matmul
    from kernelwatch.run.outcome import Group, Outcome

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
