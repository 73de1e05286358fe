"""What a candidate is given, and what must come out: fresh inputs for every set and round, and the reference's outputs.

All of it stays in the judge's process. The inputs of a set are made again from the judge's key when they are needed,
and never read back from the arena, where a candidate may have written.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kernelwatch.api.arguments import Memory, is_tensor, up
from kernelwatch.api.judge.layout import Layout, Place, layout_of
from kernelwatch.api.judge.memory import Judging
from kernelwatch.api.named import split, takes_seed
from kernelwatch.api.outputs import differ
from kernelwatch.api.result import MeasureError

CHUNK_ELEMENTS = 1 << 25  # that are made at once
UNIT = 2.0**-53
NOISE = 1 << 40  # the streams of noise; those of inputs are below
STREAMS = 1 << 16  # of a round: one for each place


class Values:
    """The inputs of every set in every round.

    `positional`, `named`: arguments like these, whose arrays say in which range random numbers lie.
    `maker`: what made the arguments. If it takes a seed, it makes all others, too; else the judge does.
    """

    def __init__(
        self,
        device: Judging,
        positional: Sequence[Any],
        named: Mapping[str, Any],
        maker: Callable[..., Any] | None = None,
    ) -> None:
        self.device = device
        self.maker = maker if maker and takes_seed(maker) else None
        self.layout: Layout = layout_of(positional, named, device.timer.device, device.xp, device.page)
        given = zip((*self.layout.positional, *self.layout.named.values()), (*positional, *named.values()), strict=True)
        arrays = {place: array for place, array in given if isinstance(place, Place)}
        self.ranges = [self._range(arrays[place]) for place in self.layout.places]
        self.kept: set[int] = set()  # the places that get noise alone: a function writes them and does not read them
        self.secret = secrets.randbits(62)

    def _range(self, array: Any) -> tuple[float, float]:
        """The least and the greatest finite number of an array; -1 and 1 if there is none."""
        values = numbers(array, self.device.xp).reshape(-1)
        if values.dtype.kind in "biu":  # a float64 would round the largest
            return int(values.min()), int(values.max())
        parts = self.device.xp.concatenate([values.real, values.imag]) if values.dtype.kind == "c" else values
        wide = parts.astype(np.float64)
        finite = wide[self.device.xp.isfinite(wide)]
        return (float(finite.min()), float(finite.max())) if finite.size else (-1.0, 1.0)

    def noise(self, memory: Memory, first: int, turn: int) -> None:
        """Fill sets with random bytes, which differ by set and turn. `first`: the number of the first."""
        each = self.layout.set_bytes // 8
        sets = memory.view(np.uint64).reshape(-1, each)
        apart = self.device.words(NOISE + turn, each + 4 * first, 4 * len(sets))[::4]  # one for each set
        for at in range(0, each, CHUNK_ELEMENTS):
            block = self.device.words(NOISE + turn, at, min(CHUNK_ELEMENTS, each - at))
            self.device.xp.bitwise_xor(block, apart[:, None], out=sets[:, at : at + CHUNK_ELEMENTS])

    def fill(self, memory: Memory, first: int, sets: int, turn: int) -> None:
        """Fill the inputs of some sets, the first of which lies at the beginning of memory. `first`: its number."""
        if self.maker:
            for at in range(sets):
                self._fill_made(memory, at, (turn, first + at))
            return
        for number, (place, bounds) in enumerate(zip(self.layout.places, self.ranges, strict=True)):
            if number in self.kept:
                continue
            count = int(np.prod(place.shape))
            step = max(1, CHUNK_ELEMENTS // count)
            for at in range(0, sets, step):
                some = min(step, sets - at)
                stack = place.stack(memory, at * self.layout.set_bytes, some, self.layout.set_bytes)
                self._store(stack, self._random(place, bounds, turn * STREAMS + number, first + at, some))

    def _random(self, place: Place, bounds: tuple[float, float], stream: int, first: int, sets: int) -> Any:
        """Random numbers for an array in some sets, between these bounds, both of which belong to them if they are
        integers."""
        shape, complex_ = (sets, *place.shape), "complex" in place.type
        count = int(np.prod(place.shape)) * (2 if complex_ else 1)
        each = up(count, 4)
        words = self.device.words(stream, first * each, sets * each).reshape(sets, each)[:, :count]
        if not any(name in place.type for name in ("float", "complex")):
            low, high = int(bounds[0]), int(bounds[1])
            some = words % np.uint64(min(high - low + 1, 1 << 62)) + np.uint64(low % (1 << 64))
            return some.view(np.int64).reshape(shape)
        values = (words >> np.uint64(11)) * (UNIT * (bounds[1] - bounds[0])) + bounds[0]
        return values.reshape(*shape, 2).view(np.complex128)[..., 0] if complex_ else values.reshape(shape)

    def _store(self, target: Any, values: Any) -> None:
        if not is_tensor(target):
            target[...] = values.astype(target.dtype)
            return
        import torch

        target.copy_(torch.from_numpy(values) if self.device.xp is np else torch.from_dlpack(values))

    def _fill_made(self, memory: Memory, at: int, key: tuple[int, int]) -> None:
        assert self.maker
        seed = int(np.random.SeedSequence([self.secret, *key]).generate_state(1, np.uint64)[0]) >> 1
        positional, named = split(self.maker(seed=seed))
        own = self.layout.arguments(memory, at * self.layout.set_bytes)
        places = (*self.layout.positional, *self.layout.named.values())
        pairs = zip(places, (*own[0], *own[1].values()), (*positional, *named.values()), strict=True)
        for place, target, source in pairs:
            if isinstance(place, Place) and self.layout.places.index(place) not in self.kept:
                if is_tensor(target):
                    target.copy_(source)
                else:
                    target[...] = source


class Reference:
    """The function that is right. It runs in the judge's process, over a set of buffers of its own.

    `writes`: the numbers of the places that it writes. `seconds`: about how long a call takes.

    Raises: MeasureError if it raises, writes nothing, differs from itself, or does not depend on its inputs.
    """

    def __init__(
        self,
        device: Judging,
        name: str,
        function: Callable[..., object],
        values: Values,
        tolerance: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self.device, self.name, self.function, self.values = device, name, function, values
        self.tolerance = tolerance
        self.memory = device.empty(values.layout.set_bytes)
        self.writes = self._writes()
        positional, named = values.layout.arguments(self.memory, 0)
        self.seconds = device.seconds(lambda: function(*positional, **named))

    def _call(self) -> None:
        positional, named = self.values.layout.arguments(self.memory, 0)
        try:
            self.function(*positional, **named)
            self.device.wait()
        except Exception as error:
            raise MeasureError(f"{self.name} raises {type(error).__name__}: {error}") from error

    def _writes(self) -> list[int]:
        values, places = self.values, range(len(self.values.layout.places))
        values.noise(self.memory, 0, 0)
        values.fill(self.memory, 0, 1, 0)
        before = [self._copy(at) for at in places]
        self._call()
        first = [self._copy(at) for at in places]
        writes = [at for at in places if not same(before[at], first[at])]
        if not writes:
            raise MeasureError(
                f"{self.name} writes none of its array arguments: the judge sees neither what a function returns nor "
                "what it writes elsewhere"
            )
        values.kept = set(writes)  # if an output is the same over noise, nothing of it is read
        over_noise = self.of(0, 0)
        values.kept = {at for at in writes if not self._differ(first[at], over_noise[at])}
        known = {at: array.copy() for at, array in self.of(0, 0).items()}
        again = self.of(0, 0)
        for at in writes:
            if why := self._differ(known[at], again[at]):
                raise MeasureError(
                    f"{self.name} differs from itself when it is called again: array argument {at}: {why}; give a "
                    "tolerance"
                )
        other = self.of(1, 0)
        if all(same(known[at], other[at]) for at in writes):
            raise MeasureError(
                f"{self.name} writes the same for other inputs: let what makes the arguments make random numbers, or "
                "take a seed"
            )
        return writes

    def _differ(self, expected: Any, own: Any) -> str:
        return differ(expected, own, *self.tolerance, self.device.xp)

    def _copy(self, at: int) -> Any:
        return self.array(self.memory, at).copy()

    def array(self, memory: Memory, at: int) -> Any:
        """The array of a place in the set at the beginning of memory, as one of NumPy or CuPy."""
        place, size = self.values.layout.places[at], self.values.layout.set_bytes
        return numbers(place.stack(memory, 0, 1, size)[0], self.device.xp)

    def of(self, number: int, turn: int) -> dict[int, Any]:
        """What each place of a set holds after a call that is right. The arrays are overwritten by the next call."""
        self.values.noise(self.memory, number, turn)
        self.values.fill(self.memory, number, 1, turn)
        self._call()
        return {at: self.array(self.memory, at) for at in range(len(self.values.layout.places))}

    def why_wrong(self, memory: Memory, number: int, turn: int) -> str:
        """Why a set in the arena is not as a right call leaves it, "" if it is. `memory`: of the set alone."""
        for at, expected in self.of(number, turn).items():
            own = self.array(memory, at)
            if at not in self.writes:
                if not same(expected, own):
                    return f"it wrote its input, array argument {at}"
            elif why := self._differ(expected, own):
                return f"array argument {at}: {why}"
        for begin, end in self.values.layout.gaps:
            if not same(self.memory[begin:end], memory[begin:end]):
                return "it wrote outside of its arrays"
        return ""


def numbers(array: Any, xp: Any) -> Any:
    """An array of any library as one of NumPy or CuPy (`xp`); of a type that these lack, a wider copy."""
    if not is_tensor(array):
        return array if isinstance(array, xp.ndarray) else xp.asarray(array)
    import torch

    own = array.detach()
    lacks = own.dtype.is_floating_point and own.dtype not in (torch.float16, torch.float32, torch.float64)
    own = (own.float() if lacks else own).resolve_conj().resolve_neg()
    return own.numpy() if xp is np else xp.from_dlpack(own)


def same(a: Any, b: Any) -> bool:
    """Whether two arrays hold the same numbers; NaN is the same as NaN."""
    nan = (a != a) & (b != b)  # noqa: PLR0124 (types without isnan, too)
    return bool(((a == b) | nan).all())
