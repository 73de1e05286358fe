"""How a function uses its arguments: what it must not write, what it returns, and what to say if that is wrong."""

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernelwatch.plan.cells import Cell
from kernelwatch.plan.package import NotHere
from kernelwatch.plan.problem import Array, Computation, Operands, Rung
from kernelwatch.plan.project import Project
from kernelwatch.timing import tensors
from kernelwatch.timing.check import WrongOutput, still_poisoned

PIECE_BYTES = 64 << 20


def refusal(project: Project, cell: Cell) -> str:
    """Why the rung of a cell does not take its shape; "" if it does, and for a reference line."""
    problem = project.ops[cell.op]
    return "" if cell.reference else problem.refusal(problem.rung(cell.rung), cell.shape, cell.type)


def declared(project: Project, cell: Cell) -> Rung | None:
    """The rung of a cell as the checkout declares it; None for a reference line.

    Raises: NotHere if it does not take the cell's shape.
    """
    if reason := refusal(project, cell):
        raise NotHere(reason)
    return None if cell.reference else project.ops[cell.op].rung(cell.rung)


def conditions(project: Project) -> tuple[str, ...]:
    """The distributions of a project on which its figures may depend, with PyTorch if a rung takes its tensors."""
    takes = any(rung.arrays == "torch" for problem in project.problems for rung in problem.rungs)
    return (*project.conditions, "torch") if takes else project.conditions


def names(computation: Computation, operands: Operands) -> list[str]:
    """The inputs' names for messages: as the reference calls them."""
    try:
        parameters = [
            one.name
            for one in inspect.signature(computation.reference).parameters.values()
            if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):  # a callable of a C extension may have no signature
        parameters = []
    by_position = iter(parameters)
    return [one.name or next(by_position, "") or f"number {at}" for at, one in enumerate(operands.inputs)]


def read_only(operands: Operands, inputs: Sequence[Array]) -> dict[int, Array]:
    """By their number, the inputs that a function must not write."""
    return {at: given for at, (given, one) in enumerate(zip(inputs, operands.inputs, strict=True)) if not one.updated}


def same_bits(before: Array, after: Array, xp: Any) -> bool:
    """Whether two contiguous arrays of one type and shape are equal in every bit. `before` may lie in host memory.
    They are compared piece by piece, since little memory may be left."""
    was, now = before.reshape(-1).view(np.uint8), after.reshape(-1).view(np.uint8)
    return not any(
        xp.count_nonzero(xp.asarray(was[at : at + PIECE_BYTES]) != now[at : at + PIECE_BYTES])
        for at in range(0, now.size, PIECE_BYTES)
    )


def overwritten(cell: Cell, computation: Computation, operands: Operands, which: Sequence[int]) -> str:
    """What to say of the inputs that a function wrote, by their numbers; "" if there are none."""
    if not which:
        return ""
    known = names(computation, operands)
    many = "s" if len(which) > 1 else ""
    return (
        f"{cell.name} wrote its input{many} {' and '.join(known[at] for at in which)}: what a function updates is "
        "declared by Operand(..., updated=True)"
    )


def is_array(value: object) -> bool:
    """Whether an object is an array of any library, or some of them."""
    if isinstance(value, tuple | list):
        return bool(value) and all(map(is_array, value))
    return hasattr(value, "__dlpack__") or hasattr(value, "__cuda_array_interface__")


def afterwards(slot: int) -> str:
    """When an output was found wrong that was right at first, for messages."""
    return f", over set {slot} of its buffers, after it was timed"


def untouched(cell: Cell, result: object, outs: Sequence[Array], key: tuple[int, ...], xp: Any) -> str:
    """What to say of a function that returned an array where it was to write into `out`; "" if it did write. `key`: of
    the poison that `out` held before."""
    kept = all(still_poisoned(out, key, xp).all() for out in outs)
    if not (outs and kept and is_array(result)):
        return ""
    return (
        f"{cell.name} returned an array and left out untouched: a function with a parameter out writes into it, one "
        "without returns its result"
    )


def returned(
    cell: Cell, result: object, computation: Computation, operands: Operands, inputs: Sequence[Array], xp: Any
) -> list[Array]:
    """What a function without a parameter `out` returned, as arrays of `xp`.

    Raises: WrongOutput if it is not what the problem's outputs are, or if it is memory of an input.
    """
    wanted = operands.outputs
    results = list(result) if isinstance(result, tuple | list) else [result]
    right = " and ".join(f"{one.dtype} {one.shape}" for one in wanted)
    if len(results) != len(wanted) or not all(map(is_array, results)):
        got = " and ".join(type(one).__name__ if one is not None else "None" for one in results)
        raise WrongOutput(f"{cell.name} has no parameter out and returned {got}; right is {right}")
    arrays = [_own(cell, one, xp) for one in results]
    if [(one.dtype, one.shape) for one in arrays] != [(one.dtype, one.shape) for one in wanted]:
        got = " and ".join(f"{one.dtype} {one.shape}" for one in arrays)
        raise WrongOutput(f"{cell.name} returned {got}; right is {right}")
    known = names(computation, operands)
    for at, given in enumerate(inputs):
        if any(_overlap(given, one) for one in arrays):
            raise WrongOutput(f"{cell.name} returned memory of its input {known[at]}; right is a new array")
    return arrays


def _own(cell: Cell, value: Any, xp: Any) -> Array:
    """An array of any library as one of `xp`, over the same memory. Raises: WrongOutput if it lies elsewhere."""
    where = value.__dlpack_device__()[0] == 1 if hasattr(value, "__dlpack_device__") else False
    if where != (xp is np):
        raise WrongOutput(f"{cell.name} returned an array in the {'host' if where else 'GPU'}'s memory")
    if isinstance(value, xp.ndarray):
        return value
    if isinstance(value, np.generic):
        return np.asarray(value)
    return tensors.array(value, xp) if tensors.is_tensor(value) else xp.from_dlpack(value)


def _extent(array: Array) -> tuple[int, int]:
    """The first byte of an array's memory, and the one after its last."""
    first = array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr
    reach = [(extent - 1) * step for extent, step in zip(array.shape, array.strides, strict=True)]
    low, high = sum(min(0, far) for far in reach), sum(max(0, far) for far in reach)
    return first + low, first + high + array.itemsize


def _overlap(a: Array, b: Array) -> bool:
    (begin, end), (other_begin, other_end) = _extent(a), _extent(b)
    return bool(a.size) and bool(b.size) and begin < other_end and other_begin < end


def not_finite(cell: Cell, computation: Computation, operands: Operands, inputs: Sequence[Array], xp: Any) -> str:
    """What to say of an updated input that is no longer finite after many launches; "" if all are."""
    known = names(computation, operands)
    for at, (given, one) in enumerate(zip(inputs, operands.inputs, strict=True)):
        floating = given.dtype.kind not in "biu"
        if one.updated and floating and not xp.isfinite(given.astype(_wide(given.dtype))).all():
            return (
                f"{cell.name}: {known[at]}, which it updates, is not finite after its launches: choose values or "
                "scalars with which it stays so, since nothing restores it between launches"
            )
    return ""


def _wide(dtype: Any) -> Any:
    return np.complex128 if dtype.kind == "c" else np.float64
