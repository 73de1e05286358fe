"""Find the GPU kernels of a repository by reading its sources: Triton's functions, and kernels of CUDA C++.

Nothing is imported or compiled. A function of Triton that other kernels call is part of them, and no kernel.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernelwatch.system.git import git

CUDA = (".cu", ".cuh")
ASIDE = frozenset(  # folders of a repository whose kernels are not its product, unless they are named
    (
        "bench",
        "benchmark",
        "benchmarks",
        "doc",
        "docs",
        "example",
        "examples",
        "test",
        "tests",
        "third_party",
        "tutorials",
    )
)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
# What may stand between __global__ and a kernel's name with an argument list of its own.
ATTRIBUTES = frozenset(
    ("__launch_bounds__", "__cluster_dims__", "__maxnreg__", "__block_size__", "__attribute__", "alignas")
)


@dataclass(frozen=True)
class Function:
    """A function or kernel. `parameters`: their names; `signature`: its name and parameters as they are written.
    Of a Python function without a default: `needed`, and `named`, which it takes by name only."""

    name: str
    line: int
    parameters: tuple[str, ...]
    signature: str
    needed: tuple[str, ...] = ()
    named: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kernel(Function):
    """A kernel. `file`: relative to the repository; `launchers`: of a Triton kernel, the functions of Python modules
    that launch it, with the files of these; `is_template`: of CUDA C++."""

    file: Path = Path()
    is_template: bool = False
    launchers: tuple[tuple[Path, Function], ...] = ()

    @property
    def is_cuda(self) -> bool:
        return self.file.suffix in CUDA


def kernels(root: Path, below: Path | None = None) -> list[Kernel]:
    """The kernels in the files that git tracks or does not ignore, upper folders first. `below`: only those
    in this file or folder; by default in all folders but those of tests, benchmarks and the like."""
    triton: list[tuple[Path, ast.Module]] = []
    cuda: list[Kernel] = []
    for file in _files(root, below):
        if file.suffix == ".py":
            triton.append((file, _parsed(root / file)))
        else:
            with suppress(OSError):
                cuda += _of_cuda(file, (root / file).read_text(encoding="utf-8", errors="replace"))
    return [*_of_triton(triton), *cuda]


def _files(root: Path, below: Path | None) -> Iterator[Path]:
    listed = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    for file in sorted({Path(name) for name in listed if name}, key=lambda file: (len(file.parts), file)):
        if file.suffix not in (*CUDA, ".py"):
            continue
        if (root / file).is_relative_to(below) if below else not ASIDE.intersection(file.parts[:-1]):
            yield file


@cache
def _parsed(path: Path) -> ast.Module:
    """A module of Python; an empty one if it is no Python."""
    with suppress(OSError, SyntaxError, ValueError, RecursionError):
        return ast.parse(path.read_bytes())
    return ast.Module([], [])


# --- Triton --------------------------------------------------------------------------------------------------------


def _of_triton(modules: Sequence[tuple[Path, ast.Module]]) -> list[Kernel]:
    found: list[tuple[Path, ast.FunctionDef]] = []
    called: set[str] = set()  # by other functions of Triton
    launching: list[tuple[Path, ast.FunctionDef, set[str]]] = []
    for file, module in modules:
        names = _imported(module)
        for function in _functions(module.body):
            if any(_is_jit(each, names) for each in function.decorator_list):
                found.append((file, function))
                called |= {node.func.id for node in _calls(function) if isinstance(node.func, ast.Name)}
            else:
                launching.append((file, function, set(_launched(function))))
    made = []
    for file, function in found:
        by = [(where, each) for where, each, names in launching if function.name in names]
        by = [one for one in by if one[0] == file] or by
        if not by and (function.name in called or _returns(function)):
            continue
        launchers = tuple((where, _described(each)) for where, each in by)
        plain = _described(function)
        made.append(Kernel(plain.name, plain.line, plain.parameters, plain.signature, file=file, launchers=launchers))
    return made


def _functions(body: Iterable[ast.stmt]) -> Iterator[ast.FunctionDef]:
    """The functions that a module defines at its top level, also under a condition."""
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield node
        elif isinstance(node, ast.If | ast.Try | ast.With):
            for part in ("body", "orelse", "finalbody"):
                yield from _functions(getattr(node, part, ()))


def _imported(module: ast.Module) -> dict[str, str]:
    """The names that a module gives to what it imports -> what they stand for, such as "triton.jit"."""
    names: dict[str, str] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _is_jit(decorator: ast.expr, names: dict[str, str]) -> bool:
    """Whether a decorator is triton.jit, called or not, by whichever name; also that of Triton's Gluon."""
    text = ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
    first, dot, rest = text.partition(".")
    resolved = names.get(first, first) + dot + rest
    return resolved.partition(".")[0] == "triton" and resolved.rpartition(".")[2] == "jit"


def _calls(function: ast.FunctionDef) -> Iterator[ast.Call]:
    return (node for node in ast.walk(function) if isinstance(node, ast.Call))


def _launched(function: ast.FunctionDef) -> Iterator[str]:
    """The kernels that a function launches, `kernel[grid](...)`, by the last part of their names."""
    for call in _calls(function):
        if isinstance(call.func, ast.Subscript):
            yield ast.unparse(call.func.value).rpartition(".")[2]


def _returns(function: ast.FunctionDef) -> bool:
    return any(isinstance(node, ast.Return) and node.value is not None for node in ast.walk(function))


def _described(function: ast.FunctionDef) -> Function:
    given = function.args
    positional = [argument.arg for argument in (*given.posonlyargs, *given.args)]
    needed = positional[: len(positional) - len(given.defaults)]
    named = [each.arg for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is None]
    parameters = (*positional, *(argument.arg for argument in given.kwonlyargs))
    signature = f"{function.name}({ast.unparse(given)})"
    return Function(function.name, function.lineno, parameters, signature, tuple(needed), tuple(named))


# --- CUDA C++ ------------------------------------------------------------------------------------------------------


def _of_cuda(file: Path, text: str) -> Iterator[Kernel]:
    text = COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    for match in re.finditer(r"\b__global__\b", text):
        name, start, end = _declarator(text, match.end())
        if not name or text[end:].lstrip()[:1] != "{":  # a declaration, whose definition is elsewhere
            continue
        parameters = [part for part in _split(text[start + 1 : end - 1]) if part not in ("", "void")]
        template = re.search(r"template\s*(<[^;{}]*>)\s*(?:\w+\s+)*$", text[: match.start()])
        scope = "".join(f"{space}::" for space in _namespaces(text[: match.start()]))
        signature = re.sub(r"\s+", " ", f"{template[1] if template else ''} {scope}{name}({', '.join(parameters)})")
        line = text.count("\n", 0, match.start()) + 1
        names = tuple(_name(part) for part in parameters)
        yield Kernel(f"{scope}{name}", line, names, signature.strip(), file=file, is_template=template is not None)


def _declarator(text: str, at: int) -> tuple[str, int, int]:
    """The name of a kernel, and where its parameter list begins and ends; "" if there is none."""
    word = ""
    for token in re.compile(r"\w+|\S").finditer(text, at):
        if token.start() < at:
            continue
        if token[0] == "(":
            at = _closed(text, token.start())
            if word not in ATTRIBUTES:
                return word, token.start(), at
        elif token[0] in ";{}":
            break
        else:
            word = token[0]
    return "", 0, 0


def _closed(text: str, at: int) -> int:
    """The end of a parenthesis that begins at a place."""
    depth = 0
    for end in range(at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        if depth == 0:
            return end + 1
    return len(text)


def _split(text: str) -> list[str]:
    """Parameters, at the commas that are in no brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += {"(": 1, "<": 1, "[": 1, "{": 1, ")": -1, ">": -1, "]": -1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [re.sub(r"\s+", " ", part).strip() for part in parts]


def _name(parameter: str) -> str:
    named = re.search(r"(\w+)\s*\)?\s*(?:\[[^\]]*\]\s*)*$", parameter.partition("=")[0])
    return named[1] if named else parameter


def _namespaces(text: str) -> list[str]:
    """The namespaces that are open at the end of a text."""
    blocks: list[str] = []
    for token in re.finditer(r"\bnamespace\s+([\w:]+)\s*\{|[{}]", text):
        if token[0] == "}":
            del blocks[-1:]
        else:
            blocks.append(token[1] or "")
    return [name for name in blocks if name]
