"""What the modules of a tree depend on: their sources and the modules of others that they import.

The import statements are read from the sources; nothing is imported.
"""

import ast
import hashlib
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from kernelwatch.plan.library import loaded
from kernelwatch.plan.tree import Places

# Names by which a module imports or runs others, whose names may be computed.
DYNAMIC = {"import_module", "__import__", "exec", "eval", "runpy", "run_path", "run_module", "zipimport", "executable"}
DYNAMIC |= {"spec_from_file_location", "SourceFileLoader", "resolve_name", "lazy_loader"}
# By which it changes where others are sought.
DYNAMIC |= {"__path__", "meta_path", "path_hooks"}
# Other programs, such as a generator of sources that is written in Python, may import and read any file.
DYNAMIC |= {"subprocess", "system", "popen", "posix_spawn", "create_subprocess_exec", "create_subprocess_shell"}
# In the name of what is called to change what others find.
REGISTERS = re.compile("register|registry|registration|custom_op")
PLACEHOLDER = re.compile(r"[*?{}%]")  # in a text that stands for several names
HOOKS = re.compile(rb"__init_subclass__|metaclass")  # in the source of a class that sees its subclasses
NOT_TOLD = (SyntaxError, ValueError, RecursionError, MemoryError)
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Sources:
    """`files`: the tree's own; `others`: top-level names of modules that are neither the tree's nor Python's own;
    `complete`: False if a file cannot be parsed or imports by a computed name, so that there may be more."""

    files: frozenset[Path]
    others: frozenset[str]
    complete: bool


def modules(places: Places) -> tuple[str, ...]:
    """The names of all Python modules of a tree."""
    return tuple(sorted({places.module(path) for path in places.files() if path.suffix == ".py"} - {""}))


def data(places: Places) -> list[Path]:
    """The files of a tree that are no Python source: kernels in other languages, extensions, bytecode, tables."""
    return [path for path in places.files() if path.suffix != ".py"]


def named(places: Places, files: Iterable[Path], among: Iterable[Path] | None = None) -> set[Path]:
    """The files of the tree that these sources name in a text, and that only a reader of them would use: sources that
    are not imported, prose, what is hidden or belongs to the description. `among`: the files that are looked at, if
    not all of the tree."""
    texts = {text for path in files if path.suffix == ".py" for text in _texts(path)}
    if not texts:
        return set()
    asked = places.aside() if among is None else among
    return {path for path in asked if any(_names(text, path, places.folder) for text in texts)}


def _names(text: str, path: Path, folder: Path) -> bool:
    """Whether a text may stand for a file: it has its name or that of the hidden folder at the top, or it ends as all
    files of its kind do."""
    top = path.relative_to(folder).parts[0]
    if path.name in text or (top.startswith(".") and top in text):
        return True
    last = text.rpartition("/")[2]
    return bool(path.suffix) and last.endswith(path.suffix) and (last == path.suffix or bool(PLACEHOLDER.search(last)))


@lru_cache(maxsize=4096)
def _texts_of(content: bytes) -> frozenset[str]:
    try:
        tree = ast.parse(content)
    except NOT_TOLD:
        return frozenset()
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and _has_docstring(node):
            node.body[0] = ast.Pass()
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return frozenset(text for text in texts if "." in text)


def _texts(path: Path) -> frozenset[str]:
    """The texts of a Python source that could name a file."""
    try:
        return _texts_of(path.read_bytes())
    except OSError:
        return frozenset()


def reached_by(places: Places, module: str, accounted: frozenset[Path] = frozenset()) -> Sources:
    """What a module depends on, "" if it is not known; all modules of the tree if that cannot be told. `accounted`: as
    in `reached`."""
    if module and places.source(module.partition(".")[0]):
        own = reached(places, (module,), accounted)
        if own.complete:
            return own
    return reached(places, (*modules(places), *filter(None, [module])))


@lru_cache(maxsize=256)
def reached(places: Places, names: tuple[str, ...], accounted: frozenset[Path] = frozenset()) -> Sources:
    """What these modules depend on, directly or not. The code of the packages above them counts, but what these import
    only if its import acts on other modules. If any of them changes Python's path, a name that the places lack may be
    that of a module in any folder of the tree. `accounted`: files that are told elsewhere, such as the table."""
    found, absent = _reached(places, names, accounted)
    if any(map(_changes_the_path, found.files | accounted)):
        while folders := {folder for name in absent for folder in places.elsewhere(name)}:
            places = replace(places, added=(*places.added, *sorted(folders)))
            found, absent = _reached(places, names, accounted)
    return found


def _reached(places: Places, names: tuple[str, ...], accounted: frozenset[Path]) -> tuple[Sources, set[str]]:
    """As `reached`, of the modules in these places only, and the dotted names of all others."""
    files: set[Path] = set()
    followed: set[Path] = set()
    entered = set(accounted)
    absent: set[str] = set()
    complete, waiting = True, list(names)
    while waiting:
        name = waiting.pop()
        path = _located(places, name)
        if path is None:
            absent |= {name} - {""}
            continue
        if _shadowed(places, name):
            waiting.append(name.rpartition(".")[0])
        if path in followed:
            continue
        followed.add(path)
        above = _above(places, places.module(path))
        files |= {path, *above} - (accounted - {path})
        for init in above - entered:
            waiting += _acting(places, init)
        entered |= above
        imported = _imported(path, places.module(path))
        complete = complete and imported is not None
        waiting += imported or ()
    others = {name.partition(".")[0] for name in absent} - sys.stdlib_module_names
    return Sources(frozenset(files), frozenset(others), complete), absent


def _changes_the_path(path: Path) -> bool:
    """Whether a source names the list of folders in which Python seeks modules, or what adds to it."""
    try:
        content = path.read_bytes()
        if not (b"addsitedir" in content or (b"sys" in content and b"path" in content)):
            return False  # most sources: to parse them takes time
        tree = ast.parse(content)
    except (OSError, *NOT_TOLD):
        return True
    system = {"sys"} | {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "sys"
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            told = node.attr == "addsitedir" or (node.attr == "path" and _root(node.value) in system)
        else:
            names = {alias.name for alias in node.names} if isinstance(node, ast.ImportFrom) else set()
            told = "addsitedir" in names or ("path" in names and getattr(node, "module", "") == "sys")
        if told:
            return True
    return False


def _above(places: Places, name: str) -> set[Path]:
    """The __init__.py files of the packages above a module."""
    found = set()
    while name := name.rpartition(".")[0]:
        source = places.source(name)
        if source is not None and source.name == "__init__.py":
            found.add(source)
    return found


@lru_cache(maxsize=256)
def _acting(places: Places, init: Path) -> tuple[str, ...]:
    """The modules of the tree that the import of a package brings along, itself included, and whose import acts on
    other modules. What they import has a part in that, so they are to be followed."""
    acting: list[str] = []
    seen, waiting = {init}, [init]
    while waiting:
        path = waiting.pop()
        module = places.module(path)
        imported = _imported(path, module)
        if imported is None or _acts(places, path, module):
            acting.append(module)
            continue
        located = {other for name in imported if (other := _located(places, name))}
        new = {each for other in located for each in (other, *_above(places, places.module(other)))} - seen
        seen |= new
        waiting += new
    return tuple(acting)


def _acts(places: Places, path: Path, module: str) -> bool:
    """Whether the import of a module may change how others work: it calls something for its effect, or what may have
    one, registers what it defines, or sets what another module has."""
    tree = ast.parse(path.read_bytes())
    bindings = _bindings(tree)
    names = _imported_names(tree, module, path.name == "__init__.py")
    ours = {own: source for own, name in names.items() if (source := _located(places, name))}
    own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in _at_import(tree):
        if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
            return True
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            root = _root(node)
            if root in names or root not in bindings:
                return True
        decorators = getattr(node, "decorator_list", [])
        called = [*decorators, *([node.func] if isinstance(node, ast.Call) else [])]
        sources = [path if _root(each) in own else ours.get(_root(each)) for each in called]
        if any(_root(each) in ours for each in decorators) or any(
            source and not _computes(source, _called(each)) for source, each in zip(sources, called, strict=True)
        ):
            return True
        if any(REGISTERS.search(ast.unparse(each)) for each in called):
            return True
        if isinstance(node, ast.ClassDef):
            above = [ours[_root(base)] for base in node.bases if _root(base) in ours]
            if any(HOOKS.search(source.read_bytes()) for source in above):
                return True
    return False


def _computes(source: Path, name: str) -> bool:
    """Whether a function of a module does nothing but compute, as far as its text tells: it sets nothing that others
    have, calls nothing for its effect, and calls no other function of the module."""
    body = ast.parse(source.read_bytes()).body
    own = {node.name: node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    if not isinstance(own.get(name), ast.FunctionDef):
        return False
    for node in ast.walk(own[name]):
        if isinstance(node, ast.Global | ast.Nonlocal | ast.Delete | ast.ImportFrom):
            return False
        if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
            return False
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            return False
        if isinstance(node, ast.Call) and _root(node.func) in own:
            return False
    return True


def _called(node: ast.expr) -> str:
    """The name at the right end of an expression, such as that of a function of a module."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _at_import(tree: ast.Module) -> Iterator[ast.AST]:
    """What of a module is run by its import: nothing within functions."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += node.decorator_list
        elif not isinstance(node, ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def _imported_names(tree: ast.Module, module: str, is_package: bool) -> dict[str, str]:
    """The names that imports of a module bind, and the dotted names of what they stand for."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, module, is_package)
            found |= {alias.asname or alias.name: f"{base}.{alias.name}" for alias in node.names}
    return found


def _root(node: ast.expr) -> str:
    """The name at the left end of an expression, "" if it has none."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def table(source: Path, module: str, name: str, instead: Iterable[str]) -> dict[str, tuple[str, str]] | None:
    """A table {op: {rung: function}} as a module's source writes it: "op/rung" -> how the entry is written, and the
    module that it names by a text "module:function" or by a function of that module, "" if it is neither.

    {} if nothing has this name; None if the source does not tell the whole table: it is made or changed by code, or the
    module may have one of these functions `instead`.
    """
    try:
        tree = ast.parse(source.read_bytes())
    except (OSError, *NOT_TOLD):
        return None
    bindings = _bindings(tree)
    uses = sum(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))
    if any(bindings[other] for other in ("*", *instead)) or uses > 1 or bindings[name] > uses:
        return None
    bound = _bound_by_imports(tree, module, source.name == "__init__.py", bindings)
    for node in tree.body:
        if _assigns(node, name):
            entries = _entries(getattr(node, "value", None))
            if entries is None:
                return None
            return {rung: (ast.unparse(entry), _module(entry, bound, module)) for rung, entry in entries.items()}
    return None if uses else {}


def _assigns(node: ast.stmt, name: str) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)] == [name]


def code_text(content: bytes, without: Collection[str] = ()) -> bytes:
    """What counts of a Python source: its code, without comments, docstrings and layout. `without`: names at the top
    level whose assignments do not count."""
    try:
        module = ast.parse(content)
        keeps = b"__doc__" in content or b"getdoc" in content
    except NOT_TOLD:
        return content
    module.body = [node for node in module.body if not any(_assigns(node, name) for name in without)]
    for node in ast.walk(module):
        if not keeps and isinstance(node, DOCUMENTED) and _has_docstring(node):
            del node.body[0]
    try:
        return ast.dump(module).encode()
    except NOT_TOLD:
        return content


def besides(path: Path, without: Iterable[str]) -> str:
    """A digest of the code of a module without the assignments of these names and without the imports of what only
    these use; "" if there is nothing else."""
    try:
        module = ast.parse(path.read_bytes())
    except (OSError, *NOT_TOLD):
        return digest(path)
    tables = [node for node in module.body if any(_assigns(node, name) for name in without)]
    used = {node.id for table in tables for node in ast.walk(table) if isinstance(node, ast.Name)}
    left = [node for node in module.body if node not in tables and not _binds_only(node, used)]
    if _has_docstring(ast.Module(left, [])):
        del left[0]
    return hashlib.sha256(ast.dump(ast.Module(left, [])).encode()).hexdigest()[:16] if left else ""


def _binds_only(node: ast.stmt, used: set[str]) -> bool:
    """Whether a statement is an import of names that are all among these."""
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return False
    return all((alias.asname or alias.name.partition(".")[0]) in used for alias in node.names)


_code_digests: dict[tuple[str, bytes], str] = {}  # by the names without which, and the hash of the file's bytes


def digest(path: Path, without: Collection[str] = ()) -> str:
    """A digest of what counts of a file: of a Python source its `code_text`, of a library what is loaded of
    it, else its bytes; of a file that cannot be read, "missing". The same text is parsed once in a process, however
    many trees have it."""
    try:
        if path.is_dir():  # a link to a folder
            return os.readlink(path)
        runs = "x" if path.stat().st_mode & stat.S_IXUSR else ""
        content = path.read_bytes()
    except OSError:
        return "missing"
    if path.suffix != ".py":
        return _short(loaded(content)) + runs
    key = " ".join(without), hashlib.sha256(content).digest()
    if key not in _code_digests:
        _code_digests[key] = _short(code_text(content, without))
    return _code_digests[key] + runs


def _short(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _has_docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    first = node.body[0] if node.body else None
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)


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


def _bound_by_imports(tree: ast.Module, module: str, is_package: bool, bindings: Counter[str]) -> dict[str, str]:
    """The names that an import at the top of a module binds, and nothing else in it: the dotted name of each."""
    return {
        own: f"{_absolute(node, module, is_package)}.{alias.name}"
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


def _located(places: Places, name: str) -> Path | None:
    """The source file of a dotted name: a module's own, or if it is no module, that of the nearest one above it. None
    if it is none of the tree's."""
    while name:
        if path := places.source(name):
            return path
        name = name.rpartition(".")[0]
    return None


def _shadowed(places: Places, name: str) -> bool:
    """Whether a dotted name is a module's, and the __init__.py above it binds the same name to something else."""
    above, _, last = name.rpartition(".")
    init = places.source(above) if above else None
    if init is None or init.name != "__init__.py" or _located(places, name) == init:
        return False
    try:
        tree = ast.parse(init.read_bytes())
    except NOT_TOLD:
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
    except (OSError, *NOT_TOLD):
        return None
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            if any(alias.name in DYNAMIC for alias in node.names):
                return None
            names += (name for alias in node.names for name in _bound(alias))
        elif isinstance(node, ast.ImportFrom):
            if node.module in DYNAMIC or any(alias.name in DYNAMIC for alias in node.names):
                return None
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
