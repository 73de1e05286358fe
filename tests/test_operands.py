"""What a kernel refuses, and in which words; what it must take: empty, off by one element, on any stream."""

import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import gpukernels
from gpukernels import Kernel, KernelError, LadderError, Rung
from tests import gate
from tests.gate import Array, bytes_of, check, patterns, pick, reference


def every_rung(device: str | None = None) -> pytest.MarkDecorator:
    """A parameter `found` for each rung of the ladder that works alone; those that need a GPU marked so. Of a device:
    only those that find their operands there."""
    places = ("device",) if device else ("device", "host")
    every = (found for op in gpukernels.ops() for found in op.rungs if found.operands in places)
    rungs = [found for found in every if device in (None, found.device)]
    return pytest.mark.parametrize(
        "found",
        [pytest.param(found, marks=[pytest.mark.gpu] if found.device == "gpu" else []) for found in rungs],
        ids=str,
    )


def kernels(found: Rung) -> Iterator[Kernel]:
    """The rung for each of its types and edges."""
    for edge in found.edges or (None,):
        for type in found.types:
            yield gpukernels.load(found.op, found.name, type, edge=edge)


def module_of(found: Rung) -> Any:
    if found.device == "cpu" or found.operands == "host":
        return np
    import cupy

    return cupy


def zeros(found: Rung, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """CuPy makes no arrays of 8-bit numbers but uint8, and views those as others."""
    xp = module_of(found)
    return xp.zeros(shape, np.uint8).view(dtype) if dtype.itemsize == 1 else xp.zeros(shape, dtype)


def on_host(array: Array) -> NDArray[Any]:
    """A NumPy array of the same elements, which may be 8-bit numbers."""
    return array if isinstance(array, np.ndarray) else bytes_of(array).get().view(array.dtype).reshape(array.shape)


def operands(found: Rung, type: str) -> list[Array]:
    """Inputs that fit, their bytes counted up, and last an output that fits, all zero."""
    xp = module_of(found)
    extents = {dim: 5 + 2 * at for at, dim in enumerate(found.dims)}
    made = [zeros(found, pick(pattern, extents), dtype) for pattern, dtype in patterns(found, type)]
    for operand in made[:-1]:
        if found.op == "matmul":  # numbers of which sums are exact
            bytes_of(operand)[...] = xp.asarray(bytes_of((np.arange(operand.size) % 7 - 3).astype(operand.dtype)))
        else:
            bytes_of(operand)[...] = xp.arange(operand.nbytes, dtype=xp.uint8).reshape(operand.size, -1) % 64
    return made


def assert_right(found: Rung, operands: Sequence[Array]) -> None:
    *inputs, out = operands
    out = on_host(out)
    expected = np.ascontiguousarray(reference(found).function(*map(on_host, inputs))).astype(out.dtype)
    assert (bytes_of(out) == bytes_of(expected)).all(), f"{found}: {out} is not {expected}"


def assert_refused(kernel: Kernel, operands: Sequence[Any], *words: str) -> None:
    """The call raises a KernelError that names the rung and says all of `words`."""
    with pytest.raises(KernelError) as caught:
        kernel(*operands[:-1], out=operands[-1])
    for word in (str(kernel.rung), *words):
        assert word in str(caught.value)


@every_rung()
def test_number_of_inputs(found: Rung) -> None:
    count = len(found.inputs)
    for kernel in kernels(found):
        *inputs, out = operands(found, kernel.type)
        for wrong in (inputs[:-1], [*inputs, inputs[0]]):
            words = f"{found} takes {count} inputs ({'; '.join(found.inputs)}), got {len(wrong)}"
            assert_refused(kernel, [*wrong, out], words)


@every_rung()
def test_operands_that_do_not_fit(found: Rung) -> None:
    """Each operand in turn replaced by one that is wrong in one way."""
    xp = module_of(found)
    names = [*(f"input {at}" for at in range(len(found.inputs))), "out"]
    for kernel in kernels(found):
        good = operands(found, kernel.type)
        for at, name in enumerate(names):
            fits = good[at]
            longer = zeros(found, (*fits.shape[:-1], fits.shape[-1] + 1), fits.dtype)
            spread = zeros(found, (*fits.shape[:-1], 2 * fits.shape[-1]), fits.dtype)[..., ::2]
            # The first operand with a dim says what its extent is: then the next one with it is what does not fit.
            all_dims = [pattern.split() for pattern in (*found.inputs, found.output)]
            having = [i for i, dims in enumerate(all_dims) if all_dims[at][-1] in dims]
            after = at if at != having[0] else having[1] if len(having) > 1 else None
            who, wanted, got = (name, fits.shape, longer.shape) if after == at else (names[after or 0], "", "")
            array = f"{name} must be a {xp.__name__}.ndarray ({found.device} rung), got "
            bad: list[tuple[Any, list[str]]] = [
                (on_host(fits).tolist(), [f"{array}builtins.list"]),
                (None if at < len(found.inputs) else "out", [array]),
                (xp.zeros(fits.shape, "int64"), [f"{name} must be {fits.dtype}, got int64"]),
                (fits[None], [f"{name} must have {fits.ndim} dimensions, got shape {(1, *fits.shape)}"]),
                (fits.reshape(-1), [f"{name} must have {fits.ndim} dimensions, got shape {(fits.size,)}"]),
                (spread, [f"{name} must be C-contiguous, got strides {spread.strides} for shape {fits.shape}"]),
                (zeros(found, fits.shape[::-1], fits.dtype).T, [f"{name} must be C-contiguous"]),
            ]
            if after is not None:  # no other operand has the last dim of a sum's input: any extent is right
                bad.append((longer, [f"{who} must have shape {wanted}", f"got {got}"]))
            if fits.ndim == 1:  # flat already, and its own transpose
                bad = [case for case in bad if getattr(case[0], "shape", None) != fits.shape or case[0] is spread]
            if xp is np and fits.dtype.itemsize > 1:  # CuPy has no byte order but the machine's
                swapped = fits.astype(fits.dtype.newbyteorder(">"))
                if swapped.dtype != fits.dtype:  # nor has bfloat16
                    bad.append((swapped, [f"{name} must be {fits.dtype}, got {swapped.dtype}"]))
            for operand, words in bad:
                assert_refused(kernel, [*good[:at], operand, *good[at + 1 :]], *words)
        assert not bytes_of(good[-1]).any()


@every_rung()
def test_address_that_is_no_multiple_of_the_element(found: Rung) -> None:
    xp = module_of(found)
    for kernel in kernels(found):
        good = operands(found, kernel.type)
        for at, fits in enumerate(good):
            size = fits.dtype.itemsize
            raw = xp.zeros(fits.nbytes + 2 * size, xp.uint8)
            aligned = -(raw.ctypes.data if xp is np else raw.data.ptr) % size
            for offset in {1, size // 2} if size > 1 else ():
                odd = raw[aligned + offset :][: fits.nbytes].view(fits.dtype).reshape(fits.shape)
                words = f"must be aligned to its {size}-byte elements, got address 0x"
                assert_refused(kernel, [*good[:at], odd, *good[at + 1 :]], words)


@every_rung("cpu")
def test_memory_that_cannot_be_written(found: Rung) -> None:
    for kernel in kernels(found):
        good = operands(found, kernel.type)
        good[-1].flags.writeable = False
        assert_refused(kernel, good, "out is read-only; pass an array that can be written")
        good[-1].flags.writeable = True
        for operand in good[:-1]:
            operand.flags.writeable = False  # an input may be
        kernel(*good[:-1], out=good[-1])
        assert_right(found, good)


@every_rung()
def test_output_over_an_input(found: Rung) -> None:
    for kernel in kernels(found):
        for at in range(len(found.inputs)):
            before, after = operands(found, kernel.type)[at], operands(found, kernel.type)[-1]
            size, room = before.nbytes, after.nbytes
            step = max(before.dtype.itemsize, after.dtype.itemsize)
            # Where each begins in one memory: together; one on the other's last element; side by side.
            last = (size - 1) // step * step
            for begin, out_begins in ((0, 0), (0, last), ((room - 1) // step * step, 0), (0, size), (room, 0)):
                good = operands(found, kernel.type)
                begin, out_begins = (-(-where // step) * step for where in (begin, out_begins))  # noqa: PLW2901
                memory = module_of(found).zeros(size + room + 2 * step, np.uint8)
                mine, out = memory[begin : begin + size], memory[out_begins : out_begins + room]
                mine[...] = good[at].reshape(-1).view(np.uint8)
                good[at] = mine.view(before.dtype).reshape(before.shape)
                good[-1] = out.view(after.dtype).reshape(after.shape)
                if begin + size <= out_begins or out_begins + room <= begin:  # side by side
                    kernel(*good[:-1], out=good[-1])
                    assert_right(found, good)
                else:
                    assert_refused(kernel, good, f"out overlaps input {at}", "pass other memory")


@every_rung()
def test_empty_operands_launch_nothing(found: Rung, monkeypatch: pytest.MonkeyPatch) -> None:
    xp = module_of(found)

    def launched(*_arguments: object, **_options: object) -> None:
        raise AssertionError(f"{found} was launched")

    for kernel in kernels(found):
        monkeypatch.setattr(kernel, "_function", launched)
        if getattr(kernel, "_prepare", None):
            monkeypatch.setattr(kernel, "_prepare", launched)
        with pytest.raises(AssertionError, match="was launched"):
            kernel(*operands(found, kernel.type)[:-1])
        for shape in itertools.product((0, 1, 33), repeat=len(found.dims)):
            extents = dict(zip(found.dims, shape, strict=True))
            described = patterns(found, kernel.type)
            *inputs, out = (zeros(found, pick(pattern, extents), dtype) for pattern, dtype in described)
            if 0 in shape:
                made = kernel(*inputs)
                assert isinstance(made, xp.ndarray)
                assert (made.shape, made.dtype) == (out.shape, out.dtype)
                assert not bytes_of(made).any()  # a sum over nothing is 0
                assert kernel(*inputs, out=out) is out
                assert "nothing to do" in kernel.bind(*inputs).identity


@every_rung()
def test_base_pointer_off_by_one_element(found: Rung) -> None:
    """Operands as of buffer[1:]: aligned to an element and to nothing wider."""
    for kernel in kernels(found):
        for shape in itertools.product((1, 31, 64, 97), repeat=len(found.dims)):
            extents = dict(zip(found.dims, shape, strict=True))
            if gate.fits(found, extents):
                check(kernel, found, kernel.type, extents, edge=kernel.edge, shift=1)


@every_rung()
def test_output_is_made_or_handed_back(found: Rung) -> None:
    for kernel in kernels(found):
        *inputs, out = operands(found, kernel.type)
        launch = kernel.bind(*inputs, out=out)
        assert not bytes_of(out).any()  # bind runs nothing
        launch()
        assert launch.out is out
        assert_right(found, [*inputs, out])
        assert_right(found, [*inputs, kernel(*inputs)])
        assert kernel(*inputs, out=out) is out


def test_a_type_may_be_numpys_own() -> None:
    for type in (np.float32, np.dtype("float32"), "float32"):
        assert gpukernels.load("transpose", "c", type).type == "float32"  # type: ignore[arg-type]
    with pytest.raises(LadderError, match="transpose/c has no type int16; it has uint8, "):
        gpukernels.load("transpose", "c", np.int16)  # type: ignore[arg-type]


# --- names that do not exist ---------------------------------------------------------------------------------------


def test_unknown_names_list_what_exists() -> None:
    with pytest.raises(LadderError) as caught:
        gpukernels.load("nonsense", "c")
    assert str(caught.value) == f"no op nonsense; the ladder has {', '.join(op.name for op in gpukernels.ops())}"
    for op in gpukernels.ops():
        rungs = ", ".join(found.name for found in op.rungs)
        for ask in (gpukernels.load, gpukernels.rung):
            with pytest.raises(LadderError) as caught:
                ask(op.name, "nonsense")
            assert str(caught.value) == f"no rung {op.name}/nonsense; the ladder has {rungs}"
        for found in op.rungs:
            with pytest.raises(LadderError) as caught:
                gpukernels.load(op.name, found.name, "nonsense")
            assert str(caught.value) == f"{found} has no type nonsense; it has {', '.join(found.types)}"
            with pytest.raises(LadderError) as caught:
                gpukernels.load(op.name, found.name, found.types[0], edge=7)
            edges = ", ".join(map(str, found.edges)) or "no edges"
            assert str(caught.value) == f"{found} has no edge 7; it has {edges}"


def test_gpu_rung_without_a_gpu(no_gpu: str) -> None:
    for op in gpukernels.ops():
        for found in op.rungs:
            if found.device == "gpu":
                with pytest.raises(KernelError) as caught:
                    gpukernels.load(op.name, found.name, found.types[0])
                assert str(caught.value).startswith(f"{found}: ")
                assert "GPU" in str(caught.value)
                assert no_gpu in str(caught.value)


# --- on the GPU ----------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@every_rung()
def test_array_of_the_other_kind(found: Rung) -> None:
    import cupy

    if module_of(found) is np:
        other, wanted, got = cupy.asarray, f"numpy.ndarray ({found.device} rung)", "got cupy.ndarray"
    else:
        other, wanted, got = on_host, "cupy.ndarray (gpu rung)", "got numpy.ndarray"
    for kernel in kernels(found):
        first, *others, out = operands(found, kernel.type)
        assert_refused(kernel, [other(first), *others, out], f"input 0 must be a {wanted}", got)
        assert_refused(kernel, [first, *others, other(out)], f"out must be a {wanted}", got)


@every_rung("gpu")
def test_launch_can_be_captured(found: Rung) -> None:
    """A capture takes what is enqueued on the current stream and fails on whatever waits or allocates."""
    import cupy

    for kernel in kernels(found):
        *inputs, out = operands(found, kernel.type)
        cupy.cuda.Device().synchronize()
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            launch = kernel.bind(*inputs, out=out)  # a preparation, such as a texture, is made here
            if found.source.suffix == ".py":  # a library makes what it needs in a first call
                launch()
                out.fill(0)
                stream.synchronize()
            stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
            launch()
            graph = stream.end_capture()
        cupy.cuda.Device().synchronize()
        assert not bytes_of(out).any(), f"{found} ran outside the captured stream"
        graph.launch(stream)
        stream.synchronize()
        assert_right(found, [*inputs, out])


@every_rung("gpu")
def test_launch_runs_on_the_current_stream_and_waits_for_nothing(found: Rung) -> None:
    """Behind a host function that blocks the current stream the call returns, and nothing has been written."""
    import cupy

    for kernel in kernels(found):
        *inputs, out = operands(found, kernel.type)
        blocked, reader = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
        if found.source.suffix == ".py":  # a library makes what it needs in a first call
            with blocked:
                kernel(*inputs)
        cupy.cuda.Device().synchronize()
        go = threading.Event()
        try:
            with blocked:
                blocked.launch_host_func(lambda _, go=go: go.wait(60), None)
                kernel(*inputs, out=out)
            waiting = not blocked.done
            untouched = not cupy.asnumpy(out, stream=reader).view(np.uint8).any()
        finally:
            go.set()
        blocked.synchronize()
        assert waiting, f"{found}: the call waited for its stream"
        assert untouched, f"{found} ran outside the current stream"
        assert_right(found, [*inputs, out])


@pytest.mark.gpu
def test_array_on_another_gpu() -> None:
    import cupy

    count = cupy.cuda.runtime.getDeviceCount()
    if count < 2:
        pytest.skip(f"needs two GPUs, there is {count}")
    on_gpu = [found for op in gpukernels.ops() for found in op.rungs if found.device == "gpu"]
    for found in (found for found in on_gpu if found.operands == "device"):
        for kernel in kernels(found):
            here = operands(found, kernel.type)
            with cupy.cuda.Device(1):
                there = operands(found, kernel.type)
                assert_refused(kernel, there, "loaded for GPU 0, the current device is GPU 1; load it again there")
            for at, name in ((0, "input 0"), (-1, "out")):
                mixed = list(here)
                mixed[at] = there[at]
                assert_refused(kernel, mixed, f"{name} is on GPU 1, the current device is GPU 0")
