"""A measured tree: a folder with all files of one commit, from which a process imports the kernels, and nowhere else.

`Places` says where the modules of a tree lie. A `Guard` imports them from there, whatever is installed, and knows the
files of the tree that this process has loaded or read. A module, a library or a source that lies in the repository but
outside of the tree belongs to another version of the kernels: it is a stray, and what was measured with it has failed.
"""

import configparser
import functools
import hashlib
import importlib
import importlib.machinery
import importlib.util
import json
import os
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from kernelwatch.plan.package import Absent
from kernelwatch.system import content
from kernelwatch.system.errors import UserError

BROKEN = ".broken"  # the file of a tree that could not be built, with the reason
BUILT = ".built"  # the folder of a tree into which its wheels were unpacked
EXPORTED = ".exported"  # the file of a tree that is built, with the names of those of its commit
USUAL = ("src", "python")  # folders in which projects usually keep their packages
INSTALLED = ("site-packages", "dist-packages")  # folders of installed distributions
HEADERS = frozenset((".cuh", ".cuinc", ".h", ".hh", ".hpp", ".hxx", ".inl", ".inc", ".def", ".ipp", ".tcc", ".tpp"))
COMPILED = HEADERS | {".cu", ".c", ".cc", ".cpp", ".cxx", ".ptx", ".S"}
LIBRARIES = frozenset((".so", ".pyd", ".dll", ".dylib"))
SOURCES = COMPILED | LIBRARIES | {".py", ".cubin", ".fatbin"}
PROSE = frozenset((".md", ".rst"))  # what no kernel reads
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.MULTILINE)
LIBRARY = re.compile(r"/.*\.so.*$", re.MULTILINE)  # the file of a line of /proc/self/maps
# A variable that names a folder of caches. $CCACHE_BASEDIR, say, names one of sources.
CACHE = re.compile(r"CACHE(_?(DIR|FOLDER|HOME|PATH|ROOT))?$")
DEPTH = 4  # of the folders in which a package is searched for


# --- where the modules of a tree lie -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Places:
    """Where the modules of a tree lie.

    `roots`: the folders from which top-level modules are imported.
    `renamed`: packages whose folders have other names, as setuptools' package-dir allows, with these folders.
    `apart`: folders and files of the tree that no kernel depends on, such as the results, and the tree's own
    description.
    `description`: the checkout's folder of suites, whose modules may hold the table of rungs.
    `added`: folders that code of the tree may put on Python's path, of which modules are sought after all others.
    """

    folder: Path
    roots: tuple[Path, ...]
    renamed: tuple[tuple[str, Path], ...] = ()
    apart: tuple[Path, ...] = ()
    description: Path | None = None
    added: tuple[Path, ...] = ()

    def package(self, name: str) -> Path | None:
        """The folder of a package, or the file of a module; None if the tree has none of this name."""
        if name in dict(self.renamed):
            return dict(self.renamed)[name]
        for root in self.roots:
            for path in (root / name, root / f"{name}.py"):
                if (path / "__init__.py").is_file() or (path.is_file() and path.suffix == ".py"):
                    return path
        return None

    def source(self, name: str) -> Path | None:
        """The source file of a dotted module name; None if the tree has none."""
        top, _, rest = name.partition(".")
        folders = [root / top for root in (*self.roots, *self.added)]
        if top in dict(self.renamed):
            folders = [dict(self.renamed)[top]]
        elif self.description is not None and top == self.description.name:
            folders = [self.description]
        for folder in folders:
            below = folder.joinpath(*rest.split(".")) if rest else folder
            for path in (below / "__init__.py", below.with_name(f"{below.name}.py")):
                if path.is_file():
                    return path
        return None

    def names(self) -> set[str]:
        """The top-level names under which modules of the tree can be imported, and some more."""
        described = {self.description.name} if self.description is not None else set()
        entries = {entry for root in self.roots if root.is_dir() for entry in os.listdir(root)}
        return {entry.partition(".")[0] for entry in entries} | dict(self.renamed).keys() | described

    def module(self, path: Path) -> str:
        """The dotted name of a source file, "" if no place has it."""
        named = [*self.renamed, *([(self.description.name, self.description)] if self.description else [])]
        for top, folder in named:
            if path.is_relative_to(folder):
                return _dotted((top, *path.relative_to(folder).with_suffix("").parts))
        for roots in (self.roots, self.added):
            for root in sorted(roots, key=lambda root: -len(root.parts)):
                if path.is_relative_to(root):
                    return _dotted(path.relative_to(root).with_suffix("").parts)
        return ""

    def elsewhere(self, name: str) -> set[Path]:
        """The folders of the tree, besides these places, that would have a module on Python's path. `name`: the dotted
        name of the module, or of something in it."""
        top, *rest = name.split(".")
        found = self._tops.get(top, set()) - {*self.roots, *self.added}
        names = [".".join((top, *rest[:end])) for end in range(len(rest) + 1)]
        return {folder for folder in found if any(map(Places(self.folder, (folder,)).source, names))}

    def files(self) -> Iterator[Path]:
        """The files of the tree on which a kernel may depend: none that is hidden at the top, prose, or in
        a folder apart."""
        apart = tuple(os.path.join(folder, "") for folder in self.apart)
        for path in all_files(self.folder):
            if path.suffix not in PROSE and not os.path.join(path, "").startswith(apart):
                yield path

    def aside(self) -> Iterator[Path]:
        """The files that only count if a kernel reads them: Python sources, which may not be imported, prose, what is
        hidden at the top, and what lies in a folder apart. Of a checkout the last two are left out, since runs and
        tools leave there what they like."""
        exported = not (self.folder / ".git").exists()
        counted = set(self.files())
        for path in all_files(self.folder, hidden=exported):
            if path.suffix == ".py" or (path not in counted and (exported or path.suffix in PROSE)):
                yield path

    def content(self, *, whole: bool = False) -> str:
        """A hash of the files of the tree on which a kernel may depend, as `files`; `whole`: of all files."""
        apart = tuple(f"{path.relative_to(self.folder).as_posix()}/" for path in self.apart)

        def counts(name: str) -> bool:
            top, *_ = parts = name.split("/")
            if "__pycache__" in parts or any(part.startswith(".git") for part in parts):
                return False
            return whole or not (top.startswith(".") or f"{name}/".startswith(apart) or Path(name).suffix in PROSE)

        found = content.hashes(self.folder, counts)
        return hashlib.sha256(json.dumps(sorted(found.items())).encode()).hexdigest()

    def included(self, files: Iterable[Path]) -> set[Path]:
        """The files of the tree that these sources may include, directly or not. A name that several folders have
        stands for all of them, since the compiler's search path is not known."""
        waiting = [path for path in files if path.suffix in COMPILED | {".py"} and path.is_file()]
        found: set[Path] = set()
        while waiting:
            path = waiting.pop()
            text = path.read_text(encoding="utf-8", errors="replace")
            for name in INCLUDE.findall(text):
                for other in self._headers.get(Path(name).name, ()):
                    if other not in found and _ends(other, name):
                        found.add(other)
                        waiting.append(other)
        return found

    @functools.cached_property
    def _tops(self) -> dict[str, set[Path]]:
        """The folders of the tree by the names that could be imported from them, if they were on Python's path."""
        tops: dict[str, set[Path]] = {}
        for path in self.files():
            if path.suffix == ".py":
                above = path.relative_to(self.folder).parents
                for module in (path, *(self.folder / folder for folder in list(above)[:-1])):
                    tops.setdefault(module.stem, set()).add(module.parent)
        return tops

    @functools.cached_property
    def _headers(self) -> dict[str, list[Path]]:
        """The sources of the tree that could be included, by their names."""
        headers: dict[str, list[Path]] = {}
        for path in all_files(self.folder):
            if path.suffix in COMPILED or not path.suffix:
                headers.setdefault(path.name, []).append(path)
        return headers

    def name(self, path: Path) -> str:
        """A file's name in reports: relative to the tree, or to the folder above the description's."""
        if path.is_relative_to(self.folder):
            return path.relative_to(self.folder).as_posix()
        above = self.description.parent if self.description else Path("/")
        return f"(checkout) {path.relative_to(above).as_posix()}" if path.is_relative_to(above) else str(path)


def _dotted(parts: Sequence[str]) -> str:
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def places(folder: Path, package: str, source: str = "") -> Places:
    """Where the modules of a tree lie: in the wheels that were unpacked into it; in `source`, a folder relative to the
    tree, if it is given; else where pyproject.toml or setup.cfg says, in `src`, in `python` or at the top. A `package`
    that is in none of these is searched for; "" if there is none.

    Raises: UserError if several folders have the package.
    """
    built = [folder / BUILT] if (folder / BUILT).is_dir() else []
    if source:
        return Places(folder, (*built, folder / source))
    named, declared = _declared(folder)
    candidates = [*built, *(folder / place for place in (*declared, *USUAL, ""))]
    found = Places(folder, tuple(dict.fromkeys(path for path in candidates if path.is_dir())), named)
    if not package or found.package(package):
        return found
    elsewhere = sorted({path.parent.parent for path in _search(folder, package)})
    if len(elsewhere) > 1:
        where = ", ".join(path.relative_to(folder).as_posix() for path in elsewhere)
        raise UserError(f"{package} lies in {where}; name the folder that is measured as `source` of the Project")
    return Places(folder, (*elsewhere, *found.roots), named)


def _search(folder: Path, package: str) -> Iterator[Path]:
    """The __init__.py files of a package, of any folder that is not hidden."""
    for top, folders, _ in os.walk(folder):
        here = Path(top)
        folders[:] = [name for name in folders if not name.startswith(".")]
        if len(here.relative_to(folder).parts) >= DEPTH:
            folders.clear()
        if package in folders and (here / package / "__init__.py").is_file():
            yield here / package / "__init__.py"


def _declared(folder: Path) -> tuple[tuple[tuple[str, Path], ...], list[str]]:
    """The packages whose folders have other names, and the folders of packages, as pyproject.toml and setup.cfg declare
    them to the usual build backends."""
    tables: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        tables = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8")).get("tool", {})
    folders: list[str] = []
    named: dict[str, str] = {}

    def read(*keys: str) -> Any:
        value: Any = tables
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    for name, place in (read("setuptools", "package-dir") or {}).items():
        named[name] = place
    where = read("setuptools", "packages", "find", "where")
    folders += where if isinstance(where, list) else []
    for listed in (read("hatch", "build", "targets", "wheel", "packages"), read("scikit-build", "wheel", "packages")):
        folders += [str(Path(path).parent) for path in (listed if isinstance(listed, list) else ())]
    for listed in (read("hatch", "build", "targets", "wheel", "sources"), read("hatch", "build", "sources")):
        folders += listed if isinstance(listed, list) else list(listed or ())
    uv = read("uv", "build-backend", "module-root")
    for value in (read("pdm", "build", "package-dir"), read("maturin", "python-source"), uv):
        folders += [value] if isinstance(value, str) else []
    for entry in read("poetry", "packages") or ():
        folders += [entry["from"]] if isinstance(entry, dict) and "from" in entry else []
    old = configparser.ConfigParser()
    with suppress(OSError, configparser.Error, UnicodeDecodeError):
        old.read(folder / "setup.cfg", encoding="utf-8")
        for line in old.get("options", "package_dir", fallback="").splitlines():
            name, found, place = line.partition("=")
            if found:
                named[name.strip()] = place.strip()
        folders += old.get("options.packages.find", "where", fallback="").split()
    folders += [place for name, place in named.items() if not name]
    renamed = tuple((name, folder / place) for name, place in named.items() if name and "." not in name)
    return renamed, [str(place) for place in folders]


# --- what this process loads ---------------------------------------------------------------------------------------


class Guard(MetaPathFinder):
    """Python's first finder in a process that measures a tree.

    It imports the tree's modules from the tree, and refuses what lies in the repository outside of it, so that neither
    an editable install nor a path to the checkout counts. `repository`: the folder of the repository; `exempt`: its
    folders that belong to no tree, such as the description's. What lies in a cache or among temporary files counts as
    made by this process, also if their folder is in the repository.
    """

    def __init__(self, places: Places, repository: Path, exempt: Iterable[Path] = ()) -> None:
        self.places = places
        self._tree = _prefix(places.folder)
        self._named = self._tree, os.path.join(os.path.abspath(places.folder), "")  # how paths in it begin
        self._outside = _prefix(repository)
        environment = [path for path in {sys.prefix, sys.exec_prefix} if _prefix(Path(path)).startswith(self._outside)]
        made = [path for path in _made_folders() if not self._outside.startswith(_prefix(path))]
        self._exempt = tuple(map(_prefix, (*exempt, *map(Path, environment), *made)))
        self._judged = dict(sys.modules)  # modules that are no strays: they are asked for after each cell
        self._clean: set[str] = set()  # files, likewise
        self._refused: dict[str, str] = {}
        self._opened: set[str] = set()
        self._links: set[Path] = set()  # of the tree, that led out of it to what was opened
        self.watches = True
        self.asks = False  # whether this process only tells what a rung reads

    def install(self) -> None:
        """Become the first finder, and watch the files that are opened. What is imported by then and is also a module
        of the tree is forgotten, so that it is imported again."""
        own = self.places.names()
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] in own and self.is_stray(_origin(module)) and self.places.source(name):
                del sys.modules[name]
        # Behind the others: this finder prefers the tree for all but Python's own modules, whose names a tree may have.
        sys.path += [str(root) for root in self.places.roots if str(root) not in sys.path]
        sys.meta_path.insert(0, self)
        sys.addaudithook(self._audit)

    def leave(self) -> None:
        """Be no finder any more."""
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        roots = set(map(str, self.places.roots))
        sys.path[:] = [path for path in sys.path if path not in roots]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module of the tree, else what the other finders find outside of the repository.

        Raises: ModuleNotFoundError if the repository has such a module outside of the tree, and nowhere else.
        """
        if path is None:
            if fullname in sys.stdlib_module_names:
                return None
            if folder := dict(self.places.renamed).get(fullname):
                return importlib.util.spec_from_file_location(
                    fullname, folder / "__init__.py", submodule_search_locations=[str(folder)]
                )
            own = importlib.machinery.PathFinder.find_spec(fullname, [str(root) for root in self.places.roots])
        else:
            own = importlib.machinery.PathFinder.find_spec(fullname, [at for at in path if self._within(at)])
        if own is not None and own.loader is not None and own.origin is not None:
            return own
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: importlib.machinery.ModuleSpec | None = find(fullname, path, target)
            if spec is None:
                continue
            if not self.is_stray(spec.origin or ""):
                return spec
            self._refused[fullname] = str(spec.origin)
        if fullname in self._refused:  # if it were not raised, Python would ask the other finders
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None

    def refused(self) -> str:
        """What the repository has outside of the tree and was not imported; "" if nothing was refused."""
        texts = [f"{name} is {path}" for name, path in self._refused.items()]
        if not texts:
            return ""
        return (
            f"in the repository, {texts[0]}, which is no file of the measured tree {self.places.folder}: if it is "
            "built, say how (`build` of the Project)"
        )

    def is_stray(self, path: str) -> bool:
        """Whether a file lies in the repository, but neither in this tree nor in a folder that is exempt."""
        path = _real(path) if path else ""
        if not path.startswith(self._outside) or path.startswith((self._tree, *self._exempt)):
            return False
        parts = path.split(os.sep)
        return not any(part in INSTALLED for part in parts) and ".git" not in parts

    def strays(self) -> list[str]:
        """The modules, shared libraries and sources of the repository that this process has used and that are no files
        of the tree."""
        new = {name: module for name, module in list(sys.modules.items()) if self._judged.get(name) is not module}
        used = set(map(_origin, new.values()))
        used.update(path for path in _mapped() if path not in self._clean)
        # A file that the tree has as well is the checkout's other version of it, whatever it is.
        twins = (path for path in self._opened if self._has_twin(path))
        opened = (path for path in self._opened if os.path.splitext(path)[1] in SOURCES)
        strays = {path for path in (*used, *opened, *twins) if path and self.is_stray(path)}
        if not strays:
            self._judged |= new
            self._clean.update(used)
        return sorted(filter(os.path.isfile, strays))

    def _has_twin(self, path: str) -> bool:
        below = path.removeprefix(self._outside)
        return below != path and os.path.isfile(os.path.join(self._tree, below))

    def used(self) -> set[Path]:
        """The files of the tree that this process has imported, loaded or read, and what they include."""
        used = {_origin(module) for module in list(sys.modules.values())}
        found = {Path(path) for path in (*used, *self._opened, *_mapped()) if path and self._within(path)}
        found = {path for path in found if "__pycache__" not in path.parts and path.is_file()}
        return found | self._links | self.places.included(found)

    def _within(self, path: str) -> bool:
        return _real(path).startswith(self._tree)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.watches:
            return
        if event in ("open", "ctypes.dlopen"):
            self.note(arguments[0])
        elif event == "subprocess.Popen":  # a compiler that this process starts
            for argument in arguments[1] if isinstance(arguments[1], list | tuple) else ():
                self.note(argument)

    def note(self, path: object) -> None:
        """Take a file for one that the measured code uses."""
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if isinstance(path, str | os.PathLike):
            absolute = os.path.realpath(path)
            if absolute.startswith(self._outside) or absolute.startswith(self._tree):
                self._opened.add(absolute)
            if not absolute.startswith(self._tree) and os.path.abspath(path).startswith(self._named):
                self._links.update(self._leading_out(Path(os.path.abspath(path))))

    def _leading_out(self, path: Path) -> Iterator[Path]:
        """The link of the tree by which a path that begins in it leads out of it."""
        for part in (path, *path.parents):
            if part.is_symlink() and self._within(str(part.parent / "x")):
                yield self.places.folder / os.path.relpath(os.path.realpath(part.parent), self._tree) / part.name
                return


def _prefix(folder: Path) -> str:
    return os.path.join(os.path.realpath(folder), "")


def _made_folders() -> Iterator[Path]:
    """Where this process puts what it makes: the folder of temporary files, and the caches that variables name, such as
    $TRITON_CACHE_DIR. In a CI they often lie in the checkout."""
    yield Path(tempfile.gettempdir())
    yield from (Path(value) for name, value in os.environ.items() if CACHE.search(name) and os.path.isabs(value))


def _origin(module: ModuleType | None) -> str:
    spec = getattr(module, "__spec__", None)
    origin = getattr(module, "__file__", None) or getattr(spec, "origin", None)
    return _real(origin) if isinstance(origin, str) and os.sep in origin else ""


def _real(path: str) -> str:
    return _followed(path if os.path.isabs(path) else os.path.abspath(path))


@functools.cache  # after each cell all modules of a process are looked at, of which libraries bring thousands
def _followed(path: str) -> str:
    """What an absolute path leads to. The files of one folder share what leads to it."""
    folder, name = os.path.split(path)
    if name in ("", ".", "..") or os.path.islink(path):
        return os.path.realpath(path)
    return os.path.join(_followed(folder), name)


def _mapped() -> Iterator[str]:
    """The shared libraries that this process has loaded."""
    with suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        yield from set(LIBRARY.findall(maps.read()))


def _ends(path: Path, name: str) -> bool:
    """Whether a path ends as an include names it."""
    wanted = [part for part in Path(name).parts if part not in ("..", ".")]
    return list(path.parts[-len(wanted) :]) == wanted


def all_files(folder: Path, *, hidden: bool = False) -> Iterator[Path]:
    """All files of a tree and links to folders, without bytecode and git's own. `hidden`: also what is hidden at the
    top."""
    for top, folders, files in os.walk(folder):
        at_top = Path(top) == folder and not hidden
        folders[:] = sorted(name for name in folders if name != "__pycache__" and not _is_left_out(name, at_top))
        yield from (Path(top, name) for name in folders if os.path.islink(os.path.join(top, name)))
        paths = (Path(top, name) for name in sorted(files) if not _is_left_out(name, at_top))
        yield from filter(Path.is_file, paths)  # no FIFO, and no link that leads nowhere or to itself


def _is_left_out(name: str, at_top: bool) -> bool:
    return name.startswith(".git") or (at_top and name.startswith("."))


# --- the tree of this process --------------------------------------------------------------------------------------


_guards: list[Guard] = []  # of this process: one, since a process measures one tree


def guard() -> Guard | None:
    """The guard of the tree that this process measures; None if it measures none."""
    return _guards[-1] if _guards else None


@contextmanager
def unwatched() -> Iterator[None]:
    """What this process opens inside the block is opened by the engine, and not by the measured code."""
    known = guard()
    if known is None or not known.watches:
        yield
        return
    known.watches = False
    try:
        yield
    finally:
        known.watches = True


def file(path: str) -> Path:
    """A file of the measured tree, by its path in the repository: for a table of rungs that compiles sources which lie
    in no Python package. Raises: Absent if the measured commit has no such file; RuntimeError if none is measured."""
    known = guard()
    if known is None:
        raise RuntimeError(f"this process measures no tree that could have {path}")
    found = known.places.folder / path
    if not found.is_file():
        raise Absent(f"this commit has no file {path}")
    known.note(found)
    return found


def enter(found: Places, repository: Path, exempt: Iterable[Path]) -> Guard:
    """Make this process one that measures a tree. `repository`, `exempt`: as for Guard."""
    known = guard()
    if known is not None:
        if known.places == found:
            return known
        known.leave()
    made = Guard(found, repository, exempt)
    made.install()
    _guards[:] = [made]
    return made
