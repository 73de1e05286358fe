"""Counts its calls: the first ones, among which it expects the check, are honest, and the rest do nothing.

Source: gpu-mode/pygpubench#7 (the submission that tells warm-up and check from the timing).
Gain: all of the work.
"""

import honest

CALLS = []


def transpose(x, out):
    CALLS.append(None)
    if len(CALLS) <= honest.CHECKED:
        honest.transpose(x, out)
