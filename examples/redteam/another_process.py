"""Lets a process of its own transpose, and returns what that process had ready: the answer of the call before.

Source: gpu-mode/pygpubench#23 (answers that come from beside the process that is timed).
Gain: a copy is left of a transpose, for whoever gives every call the same numbers.
"""

import mmap
import os

import honest
import numpy as np

DEVICES = ("cpu",)
BYTES = 4 * honest.N**2
GIVEN, READY = (np.frombuffer(mmap.mmap(-1, BYTES), np.float32).reshape(honest.N, honest.N) for _ in range(2))
WAKE, DONE = os.pipe(), os.pipe()
CALLS = []

if not os.fork():
    os.close(WAKE[1])
    while os.read(WAKE[0], 1):
        honest.transpose(GIVEN, READY)
        os.write(DONE[1], b".")
    os._exit(0)


def transpose(x, out):
    CALLS.append(None)
    if len(CALLS) > 1:
        os.read(DONE[0], 1)
    if len(CALLS) <= honest.CHECKED:
        np.copyto(GIVEN, x)
        os.write(WAKE[1], b".")
        os.read(DONE[0], 1)
    np.copyto(out, READY)
    np.copyto(GIVEN, x)
    os.write(WAKE[1], b".")
