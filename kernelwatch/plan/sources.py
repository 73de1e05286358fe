"""What the modules of a package depend on: their sources and the modules of others that they import.

The import statements are read from the sources; nothing is imported.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

DYNAMIC = ("import_module", "__import__")  # calls that import a module by a name that may be computed


@dataclass(frozen=True)
class Sources:
    """`files`: the package's own; `others`: top-level names of modules that are neither the package's nor Python's own;
    `complete`: False if a file cannot be parsed or imports by a computed name, so that there may be more."""

    files: frozenset[Path]
    others: frozenset[str]
    complete: bool


def modules(package: Path) -> list[str]:
    """The names of all Python modules in a package's folder."""
    return sorted(_name(package, path) for path in _files(package) if path.suffix == ".py")


def data(package: Path) -> list[Path]:
    """The files of a package that are no Python source: kernels in other languages, compiled extensions, tables."""
    return sorted(path for path in _files(package) if path.suffix not in (".py", ".pyc"))


def reached_by(package: Path, module: str) -> Sources:
    """What a module depends on, "" if it is not known; all of the package if that cannot be told."""
    if module.partition(".")[0] == package.name:
        own = reached(package, (module,))
        if own.complete:
            return own
    return reached(package, (*modules(package), *filter(None, [module])))


@lru_cache(maxsize=256)
def reached(package: Path, names: tuple[str, ...]) -> Sources:
    """What these modules depend on, directly or not. `package`: the package's folder."""
    files: set[Path] = set()
    others: set[str] = set()
    complete, waiting = True, list(names)
    while waiting:
        name = waiting.pop()
        top = name.partition(".")[0]
        if top != package.name:
            others.add(top)
            continue
        if _shadowed(package, name):
            waiting.append(name.rpartition(".")[0])
        path = _located(package, name)
        if path in files:
            continue
        files.add(path)
        imported = _imported(path, _name(package, path))
        complete = complete and imported is not None
        waiting += imported or ()
    return Sources(frozenset(files), frozenset(others - sys.stdlib_module_names), complete)


def table(package: Path, name: str, instead: Iterable[str]) -> dict[str, tuple[str, str]] | None:
    """A table {op: {rung: function}} as a package's __init__.py writes it: "op/rung" -> how the entry is written, and
    the module that it names by a text "module:function" or by a function of that module, "" if it is neither.

    {} if nothing has this name; None if the source does not tell the whole table: it is made or changed by code, or the
    package may have one of these functions `instead`.
    """
    try:
        tree = ast.parse((package / "__init__.py").read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    bindings = _bindings(tree)
    uses = sum(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))
    if any(bindings[other] for other in ("*", *instead)) or uses > 1 or bindings[name] > uses:
        return None
    bound = _bound_by_imports(tree, package.name, bindings)
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if [target.id for target in targets if isinstance(target, ast.Name)] == [name]:
            entries = _entries(getattr(node, "value", None))
            if entries is None:
                return None
            return {rung: (ast.unparse(entry), _module(entry, bound, package.name)) for rung, entry in entries.items()}
    return None if uses else {}


def _bindings(tree: ast.Module) -> Counter[str]:
    """How often each name is bound in a module, in its functions as well, or an attribute or item of it; "*" by an
    import of all names."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names += (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(node.name)
        elif not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            target = node
            while isinstance(target, ast.Attribute | ast.Subscript):
                target = target.value
            names.append(getattr(target, "id", ""))
    return Counter(names)


def _bound_by_imports(tree: ast.Module, package: str, bindings: Counter[str]) -> dict[str, str]:
    """The names that an import at the top of a package's __init__.py binds, and nothing else in it: the dotted name of
    each."""
    return {
        own: f"{_absolute(node, package, True)}.{alias.name}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if bindings[own := alias.asname or alias.name] == 1
    }


def _module(entry: ast.expr, bound: dict[str, str], package: str) -> str:
    """The module that an entry of a table names, or a dotted name in it."""
    if isinstance(entry, ast.Constant) and isinstance(entry.value, str):
        return entry.value.partition(":")[0]
    if isinstance(entry, ast.Name):
        return bound.get(entry.id, package)  # what is no import is the __init__.py's own
    if isinstance(entry, ast.Attribute) and (above := _module(entry.value, bound, "")):
        return f"{above}.{entry.attr}"
    return ""


def _entries(table: ast.expr | None) -> dict[str, ast.expr] | None:
    """The entries of a table {op: {rung: ...}} by "op/rung"; None if it is no literal dictionary of such."""
    ops = _items(table)
    if ops is None:
        return None
    found: dict[str, ast.expr] = {}
    for op, rungs in ops:
        entries = _items(rungs)
        if entries is None:
            return None
        found |= {f"{op}/{rung}": entry for rung, entry in entries}
    return found


def _items(node: ast.expr | None) -> list[tuple[str, ast.expr]] | None:
    """The items of a dictionary as it is written; None if it is none, or if a key is no text."""
    if not isinstance(node, ast.Dict):
        return None
    keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
    texts = [key for key in keys if isinstance(key, str)]
    return list(zip(texts, node.values, strict=True)) if len(texts) == len(keys) else None


def _files(package: Path) -> Iterator[Path]:
    return (path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def _name(package: Path, path: Path) -> str:
    """The dotted name of a source file."""
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _located(package: Path, name: str) -> Path:
    """The source file of a dotted name: a module's own, or if it is no module, that of the nearest one above it."""
    parts = name.split(".")
    while len(parts) > 1:
        folder = package.parent.joinpath(*parts)
        for path in (folder / "__init__.py", folder.with_name(f"{folder.name}.py")):
            if path.is_file():
                return path
        parts.pop()
    return package / "__init__.py"


def _shadowed(package: Path, name: str) -> bool:
    """Whether a dotted name is a module's, and the __init__.py above it binds the same name to something else."""
    above, _, last = name.rpartition(".")
    init = package.parent.joinpath(*above.split("."), "__init__.py")
    if not (above and init.is_file()) or _located(package, name) == init:
        return False
    try:
        tree = ast.parse(init.read_bytes())
    except (SyntaxError, ValueError):
        return True
    own = [
        alias
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and _absolute(node, above, True) == above
        for alias in node.names
        if alias.name == last and alias.asname in (None, last)
    ]
    return _bindings(tree)[last] > len(own)


def _imported(path: Path, module: str) -> list[str] | None:
    """The dotted names that a source file imports; None if not all can be told."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += (name for alias in node.names for name in _bound(alias))
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, module, path.name == "__init__.py")
            names += (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Name | ast.Attribute) and _last(node) in DYNAMIC:
            return None
    return names


def _bound(alias: ast.alias) -> Iterable[str]:
    """The modules that `import a.b.c` makes reachable: all three, or only the last one if it has a name of its own."""
    parts = alias.name.split(".")
    return [alias.name] if alias.asname else [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _absolute(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    """The absolute name of the module after `from`."""
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    above = parts[: len(parts) - node.level + is_package]
    return ".".join([*above, *filter(None, [node.module])])


def _last(node: ast.Name | ast.Attribute) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr
