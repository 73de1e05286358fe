"""What is measured: layers of neural networks, with bounds that follow from their arithmetic.

u is 2^-24, the rounding of float32; u16 is 2^-11, that of float16; tensor cores cut where others round: 2 u. An
exponential of z is off by 4 u of itself (the functions in use), and by u |z| twice over: z is a rounded difference, and
it is scaled to a power of 2.
"""

import math
from pathlib import Path

import numpy as np

from kernelwatch.plan.problem import Computation, Operand, Operands, Problem, Rung
from kernelwatch.plan.project import Project

U, U16, TINY, TINY16 = 2.0**-24, 2.0**-11, 2.0**-126, 2.0**-25
FLOAT, HALF, BYTE = np.dtype("float32"), np.dtype("float16"), np.dtype("int8")
EPS = 1e-6


def _wide(array):
    return array.astype(np.float64)


# --- rows ----------------------------------------------------------------------------------------------------------

ROW_SUM = Computation.of_shapes(
    lambda shape: (shape,),
    lambda shape: shape[:1],
    lambda x: _wide(x).sum(axis=1),
    bound=lambda type, x: x.shape[1] * U * abs(_wide(x)).sum(axis=1),
    flops=math.prod,
)


def _softmax(x):
    powers = np.exp(_wide(x) - _wide(x).max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _softmax_bound(type, x):
    """Powers and their sum: each power twice (once in the sum, whose relative error is no larger than its largest
    one's), n additions, rescaling by two more powers (online softmax), a division. Powers below 2^-126 may be 0."""
    across = x.max(axis=1, keepdims=True) - x.min(axis=1, keepdims=True)
    of_power = (4 + 2 * _wide(across)) * U
    return _softmax(x) * (4 * of_power + (x.shape[1] + 4) * U) + TINY


SOFTMAX = Computation.of_shapes(
    lambda shape: (shape,),
    lambda shape: shape,
    _softmax,
    bound=_softmax_bound,
    flops=lambda shape: 5 * math.prod(shape),
)


def _rms_norm(x, weight, eps):
    return _wide(x) * _wide(weight) / np.sqrt((_wide(x) ** 2).mean(axis=1, keepdims=True) + eps)


RMS_NORM = Computation(
    lambda shape, type: Operands(
        (Operand(shape, FLOAT), Operand(shape[1:], FLOAT)), (Operand(shape, FLOAT),), {"eps": EPS}
    ),
    _rms_norm,
    # A sum of n squares, whose error the root halves; a division, eps, the root (2 u), its inverse, two products.
    bound=lambda type, x, weight, eps: abs(_rms_norm(x, weight, eps)) * (x.shape[1] / 2 + 8) * U + TINY,
    flops=lambda shape: 4 * math.prod(shape),
)

# --- attention: heads, length, depth -------------------------------------------------------------------------------


def _scores(q, k, scale):
    return scale * (_wide(q) @ _wide(k).swapaxes(1, 2))


def _weights(q, k, scale):
    scores = _scores(q, k, scale)
    powers = np.exp(scores - scores.max(axis=2, keepdims=True))
    return powers / powers.sum(axis=2, keepdims=True)


def _attention(q, k, v, scale):
    return _weights(q, k, scale) @ _wide(v)


def _attention_bound(type, q, k, v, scale):
    """A score is off by `score`: `depth` products, which tensor cores cut, or float16 where it is kept as such, and the
    scale. That is the relative error of its power, beside the exponential's own. Weights are rounded to float16, and
    the sum of `length` products is cut. The result is rounded to float16."""
    scores = _scores(q, k, scale)
    sizes = scale * (abs(_wide(q)) @ abs(_wide(k)).swapaxes(1, 2)).max(axis=2, keepdims=True)
    score = sizes * (2 * q.shape[2] * U + U16 + 2 * U)
    across = (scores.max(axis=2, keepdims=True) - scores.min(axis=2, keepdims=True)) + 2 * score
    of_power = np.expm1(2 * score) + (4 + 2 * across) * U
    relative = 2 * of_power + U16 + 3 * q.shape[1] * U + 8 * U
    sums = _weights(q, k, scale) @ abs(_wide(v))
    # A weight below float16's smallest normal number is off by up to half of its smallest subnormal one.
    lost = TINY16 * abs(_wide(v)).sum(axis=1, keepdims=True)
    return (sums * relative + lost) * (1 + U16) + U16 * abs(_attention(q, k, v, scale)) + TINY16


def _attention_operands(shape, type):
    one = Operand(shape, HALF)
    return Operands((one, one, one), (one,), {"scale": 1 / math.sqrt(shape[2])})


ATTENTION = Computation(
    _attention_operands,
    _attention,
    bound=_attention_bound,
    flops=lambda shape: 4 * shape[0] * shape[1] ** 2 * shape[2],
)

# --- a product of int8 with scales: M, N, K ------------------------------------------------------------------------


def _integers(random, shape, dtype):
    return random.integers(-127, 128, shape, dtype)


def _scales(random, shape, dtype):
    return random.uniform(0.001, 0.02, shape).astype(dtype)


def _scaled(a, b, a_scale, b_scale):
    # float64 holds the sums exactly.
    return (_wide(a) @ _wide(b).T) * _wide(a_scale)[:, None] * _wide(b_scale)


SCALED_MATMUL = Computation(
    lambda shape, type: Operands(
        (
            Operand((shape[0], shape[2]), BYTE, _integers),
            Operand((shape[1], shape[2]), BYTE, _integers),
            Operand(shape[:1], FLOAT, _scales),
            Operand(shape[1:2], FLOAT, _scales),
        ),
        (Operand(shape[:2], FLOAT),),
    ),
    _scaled,
    # Sums of int8 are exact; then a conversion and two products, each rounded.
    bound=lambda type, a, b, a_scale, b_scale: 4 * U * abs(_scaled(a, b, a_scale, b_scale)),
    flops=lambda shape: 2 * math.prod(shape),
)


def _rungs(type, cpu, gpu, compiled=()):
    """`compiled`: the names in the package's BINARIES."""
    return (
        *(Rung(name, "gpu", (type,), compiled=name in compiled) for name in gpu),
        *(Rung(name, "cpu", (type,)) for name in cpu),
    )


def _rows(name, computation, *rungs):
    shapes = ((256, 4096), (16384, 4096))
    return Problem(name, computation, _rungs("float32", ["numpy"], *rungs), shapes, cpu_shapes=shapes[:1])


PROJECT = Project(
    package="layers",
    here=Path(__file__).resolve(),
    problems=(
        _rows("row_sum", ROW_SUM, ["core", "cupy", "triton", "torch"], ["core", "triton"]),
        _rows("softmax", SOFTMAX, ["cuda", "triton", "compiled", "torch"], ["triton"]),
        _rows("rms_norm", RMS_NORM, ["cupy", "triton", "compiled", "torch"], ["triton"]),
        Problem(
            "attention",
            ATTENTION,
            _rungs("float16", [], ["eager", "triton", "torch"], ["triton"]),
            shapes=((16, 1024, 64), (16, 2048, 64)),
        ),
        Problem(
            "scaled_matmul",
            SCALED_MATMUL,
            _rungs("int8->float32", ["numpy"], ["triton", "torch"], ["triton"]),
            shapes=((1024, 1024, 1024), (4096, 4096, 4096)),
            cpu_shapes=((256, 256, 256),),
        ),
    ),
)
