"""Measures rungs that stream their operands from the host's memory: checks them on the GPU, then times each call.

A call takes long and ends when the result is in the host's memory, so the host's clock times it. The operands are
larger than the device memory that the rung may use, so no data stays there from one call to the next.
"""

import secrets
import statistics
import time

import numpy as np

from kernelwatch.extras.streamed.device import StreamedMeasurement
from kernelwatch.plan.cells import Cell
from kernelwatch.plan.devices import Budget
from kernelwatch.plan.package import NotHere, Package
from kernelwatch.plan.problem import Array, Computation, Operand
from kernelwatch.plan.project import Project
from kernelwatch.system.machine import free_bytes
from kernelwatch.timing import l2, usage
from kernelwatch.timing.check import WrongOutput, describe_wrong, poisoned
from kernelwatch.timing.device import RunDevice
from kernelwatch.timing.record import quartiles
from kernelwatch.timing.replay import throttled


class Timer(RunDevice):
    """The current CUDA device, with operands in the host's memory."""

    def __init__(self, project: Project, package: Package, cells: list[Cell], budget: Budget, seed: int) -> None:
        super().__init__(project)
        self.package = package
        self.budget = budget
        self.random = np.random.default_rng(seed)
        self.warm_up()

    def _input(self, array: Operand, bits: int | None, before: list[Array]) -> Array:
        """An input in the host's memory: the operand's own values, or numbers in [-1, 1), of `bits` bits if given. Its
        rows are pieces of one random row, since drawing every element would take longer than the matrix product."""
        if array.values is not None:
            return array.made(self.random, before)
        *rows, columns = array.shape
        if bits is None:
            row = self.random.random(2 * columns) * 2 - 1
        else:
            row = np.ldexp(self.random.integers(-(1 << bits), 1 << bits, 2 * columns).astype(np.float64), -bits)
        row, matrix = row.astype(array.dtype), np.empty((int(np.prod(rows)), columns), array.dtype)
        for at, start in enumerate(self.random.integers(0, columns, len(matrix))):
            matrix[at] = row[start : start + columns]
        return matrix.reshape(array.shape)

    def _check(
        self, cell: Cell, computes: Computation, inputs: list[Array], outs: list[Array], key: tuple[int, ...]
    ) -> None:
        """Compare the outputs with the reference, computed on the GPU. `key`: of their poison.

        Raises: WrongOutput, NotHere.
        """
        scalars = dict(computes.operands(cell.shape, cell.type).scalars)
        try:
            inputs_on_gpu = [self.cupy.asarray(array) for array in inputs]
            outs_on_gpu = [self.cupy.asarray(array) for array in outs]
            why = describe_wrong(cell, computes, inputs_on_gpu, outs_on_gpu, scalars, self.cupy, key=key)
        except self.cupy.cuda.memory.OutOfMemoryError as error:
            raise NotHere(f"its reference does not fit in the GPU's memory: {error}") from error
        finally:
            inputs_on_gpu = outs_on_gpu = []
            self.cupy.get_default_memory_pool().free_all_blocks()
        if why:
            raise WrongOutput(why)

    def _measure(self, cell: Cell) -> StreamedMeasurement:
        """Measure a cell once. The first call is checked; "seconds" is the median over the calls after it.

        Raises: WrongOutput, NotHere, Absent.
        """
        usage.declared(self.project, cell)
        computes = self.project.computes(cell.op, cell.rung)
        operands = computes.operands(cell.shape, cell.type)
        if operands.nbytes > free_bytes():
            raise NotHere(f"it needs {operands.nbytes >> 20} MiB of memory, {free_bytes() >> 20} MiB are free")
        bits = computes.exact_bits(cell.type) if computes.exact_bits else (None,) * len(operands.inputs)
        inputs: list[Array] = []
        for array, count in zip(operands.inputs, bits, strict=True):
            inputs.append(self._input(array, count, inputs))
        outs = [np.empty(array.shape, array.dtype) for array in operands.outputs]
        key = (secrets.randbits(32),)
        for out in outs:
            poisoned(out, key)
        kernel = self.package.load(cell.op, cell.rung, cell.type)
        launch = kernel.bind(*inputs, out=outs[0] if len(outs) == 1 else tuple(outs), **operands.scalars)
        launch()  # loads and allocates everything
        self._check(cell, computes, inputs, outs, key)
        seconds, hidden = [], []
        for _ in range(self.budget.samples):
            l2.reset_persisting()
            start = time.perf_counter()
            share = launch()
            seconds.append(time.perf_counter() - start)
            if isinstance(share, int | float):
                hidden.append(float(share))
        state = self.nvml.state()
        measurement: StreamedMeasurement = {
            "seconds": statistics.median(seconds),
            "quartiles_s": quartiles(seconds),
            "launches": len(seconds),
            "identity": launch.identity,
            "state": state,
            "throttled": throttled(state, None, None),
            "retakes": 0,
            "canary_s": self.canary_seconds(),
        }
        if hidden:
            measurement["hidden_share"] = statistics.median(hidden)
        return measurement
