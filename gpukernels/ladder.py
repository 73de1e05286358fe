"""ladder.toml as frozen objects: which ops there are, their rungs in order, how each rung is launched."""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

SUFFIXES = {".cu": "gpu", ".c": "cpu", ".py": None}  # a source's suffix and where it runs
GRID_Y_MAX = 65_535  # blocks in y and in z that every CUDA GPU takes; x takes 2**31 - 1
BY_TYPE = ("tile", "block", "constants", "shared")  # keys of an entry that may differ by type
OP_KEYS = ("dims", "inputs", "output", "tiled", "types")  # what every op's table gives


class LadderError(ValueError):
    """A rung, op or type that does not exist, or an entry of ladder.toml that makes no sense."""


@dataclass(frozen=True)
class Rung:
    """One entry of ladder.toml; the comment at the head of that file says what each key means."""

    op: str
    name: str
    idea: str
    origin: str
    source: Path
    device: str
    types: tuple[str, ...]
    inputs: tuple[str, ...]
    output: str
    computes: str
    dims: tuple[str, ...]
    tiled: tuple[str, ...]
    tile: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    edges: tuple[int, ...] = ()
    pad: int = 0
    repeats: int = 1
    flags: tuple[str, ...] = ()
    threads: str = "1"
    operands: str = "device"
    input_bytes_max: tuple[int, ...] = ()
    constants: tuple[tuple[str, int], ...] = ()
    shared: int = 0
    by_type: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = ()
    arch_min: tuple[tuple[str, int], ...] = ()
    arch_only: str = ""
    needs: tuple[str, ...] = ()
    launcher: str = ""
    limits: str = ""
    published_ms: tuple[tuple[str, float], ...] = ()
    was: str | tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.op}/{self.name}"

    @property
    def symbol(self) -> str:
        """The function that the source defines."""
        return f"{self.op}_{self.source.stem}"

    def of(self, type: str) -> "Rung":
        """This rung as it is launched for one element type."""
        changed = dict(dict(self.by_type).get(type, ()))
        constants = dict(self.constants) | dict(changed.pop("constants", ()))
        return replace(self, constants=tuple(constants.items()), **changed)

    @property
    def preparation(self) -> Path | None:
        """The .py beside a .cu that is not one plain launch of its operands: it prepares the launch. It is the launcher
        that the entry names, or has the name of the rung, or else of the source."""
        names = [self.launcher] if self.launcher else [f"{self.name}.py", f"{self.source.stem}.py"]
        beside = [self.source.with_name(name) for name in names]
        return next((path for path in beside if self.source.suffix == ".cu" and path.is_file()), None)

    def grid(self, shape: Mapping[str, int], edge: int | None = None) -> tuple[int, int, int]:
        """Blocks in x, y, z that cover `shape` (dimension -> extent): columns along x, rows along y.

        Rows that need more than 65,535 blocks go on in z; a kernel reads its row of tiles as
        blockIdx.y + gridDim.y * blockIdx.z.
        """
        tile = (edge,) * len(self.tiled) if edge else self.tile
        *rows, columns = (-(-shape[dim] // step) for dim, step in zip(self.tiled, tile, strict=True))
        down = math.prod(rows)
        layers = -(-down // GRID_Y_MAX)
        return columns, -(-down // max(layers, 1)), layers

    def block_threads(self, edge: int | None = None) -> tuple[int, int]:
        """A block's threads in x and y."""
        return (edge, edge) if edge else (self.block[0], self.block[1])

    def shared_bytes(self, itemsize: int, edge: int | None = None) -> int:
        """Dynamic shared memory of a block: what the entry says, or the square tile whose edge is chosen at run time,
        for inputs so wide."""
        return edge * (edge + self.pad) * itemsize if edge else self.shared

    def macros(self) -> dict[str, int]:
        """What the source is compiled with, name -> value."""
        found: dict[str, int] = {}
        if self.tile:
            found |= {"TILE_ROWS": self.tile[0], "TILE_COLUMNS": self.tile[-1]}
        if self.block:
            found |= {"BLOCK_X": self.block[0], "BLOCK_Y": self.block[1]}
        if self.edges:
            found |= {"PAD": self.pad}
        if self.repeats > 1:
            found |= {"REPEATS": self.repeats}
        if self.shared:
            found |= {"SHARED_BYTES": self.shared}
        return found | dict(self.constants)


@dataclass(frozen=True)
class Op:
    """What the rungs of one op have in common, and the rungs in the order of the ladder."""

    name: str
    dims: tuple[str, ...]
    rungs: tuple[Rung, ...]


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((key, _frozen(each)) for key, each in value.items())
    return tuple(value) if isinstance(value, list) else value


def _source(folder: Path, op: str, name: str, told: str | None) -> Path:
    """A rung's source: the file that its entry names, else the one of its own name; of a .cu and a .py the .cu."""
    found = [path for suffix in SUFFIXES if (path := folder / op / f"{name}{suffix}").is_file()]
    if told is not None:
        found = [path for path in [folder / op / told] if path.is_file() and path.suffix in SUFFIXES]
    if len(found) != 1 and [path.suffix for path in found] != [".cu", ".py"]:
        wanted = f"{op}/{told}" if told else ", ".join(f"{op}/{name}{suffix}" for suffix in SUFFIXES)
        there = ", ".join(path.name for path in found) or "none of them"
        raise LadderError(f"{op}/{name}: its source must be one of {wanted}; {there} is in {folder}")
    return found[0]


def _check_launch(found: Rung, who: str) -> None:
    """Raises: LadderError where what the rung is launched with makes no sense."""
    if found.source.suffix == ".cu" and bool(found.edges) == bool(found.tile and found.block):
        raise LadderError(f"{who}: a .cu rung gives either tile and block, or edges")
    if found.tile and len(found.tile) != len(found.tiled):
        raise LadderError(
            f"{who}: tile must have {len(found.tiled)} extents ({' '.join(found.tiled)}), got {found.tile}"
        )
    if found.block and (len(found.block) != 2 or not 0 < math.prod(found.block) <= 1024):
        raise LadderError(f"{who}: block must be (x, y) with at most 1024 threads, got {found.block}")
    if any(extent < 1 for extent in (*found.tile, *found.block)):
        raise LadderError(f"{who}: tile and block must be at least 1, got {found.tile} and {found.block}")
    if any(not 0 < edge <= 32 for edge in found.edges):
        raise LadderError(f"{who}: a block of edge x edge threads has an edge of 1 to 32, got {found.edges}")
    if found.shared < 0 or (found.shared and found.edges):
        raise LadderError(f"{who}: shared must be bytes of a rung without edges, got {found.shared}")


def _read_rung(folder: Path, op: str, common: Mapping[str, Any], entry: Mapping[str, Any]) -> Rung:
    name = entry.get("name", "(no name)")
    who = f"{op}/{name}"
    known = {field.name for field in fields(Rung)} - {"op", "dims", "tiled"}
    if unknown := sorted(set(entry) - known):
        raise LadderError(f"{who}: ladder.toml has {', '.join(unknown)}; a rung has {', '.join(sorted(known))}")
    if missing := sorted({"name", "idea", "origin"} - set(entry)):
        raise LadderError(f"{who}: ladder.toml lacks {', '.join(missing)}; every rung gives name, idea and origin")
    source = _source(folder, op, name, entry.get("source"))
    device = entry.get("device", SUFFIXES[source.suffix])
    if device not in ("cpu", "gpu"):
        raise LadderError(f'{who}: {source.name} needs device = "cpu" or "gpu", got {device!r}')
    found = Rung(
        **{"op": op, "source": source, "device": device, "computes": op}
        | {key: _frozen(common[key]) for key in OP_KEYS}
        | {key: _frozen(value) for key, value in entry.items() if key not in ("device", "source")}
    )
    for type, changed in found.by_type:
        if type not in found.types:
            raise LadderError(f"{who}: by_type has {type}; the rung has the types {', '.join(found.types)}")
        if other := sorted({key for key, _ in changed} - set(BY_TYPE)):
            raise LadderError(f"{who}: by_type has {', '.join(other)} for {type}; it may have {', '.join(BY_TYPE)}")
    for each in (found, *(found.of(type) for type, _ in found.by_type)):
        _check_launch(each, who)
    if source.suffix == ".c" and (mixed := [type for type in found.types if "->" in type]):
        raise LadderError(
            f"{who}: a .c has one type T for all operands, which {mixed[0]} is not; give its types, as in "
            f'types = ["float32", "float64"]'
        )
    if found.operands != "device" and (found.operands not in ("host", "several") or source.suffix != ".py"):
        raise LadderError(f'{who}: operands must be "device", or "host" or "several" for a .py, got {found.operands!r}')
    if found.launcher and not found.preparation:
        raise LadderError(f"{who}: launcher must be a .py beside a .cu, got {found.launcher!r}")
    if found.repeats < 1:
        raise LadderError(f"{who}: repeats must be at least 1, got {found.repeats}")
    return found


def read(path: Path) -> dict[str, Op]:
    """The ops of a ladder file by name. `path`: a ladder.toml with the op folders beside it.

    Raises: LadderError where the file or an entry makes no sense.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise LadderError(f"{path}: no ladder can be read from it: {error}") from error
    found = {}
    for op, common in tables.items():
        if missing := [key for key in OP_KEYS if not isinstance(common, dict) or key not in common]:
            raise LadderError(f"{op}: ladder.toml lacks {', '.join(missing)}; every op gives {', '.join(OP_KEYS)}")
        rungs = tuple(_read_rung(path.parent, op, common, entry) for entry in common.get("rungs", ()))
        names = [rung.name for rung in rungs]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise LadderError(f"{op}: ladder.toml names {', '.join(twice)} twice; a rung's name is its own")
        found[op] = Op(op, tuple(common["dims"]), rungs)
    return found


@cache
def _installed() -> dict[str, Op]:
    return read(HERE / "ladder.toml")


def ops() -> tuple[Op, ...]:
    """The ops of this package, in the order of ladder.toml."""
    return tuple(_installed().values())


def _find(what: str, name: str, names: Sequence[str]) -> None:
    if name not in names:
        raise LadderError(f"no {what} {name}; the ladder has {', '.join(names)}")


def op(name: str) -> Op:
    """One op by name. Raises: LadderError."""
    _find("op", name, list(_installed()))
    return _installed()[name]


def rung(op_name: str, name: str) -> Rung:
    """One rung by the names of its op and its own. Raises: LadderError."""
    rungs = {f"{op_name}/{found.name}": found for found in op(op_name).rungs}
    if f"{op_name}/{name}" not in rungs:
        raise LadderError(
            f"no rung {op_name}/{name}; the ladder has {', '.join(found.name for found in rungs.values())}"
        )
    return rungs[f"{op_name}/{name}"]
