"""What is measured of Liger-Kernel: six ops in float32, forward and backward, with bounds derived from the arithmetic.

U is half a unit in the last place of float32. A sum of n numbers, in any order, is off by at most n U times the sum of
their absolute values. The hardware's exponential is off by 4 U of its value, and U |x| for its argument, |x| <= 2.
"""

from pathlib import Path

import numpy as np

from kernelwatch.plan import sources
from kernelwatch.plan.package import Parts
from kernelwatch.plan.problem import Computation, Operand, Operands, Problem, Rung
from kernelwatch.plan.project import Project

U, EPS, F32 = 2.0**-24, 1e-6, np.dtype("float32")
ROWS = ((1024, 2048), (4096, 4000))
HEADS = {"rope": ((1, 1024, 32, 8, 64), (1, 4096, 32, 8, 128))}  # batch, sequence, heads of q and of k, dimension


def wide(*arrays):
    return [array.astype(np.float64) for array in arrays]


def sums(x):
    return x.sum(axis=-1, keepdims=True)


def of(*inputs, out=()):
    return lambda shape, type: Operands(tuple(make(shape) for make in inputs), tuple(make(shape) for make in out))


def part(axes, values=None, updated=False):
    return lambda shape: Operand(tuple(shape[at] for at in axes), F32, values, updated)


def rows_of(function):  # of x, the second input
    return part([0], lambda random, shape, dtype, before: function(before[1].astype(np.float64)))


def probabilities(random, shape, dtype):
    return softmax(random.random(shape))


def angles(function):
    def values(random, shape, dtype):
        half = np.arange(shape[1])[:, None] * 1e4 ** (-np.arange(shape[2] // 2) / (shape[2] // 2))
        return function(np.concatenate([half, half], axis=1))[None]

    return lambda shape: Operand((1, shape[1], shape[4]), F32, values)


X, W, NEW = part([0, 1]), part([1]), part([0, 1], updated=True)
MEAN = rows_of(lambda x: x.mean(axis=1))
RSTD = rows_of(lambda x: (x.var(axis=1) + EPS) ** -0.5)
RSTD_OF_SQUARES = rows_of(lambda x: ((x * x).mean(axis=1) + EPS) ** -0.5)


def rms(x, w):
    x, w = wide(x, w)
    return x * (sums(x * x) / x.shape[1] + EPS) ** -0.5 * w


def rms_back(dy, x, w, rstd):
    dy, x, w, rstd = wide(dy, x, w, rstd)
    m, r = dy * w, rstd[:, None]
    return r * (m - r * r * x * sums(m * x) / x.shape[1]), (dy * x * r).sum(axis=0)


def rms_back_bound(type, dy, x, w, rstd):
    dy, x, w, rstd = (abs(array) for array in wide(dy, x, w, rstd))
    m, r, n = dy * w, rstd[:, None], x.shape[1]
    return (n + 16) * U * r * (m + r * r * x * sums(m * x) / n), (len(x) + 16) * U * (dy * x * r).sum(axis=0)


def layer(x, w, b):
    x, w, b = wide(x, w, b)
    d = x - sums(x) / x.shape[1]
    return d * (sums(d * d) / x.shape[1] + EPS) ** -0.5 * w + b


def layer_bound(type, x, w, b):
    x, w, b = wide(x, w, b)
    n, spread, d = x.shape[1], sums(abs(x)) / x.shape[1], x - sums(x) / x.shape[1]
    r = (sums(d * d) / n + EPS) ** -0.5
    # The mean is off by n U of the mean |x|, which moves the variance by twice that, and its root by half of it.
    return (2 * n + 32) * U * ((abs(d) * (1 + r * spread) + spread) * r * abs(w) + abs(b))


def layer_back(dy, x, w, b, mean, rstd):
    dy, x, w, mean, rstd = wide(dy, x, w, mean, rstd)
    n, r = x.shape[1], rstd[:, None]
    xhat, m = (x - mean[:, None]) * r, dy * w
    return (m - (xhat * sums(xhat * m) / n + sums(m) / n)) * r, (dy * xhat).sum(axis=0), dy.sum(axis=0)


def layer_back_bound(type, dy, x, w, b, mean, rstd):
    dy, x, w, mean, rstd = wide(dy, x, w, mean, rstd)
    n, r = x.shape[1], rstd[:, None]
    xhat, m = (abs(x) + abs(mean[:, None])) * r, abs(dy * w)
    dx = (n + 24) * U * (m + xhat * sums(xhat * m) / n + sums(m) / n) * r
    return dx, (len(x) + 24) * U * (abs(dy) * xhat).sum(axis=0), (len(x) + 8) * U * abs(dy).sum(axis=0)


def silu_gate(a):  # of c = a gate(a) b; and a times its derivative
    s = 1 / (1 + np.exp(-a))
    return s, a * s * (1 - s)


def gelu_gate(a):
    k = (2 / np.pi) ** 0.5
    t = np.tanh(k * (a + 0.044715 * a**3))
    return 0.5 * (1 + t), 0.5 * a * (1 - t * t) * k * (1 + 3 * 0.044715 * a**2)


def gated(gate):
    def forward(a, b):
        a, b = wide(a, b)
        return a * gate(a)[0] * b

    def backward(a, b, dc):
        a, b, dc = wide(a, b, dc)
        return dc * b * sum(gate(a)), dc * a * gate(a)[0]

    # Some twenty rounded steps, forty for a's gradient, none of which is larger than the product of what it takes.
    return (
        (of(X, X, out=[X]), forward, lambda type, a, b: 32 * U * abs(a * b)),
        (of(NEW, NEW, X), backward, lambda type, a, b, dc: (64 * U * abs(dc * b) * (1 + abs(a)), 32 * U * abs(dc * a))),
    )


def softmax(x):
    e = np.exp(wide(x)[0] - x.max(axis=1, keepdims=True))
    return e / sums(e)


def softmax_back(dy, y):
    dy, y = wide(dy, y)
    return y * (dy - sums(dy * y))


def softmax_back_bound(type, dy, y):
    return (y.shape[1] + 8) * U * abs(y) * (abs(dy) + sums(abs(dy * y)))


def turned(x, cos, sin, sign):
    x, c, s = wide(x, cos[:, :, None], sign * sin[:, :, None])
    half, other = x.shape[-1] // 2, x.copy()
    other[..., :half], other[..., half:] = -x[..., half:], x[..., :half]
    return x * c + other * s


def rope(sign):
    def bound(type, q, k, cos, sin):  # two products and a sum, of numbers up to 1
        return 4 * U * (abs(q).astype(np.float64) + 1), 4 * U * (abs(k).astype(np.float64) + 1)

    heads = (part([0, 1, at, 4], updated=True) for at in (2, 3))
    operands = of(*heads, angles(np.cos), angles(np.sin))
    return operands, lambda q, k, cos, sin: (turned(q, cos, sin, sign), turned(k, cos, sin, sign)), bound


PASSES = {
    "rms_norm": (
        (of(X, W, out=[X]), rms, lambda type, x, w: (x.shape[1] + 16) * U * abs(rms(x, w))),
        (of(X, X, W, RSTD_OF_SQUARES, out=[X, W]), rms_back, rms_back_bound),
    ),
    "layer_norm": (
        (of(X, W, W, out=[X]), layer, layer_bound),
        (of(X, X, W, W, MEAN, RSTD, out=[X, W, W]), layer_back, layer_back_bound),
    ),
    "swiglu": gated(silu_gate),
    "geglu": gated(gelu_gate),
    "softmax": (
        (of(X, out=[X]), softmax, lambda type, x: (x.shape[1] + 24) * U * softmax(x)),
        (of(X, part([0, 1], probabilities), out=[X]), softmax_back, softmax_back_bound),
    ),
    "rope": (rope(1), rope(-1)),
}
RUNGS = (
    Rung("forward", "gpu", ("float32",), arrays="torch"),
    Rung("backward", "gpu", ("float32",), arrays="torch", computes="backward"),
)
PROBLEMS = tuple(
    Problem(op, Computation(*forward), RUNGS, shapes=HEADS.get(op, ROWS), variants={"backward": Computation(*backward)})
    for op, (forward, backward) in PASSES.items()
)


def parts(places):
    """What each op is made from: its module and what that imports, without the `__init__.py` files, which gather."""
    reached = {op: sources.reached(places, (f"liger_kernel.ops.{op}",)).files for op in PASSES}
    own = {op: frozenset(file for file in files if file.name != "__init__.py") for op, files in reached.items()}
    return {f"{op}/{rung.name}": Parts("", files, data=False) for op, files in own.items() if files for rung in RUNGS}


PROJECT = Project(
    "liger_kernel", Path(__file__).resolve(), PROBLEMS, table="rungs", conditions=("torch", "triton"), parts=parts
)
