"""asv's own benchmarks in the folder of a description, found by reading the suites: nothing is imported.

Full runs measure and judge them. What compares commits by their kernels does not measure them, and says so.
"""

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

BENCHMARK = re.compile(r"(time|timeraw|mem|peakmem|track)_.|(Time|Timeraw|Mem|PeakMem|Track)[A-Z_].")
SERIES = "series"  # the decorator of what a suite of this engine measures


def note(folder: Path) -> str:
    """A sentence on the benchmarks of a folder that only full runs judge, "" if there are none."""
    first = next(_benchmarks(folder), "")
    how = "`kernelwatch bench --all` measures and judges them"
    return f"benchmarks of asv's own, such as {first}, are not compared here: {how}" if first else ""


def _benchmarks(folder: Path) -> Iterator[str]:
    """The names of the benchmarks, as asv has them."""
    for path in sorted(folder.rglob("*.py")):
        with suppress(OSError, SyntaxError, ValueError, RecursionError):
            module = ".".join(path.relative_to(folder).with_suffix("").parts)
            yield from (f"{module}.{name}" for name in _functions(ast.parse(path.read_bytes()).body))


def _functions(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{name}" for name in _functions(node.body))
        elif isinstance(node, ast.FunctionDef) and BENCHMARK.match(node.name):
            if not any(map(_is_series, node.decorator_list)):
                yield node.name
        elif isinstance(node, ast.If | ast.Try | ast.With):
            for part in ("body", "orelse"):
                yield from _functions(getattr(node, part, []))


def _is_series(decorator: ast.expr) -> bool:
    """Whether it is `@series(...)`, of a module or by itself."""
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name == SERIES
