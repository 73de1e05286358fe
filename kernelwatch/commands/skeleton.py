"""The files of a description that is to be filled in: what is known of a package's kernels, in comments.

Every comment of these files is code that is commented out: an editor's "uncomment" makes a block of it valid Python,
in which each `...` is to be replaced.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill, indent

from kernelwatch.commands.discovery import Function, Kernel

RUNGS = "rungs"  # the module with the table of rungs
SUITES = "suites"
OUT = "out"  # the parameter of a function that is given the output
MANY = 12  # ops in a list


@dataclass(frozen=True)
class Entry:
    """A function to measure. `code`: that of the table's module; `inputs`, `scalars`: its parameters, those that are
    given by name apart; `where`: its place and signature, one line each."""

    op: str
    rung: str
    code: str = ""
    inputs: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    device: str = "gpu"

    @property
    def arrays(self) -> str:
        return ', arrays="torch"' if self.rung == "triton" else ""


# --- the table of rungs --------------------------------------------------------------------------------------------


def entries(kernels: Sequence[Kernel], module: Callable[[Path], str]) -> list[Entry]:
    """The entries of a table: one for each function that launches kernels of Triton, for each kernel of Triton that no
    function launches, and for each kernel of CUDA C++. `module`: the dotted name of a Python file."""
    launched: dict[tuple[Path, Function], list[Kernel]] = {}
    alone = []
    for kernel in kernels:
        for launcher in kernel.launchers:
            launched.setdefault(launcher, []).append(kernel)
        if not kernel.launchers:
            alone.append(kernel)
    found = [_of_launcher(file, function, own, module) for (file, function), own in launched.items()]
    found += [_of_cuda(kernel) if kernel.is_cuda else _of_triton(kernel, module) for kernel in alone]
    return _distinct(found, [file for file, _ in launched] + [kernel.file for kernel in alone])


def _of_launcher(file: Path, function: Function, kernels: Iterable[Kernel], module: Callable[[Path], str]) -> Entry:
    own = [f"It launches {kernel.signature}" for kernel in kernels]
    named = [f"{name}={name}" for name in function.named]
    call = f"{function.name}({', '.join((*function.needed, *named))})"
    # The engine gives `out` by name, so it may stand anywhere in the call.
    inputs, scalars = (tuple(name for name in names if name != OUT) for names in (function.needed, function.named))
    given = ", ".join((*inputs, *scalars, *([OUT] if OUT in (*function.needed, *function.named) else [])))
    code = f"def NAME({given}):\n    from {module(file)} import {function.name}\n\n    return {call}\n"
    where = (f"{file.as_posix()}, line {function.line}: {function.signature}", *own)
    return Entry(_op(function.name), "triton", code, inputs, scalars, where)


def _of_triton(kernel: Kernel, module: Callable[[Path], str]) -> Entry:
    given = ", ".join(f"{name}=..." for name in kernel.parameters)
    code = (
        f"def NAME(*inputs, out):\n    from {module(kernel.file)} import {kernel.name}\n\n"
        f"    grid = (...,)\n    {kernel.name}[grid]({given})\n"
    )
    where = (f"{kernel.file.as_posix()}, line {kernel.line}: {kernel.signature}",)
    return Entry(_op(kernel.name), "triton", code, where=where)


def _of_cuda(kernel: Kernel) -> Entry:
    given = "".join(f"        ...,  # {name}\n" for name in kernel.parameters)
    name = f"{kernel.name}<...>" if kernel.is_template else kernel.name
    code = (
        f'def NAME(*inputs, out):\n    kernel = compiled("{kernel.file.as_posix()}", "{name}")\n'
        f"    grid, block = (...,), (...,)\n    arguments = (\n{given}    )\n    kernel(grid, block, arguments)\n"
    )
    where = (f"{kernel.file.as_posix()}, line {kernel.line}: {kernel.signature}",)
    return Entry(_op(kernel.name), "cuda", code, where=where)


def unknown(package: str) -> Entry:
    """The entry of a package in which nothing was found."""
    code = f"def own_first(x):\n    from {package} import function\n\n    return function(x)\n"
    return Entry(
        "own", "first", code, ("x",), where=(f"A function of {package} that takes NumPy arrays.",), device="cpu"
    )


def _op(name: str) -> str:
    """The name of an op that a function computes: its own, without what only says that it is a kernel."""
    plain = re.sub(r"_?kernel_?$", "", name.rpartition("::")[2].strip("_")).strip("_")
    return plain or name.rpartition("::")[2]


def _distinct(found: list[Entry], files: Sequence[Path]) -> list[Entry]:
    """The entries under names that differ: a second one of a name gets that of its file as well, or a number."""
    distinct: dict[str, Entry] = {}
    for entry, file in zip(found, files, strict=True):
        stem, number, op = _word(file.stem), 2, entry.op
        longer = op if op.startswith(stem) else f"{stem}_{op}"
        if op in distinct:
            op = longer
        while op in distinct:
            op, number = f"{longer}_{number}", number + 1
        code = entry.code.replace("NAME", f"{op}_{entry.rung}", 1)
        distinct[op] = replace(entry, op=op, code=code)
    return list(distinct.values())


def _word(text: str) -> str:
    return re.sub(r"\W+", "_", text).strip("_") or "of"


TABLE = '''"""How the kernels of {package} are called: KERNELS[op][rung] is a function.

This file is the checkout's, whatever commit is measured. What a function imports comes from the measured commit, so
commits from before this file can be measured as well: a rung that a commit does not have is n/a there.

A function takes the inputs, the op's scalars by name, and `out` if it has a parameter of that name: it then overwrites
`out`, and otherwise returns its result. To measure one, uncomment it and its entry in KERNELS, and replace each `...`.
What it computes is described in project.py, and {suites}.py has its suite.
"""
{helper}
{functions}
KERNELS = {{
{table}}}
'''
COMPILED = '''
from functools import cache

from kernelwatch.plan import tree


@cache
def compiled(path, name):
    """A kernel of a CUDA C++ source of the measured commit, compiled by NVRTC, which has no headers of the host.
    `name`: as C++ calls it, such as "scale<float, 4>"."""
    import cupy

    source = tree.file(path)  # a commit that lacks it is n/a
    options = ("-std=c++17", f"-I{source.parent}")
    return cupy.RawModule(code=source.read_text(), options=options, name_expressions=(name,)).get_function(name)

'''


def table(package: str, found: Sequence[Entry]) -> str:
    """The text of the module with the table of rungs."""
    blocks = []
    for entry in found:
        named = "\n".join(f"# {line}" for line in entry.where)
        blocks.append(_commented(f"{named}\n{entry.code}"))
    rows = [f'    # "{entry.op}": {{"{entry.rung}": {entry.op}_{entry.rung}}},\n' for entry in found]
    helper = COMPILED if any(entry.rung == "cuda" for entry in found) else ""
    return TABLE.format(
        package=package, suites=SUITES, helper=helper, functions="\n\n".join(blocks), table="".join(rows)
    )


def _commented(code: str) -> str:
    return "".join(f"# {line}".rstrip() + "\n" for line in code.splitlines())


# --- the description and its suites --------------------------------------------------------------------------------

DESCRIPTION = '''"""What is measured: the package, and for each op what it computes, its rungs and its shapes.

To measure an op, uncomment it here, and replace each `...`.{more}
"""

from pathlib import Path

import numpy as np  # noqa: F401

from kernelwatch.plan.problem import Computation, Operand, Operands, Problem, Rung  # noqa: F401
from kernelwatch.plan.project import Project

{computation}
PROJECT = Project(
    package="{package}",
    here=Path(__file__).resolve(),
{fields}    problems=(
{problem}    ),
)
'''
COMPUTATION = """{name} = Computation(
    lambda shape, type: Operands(
        (
{arrays}        ),
        (Operand(shape, np.dtype(type)),),  # the output
        {{{scalars}}},  # scalars, by name
    ),
    lambda {given}: ...,  # the reference: what the output must be, of NumPy's or CuPy's arrays
    # The largest error of each element that is right; without a bound, all bits are compared.
    bound=lambda type, {given}: ...,
)
"""
PROBLEM = """Problem(
    name="{op}",
    computation={name},
    rungs=(
{rungs}    ),
    shapes=((1 << 16,), (1 << 24,)),
{cpu}),
"""
SUITE = '''"""The suites: for each op of project.py a class for each device."""

from kernelwatch.run.outcome import Group  # noqa: F401
from kernelwatch.suites import timed  # noqa: F401

from .project import PROJECT  # noqa: F401

{suite}'''


def description(package: str, source: str, found: Sequence[Entry], *, has_table: bool) -> str:
    """The text of project.py. `source`: the folder that the package is imported from, "" if it is found; `found`: the
    entries of which the first is shown; `has_table`: whether the package itself has the table of rungs."""
    first = found[0]
    others = list(dict.fromkeys(entry.op for entry in found if entry.op != first.op))
    more = f" and {len(others) - MANY} more" if len(others) > MANY else ""
    inputs = first.inputs or ("x",)
    name = first.op.upper()
    rungs = (
        f'        Rung("{entry.rung}", "{entry.device}", ("float32",){entry.arrays}),\n'
        for entry in found
        if entry.op == first.op
    )
    cpu = "    cpu_shapes=((1 << 16,),),\n" if first.device == "cpu" else ""
    fields = "" if has_table else f'    table="{RUNGS}",\n'
    fields += f'    source="{source}",\n' if source else ""
    problem = PROBLEM.format(op=first.op, name=name, rungs="".join(rungs), cpu=cpu)
    arrays = "".join(f"            Operand(shape, np.dtype(type)),  # {name}\n" for name in inputs)
    scalars = ", ".join(f'"{name}": ...' for name in first.scalars)
    given = ", ".join((*inputs, *first.scalars))
    return DESCRIPTION.format(
        more="\n\n" + fill(f"Others were found: {', '.join(others[:MANY])}{more}.", 116) if others else "",
        computation=_commented(COMPUTATION.format(name=name, arrays=arrays, scalars=scalars, given=given)),
        package=package,
        fields=fields,
        problem=indent(_commented(problem), " " * 8),
    )


def suites(found: Sequence[Entry]) -> str:
    """The text of the module with the suites, of which the first entry's is shown."""
    first = found[0]
    kind = "Cpu" if first.device == "cpu" else "Gpu"
    name = "".join(part.capitalize() for part in first.op.split("_"))
    suite = (
        f'class {name}{kind.upper()}(timed.{kind}, project=PROJECT, op="{first.op}"):\n'
        "    def setup_cache(self) -> Group:\n        return self.measure()\n"
    )
    return SUITE.format(suite=_commented(suite))
