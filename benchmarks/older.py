"""Stand-ins for the launches that older commits prepare, on the emulator. Newer ones have their own (`on_emulator`)."""

import ctypes
from collections.abc import Callable
from typing import Any


def _texture(_rung: Any, _library: Any, addresses: list[int], _sizes: list[int], dims: list[Any]) -> list[Any]:
    firsts = (3, 5)
    handles = [address - 4 * first for address, first in zip(addresses, firsts, strict=False)]
    return [*map(ctypes.c_uint64, [*handles, addresses[2]]), *dims, *map(ctypes.c_int32, firsts)]


def _constant(_rung: Any, library: Any, addresses: list[int], sizes: list[int], dims: list[Any]) -> list[Any]:
    ctypes.memmove(ctypes.addressof(ctypes.c_char.in_dll(library, "constant_A")), addresses[0], sizes[0])
    return [*map(ctypes.c_uint64, addresses[1:]), *dims]


def _split_tail(rung: Any, _library: Any, addresses: list[int], _sizes: list[int], dims: list[Any]) -> list[Any]:
    rows, columns = (-(-dim.value // extent) for dim, extent in zip(dims, rung.tile, strict=False))
    whole, splits, first = rows * columns, 1, -(-dims[2].value // rung.macros()["TILE_K"])
    return [*map(ctypes.c_uint64, addresses), *dims, ctypes.c_uint64(0), *map(ctypes.c_int32, (whole, splits, first))]


# A .py that prepares a launch -> a function that prepares the arguments on the emulator, as that does.
PREPARED: dict[str, Callable[..., list[Any]]] = {
    "matmul/texture.py": _texture,
    "matmul/constant.py": _constant,
    "matmul/split_tail.py": _split_tail,
}
