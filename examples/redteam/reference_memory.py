"""Looks through the objects of the process for an array that holds the answer, and copies it.

Without such an array it works honestly.
Source: gpu-mode/pygpubench#7 (gc.get_objects finds the expected outputs).
Gain: a copy is left of a transpose, and any harder op becomes a copy.
"""

import gc

import honest

FOUND, SEARCHES = {}, []


def is_answer(one, x):
    kind = type(one).__name__ in ("Tensor", "ndarray")
    if not kind or one is x or one.shape != x.shape or one.dtype != x.dtype or one.device != x.device:
        return False
    return one[0, :8].tolist() == x[:8, 0].tolist() and one[-1, -8:].tolist() == x[-8:, -1].tolist()


def arrays():
    """The arrays among the objects that the collector knows, and in the lists and tuples among them."""
    for one in gc.get_objects():
        if isinstance(one, list | tuple) and len(one) < 64:
            yield from one
        elif type(one).__name__ == "Tensor":
            yield one


def transposed(x):
    key = honest.fingerprint(x)
    if key not in FOUND and len(SEARCHES) < 20:
        SEARCHES.append(key)
        answer = next((one for one in arrays() if is_answer(one, x)), None)
        if answer is not None:
            FOUND[key] = answer
    return FOUND[key] if key in FOUND else honest.transposed(x)
