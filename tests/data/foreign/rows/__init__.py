"""Kernels over the rows of a matrix."""

import hashlib
import inspect

from rows import kernels


class Launch:
    def __init__(self, function, identity, *inputs, out, **scalars):
        self.identity = identity
        self.run = lambda: function(*inputs, out=out, **scalars)

    def __call__(self):
        self.run()


class Kernel:
    def __init__(self, function):
        self.function = function
        self.identity = hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[:16]

    def bind(self, *inputs, out, **scalars):
        return Launch(self.function, self.identity, *inputs, out=out, **scalars)


def load(op, rung, type):
    return Kernel(kernels.KERNELS[op, rung])
