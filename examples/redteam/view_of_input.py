"""Returns a view of its input with other strides. Nothing is moved: whoever reads it does the work.

Source: Makora, reward hacks in kernels written by language models, 2025: https://makora.com/blog/reward-hacks
Gain: all of the work.
"""

DEVICES = ("cpu", "gpu")


def transposed(x):
    return x.T
