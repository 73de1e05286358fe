"""The description of a project (the measured package and its problems), and how the engine finds it.

A project defines it as `PROJECT` in `project.py` of asv's benchmark folder. The engine takes the description from the
checkout, and the package that it names from the measured commit.
"""

import importlib
import importlib.util
import json
import pkgutil
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import chdir, suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from kernelwatch.plan import tree
from kernelwatch.plan.devices import DEVICES, Device
from kernelwatch.plan.functions import adapt, parts_of_table
from kernelwatch.plan.package import Absent, Package, Parts
from kernelwatch.plan.problem import Computation, Problem
from kernelwatch.plan.renamed import NONE, Renamed
from kernelwatch.plan.sources import named
from kernelwatch.system.errors import UserError
from kernelwatch.system.git import git

CONFIGURATION = "asv.conf.json"
PLUGIN = ".kernelwatch.asv"  # asv ignores a name without the dot
ENGINE = Path(__file__).resolve().parents[1]
MADE = {"results_dir": "results", "env_dir": "env", "html_dir": "html"}  # by asv: its defaults


@dataclass(frozen=True, eq=False)
class Project:
    """A project that the engine measures.

    `package`: the import name of the measured package, "" if there is none: a `table` then reaches the sources by
    `kernelwatch.plan.tree.file`. Where it lies in a commit is found (see `tree.places`), unless
    `source` names the folder that it is imported from, relative to the repository.
    `here`: the description's own file.
    `table`: a module beside it that holds the table KERNELS, if the package has none: "rungs" for `rungs.py`. It is the
    checkout's, whatever commit is measured, and imports the commit's package.
    `adapt`: makes a Package from the imported module; by default one that has `load` or a table KERNELS.
    `parts(places)`: "op/rung" -> what that rung of a tree is made from, if no table KERNELS says it.
    `build`: commands that build a tree, such as "python -m pip wheel . --no-deps -w {wheels}" or "make". They run in
    the tree's folder, once for each tree and environment, without a shell. {tree} stands for that folder, {python} for
    this interpreter, {wheels} for a folder whose wheels are then imported; "asv" for the build_command of asv's
    configuration.
    `wheels`: the path of wheels that were built elsewhere, relative to asv's configuration, with {commit} and "*".
    `decides`: files of the repository, such as a table of the fastest kernels -> what they decide, if no cell measures
    it. A change of one is never called "no change".
    `conditions`: distributions, besides the engine's own, on whose versions a figure may depend.
    `gate`: arguments of pytest for the tests that must pass before anything is timed.
    `truth_cells`: keys of the cells that the command truth compares with a profiler.
    `unsanitized`: (tool of compute-sanitizer, "op/rung") -> why the tool cannot judge that rung, which is left out.
    `environment`: environment variables of the worker processes.
    """

    package: str
    here: Path
    problems: tuple[Problem, ...]
    source: str = ""
    table: str = ""
    build: str | tuple[str, ...] = ()
    wheels: str = ""
    adapt: Callable[[ModuleType], Package] = adapt
    parts: Callable[[tree.Places], Mapping[str, Parts]] | None = None
    decides: Mapping[str, str] = field(default_factory=dict)
    conditions: tuple[str, ...] = ()
    gate: tuple[str, ...] = ()
    truth_cells: tuple[str, ...] = ()
    unsanitized: Mapping[tuple[str, str], str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("decides", "unsanitized", "environment"):
            if not isinstance(value := getattr(self, name), Mapping):
                raise TypeError(f"{name} of the Project must be a dictionary; it is {value!r}")
        for name in ("problems", "conditions", "gate", "truth_cells"):
            if not isinstance(value := getattr(self, name), tuple | list):
                raise TypeError(f"{name} of the Project must be a tuple; it is {value!r}")
        for name in ("package", "source", "table", "wheels"):
            if not isinstance(value := getattr(self, name), str):
                raise TypeError(f"{name} of the Project must be a text; it is {value!r}")

    @cached_property
    def ops(self) -> dict[str, Problem]:
        """The problems by name."""
        return {problem.name: problem for problem in self.problems}

    @cached_property
    def root(self) -> Path:
        """The repository's folder, which holds asv's configuration. Raises: UserError."""
        return find_root(self.here.parent)

    @cached_property
    def configuration(self) -> dict[str, Any]:
        """asv's configuration. Raises: UserError."""
        return read_configuration(self.root)

    @property
    def results(self) -> Path:
        """The folder of recorded results. Raises: UserError."""
        return self.root / str(self.configuration.get("results_dir", "results"))

    @property
    def devices(self) -> dict[str, Device]:
        """The devices by name, the further ones of its problems last."""
        return DEVICES | {device.name: device for problem in self.problems for device in problem.devices}

    @property
    def timed(self) -> list[Device]:
        """The devices on which cells are timed."""
        return [device for device in self.devices.values() if device.processes]

    def op(self, name: str) -> Problem:
        """A problem by name. Raises: UserError if there is none."""
        if name not in self.ops:
            raise UserError(f"no op {name}; there are {', '.join(self.ops)}")
        return self.ops[name]

    def computes(self, op: str, name: str) -> Computation:
        """What a rung or reference line of an op computes. Raises: KeyError."""
        return self.ops[op].computes(name)

    @cached_property
    def repository(self) -> Path:
        """The folder of the git repository; the project's folder may lie below it."""
        return next((folder for folder in self.here.parents if (folder / ".git").exists()), self.here.parent)

    def places(self, folder: str) -> tree.Places:
        """Where the modules of a tree lie. Raises: UserError if several folders of the tree have the package."""
        top = Path(folder)
        found = tree.places(top, self.package, self.source)
        here = self.here.parent
        own = here.relative_to(self.repository) if here.is_relative_to(self.repository) else Path(here.name)
        apart = (*([top / own] if own.parts else []), *(top / name for name in self._of_asv))
        return replace(found, apart=apart, description=here if self.table else None)

    @property
    def module(self) -> str:
        """The name of the module that is imported to be measured: the package, or the description's table."""
        return f"{self.here.parent.name}.{self.table}" if self.table else self.package

    def is_in(self, places: tree.Places) -> bool:
        """Whether a tree has what is measured."""
        return not self.package or places.package(self.package) is not None

    def pathspecs(self) -> list[str]:
        """git's pathspecs of the files on which a kernel may depend; see `tree.Places.files`."""
        apart = [*self._of_asv, self.here.parent.relative_to(self.repository).as_posix()]
        return [
            ":/",
            *(f":(exclude,top){folder}" for folder in apart if folder != "."),
            *(f":(exclude,top,glob)**/*{suffix}" for suffix in sorted(tree.PROSE)),
            ":(exclude,top,glob)**/.*",
            ":(exclude,top,glob)**/.*/**",
        ]

    def launch_paths(self) -> list[str]:
        """git's pathspecs of the files on which a launch may depend: those of the package alone, if `parts` tells all
        that a rung is made from."""
        folder = self.places(str(self.repository)).package(self.package) if self.parts and self.package else None
        if folder is None:
            return self.pathspecs()
        return [f":(top){folder.relative_to(self.repository).as_posix()}"]

    def named_files(self) -> list[str]:
        """The files of the newest commit that `launch_paths` leaves out and a source names in a text, so that a kernel
        may read them: prose, what is hidden, what lies beside the description. Relative to the repository."""
        if self.parts:
            return []
        places = self.places(str(self.repository))
        counted = set(places.files())
        tracked = git(self.repository, "ls-files", "-z").split("\0")
        aside = {self.repository / name for name in tracked if name} - counted
        found = named(places, [*counted, *self.here.parent.glob("*.py")], aside)
        return sorted(path.relative_to(self.repository).as_posix() for path in found)

    def check(self) -> None:
        """Raises: UserError if the checkout has no package to measure: the description names none that exists."""
        if not (self.package or self.table):
            raise UserError(f"{self.here} names no `package` to measure, and no `table` of rungs")
        if not self.is_in(self.places(str(self.repository))):
            raise UserError(
                f"the checkout has no package {self.package} in {self.repository}: `package` of the Project in "
                f"{self.here} must name one that can be imported, and `source` the folder of it if it is not found"
            )

    def parts_in(self, places: tree.Places) -> dict[str, Parts]:
        """What each rung of a tree is made from, by its name of today, "op/rung"; {} if that is not known."""
        if not self.is_in(places):
            return {}
        if self.parts:
            return self.renamed.by_now(self.parts(places))
        return self.renamed.by_now(parts_of_table(places, self.module)) if self.adapt is adapt else {}

    @cached_property
    def renamed(self) -> Renamed:
        """The rungs that had other names in earlier commits."""
        earlier = {
            f"{problem.name}/{rung.name}": tuple(f"{problem.name}/{old}" for old in rung.earlier)
            for problem in self.problems
            for rung in problem.rungs
        }
        return Renamed({rung: names for rung, names in earlier.items() if names})

    @cached_property
    def _of_asv(self) -> tuple[str, ...]:
        """The folders that asv makes, and its configuration, relative to the repository's folder."""
        try:
            root, configuration = self.root, self.configuration
        except UserError:
            return ()
        below = root.relative_to(self.repository) if root.is_relative_to(self.repository) else Path()
        folders = [str(configuration.get(name, default)) for name, default in MADE.items()]
        return tuple(str(below / name) for name in (*folders, CONFIGURATION))

    def rungs(self) -> list[str]:
        """All rungs, as "op/rung"."""
        return [f"{problem.name}/{rung.name}" for problem in self.problems for rung in problem.rungs]


def check_described(project: Project, of: Collection[object]) -> None:
    """Raises: UserError if a project describes nothing. `of`: its cells or rungs, of which there should be some."""
    if not of:
        raise UserError(
            f"nothing is measured yet: {project.here} describes no cell; fill in a Problem with rungs and shapes in "
            f"`problems` of its Project, and its suite in {project.here.parent}"
        )


def find_root(start: Path) -> Path:
    """The nearest folder, from `start` upward, that holds asv's configuration. Raises: UserError if there is none."""
    for folder in (start, *start.parents):
        if (folder / CONFIGURATION).is_file():
            return folder
    raise UserError(f"no {CONFIGURATION} in {start} or above it; run this in a project that asv benchmarks")


def read_configuration(root: Path) -> dict[str, Any]:
    """Read asv's configuration, which may hold comments. Raises: UserError."""
    path = root / CONFIGURATION
    try:
        found = _json(path)
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {str(error).replace('<string>:', 'line ')}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} must hold one JSON object, {{...}}; got {found!r:.80}")
    return found


def _json(path: Path) -> Any:
    """The value in a file of JSON with comments, as asv reads it. Raises: ValueError."""
    text = path.read_text(encoding="utf-8")
    with suppress(ValueError):  # without comments, as mostly: importing asv takes longer than most commands
        return json.loads(text)
    from asv import util

    return util.load_json(str(path), js_comments=True)


@dataclass(frozen=True)
class Repository:
    """A repository that asv benchmarks, whether or not it has a description. Its attributes are those of a Project."""

    root: Path
    renamed: ClassVar[Renamed] = NONE

    @cached_property
    def configuration(self) -> dict[str, Any]:
        return read_configuration(self.root)

    @property
    def results(self) -> Path:
        return self.root / str(self.configuration.get("results_dir", "results"))


@cache
def is_described(folder: Path) -> bool:
    """Whether the folder of benchmarks has a description. A benchmark module may be called project.py as well."""
    path = folder / "project.py"
    return path.is_file() and "PROJECT" in path.read_text(encoding="utf-8", errors="replace")


def is_plain(root: Path) -> bool:
    """Whether a repository's folder has asv's suites, and no description of kernels. Raises: UserError."""
    folder = root / str(read_configuration(root).get("benchmark_dir", "benchmarks"))
    return (folder / "__init__.py").is_file() and not is_described(folder)


def load(root: Path) -> Project:
    """The description of the project in a repository's folder. Raises: UserError."""
    folder = root / str(read_configuration(root).get("benchmark_dir", "benchmarks"))
    return load_from(folder)


def load_from(folder: Path) -> Project:
    """The description in a benchmark folder, imported as asv does: as a module of the package of that name.

    Raises: UserError.
    """
    description = folder / "project.py"
    if not description.is_file():
        others = "; versus, link, bench, merge and accept need none" if (folder / "__init__.py").is_file() else ""
        raise UserError(
            f"{folder} has no project.py: it describes what is measured (PROJECT, a kernelwatch Project){others}"
        )
    try:
        with chdir(Path.cwd()):  # a description may change the folder, in which git and asv are asked
            suites(folder)
            module = importlib.import_module(f"{folder.name}.project")
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # SystemExit: its code would be taken for a verdict
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise UserError(
            f"{description} cannot be imported: {type(error).__name__}: {error} ({last.filename}:{last.lineno})"
        ) from error
    project = getattr(module, "PROJECT", None)
    if not isinstance(project, Project):
        raise UserError(f"{description} must define PROJECT, a kernelwatch.plan.project.Project; got {project!r}")
    return project


def suites(folder: Path) -> ModuleType:
    """Import the benchmark folder as a package. Its siblings do not become importable, so the checkout's package is
    never measured in place of the commit's. Raises: UserError."""
    known = sys.modules.get(folder.name)
    if known is not None and str(folder) in map(str, getattr(known, "__path__", ())):
        return known
    if not (folder / "__init__.py").is_file():
        raise UserError(f"{folder} has no __init__.py: asv's suites are a package")
    for name in [name for name in sys.modules if name.partition(".")[0] == folder.name]:
        del sys.modules[name]  # of another project, whose folder has the same name
    spec = importlib.util.spec_from_file_location(
        folder.name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[folder.name] = module
    spec.loader.exec_module(module)
    return module


def suite_modules(folder: Path) -> Iterator[ModuleType]:
    """The modules of the benchmark folder. Benchmarks of asv's own kind that cannot be imported here are left out: they
    may need what only a measured commit has. Raises: UserError if a suite of the engine cannot be imported."""
    package = suites(folder)
    for listed in pkgutil.iter_modules(package.__path__):
        try:
            module = importlib.import_module(f"{package.__name__}.{listed.name}")
        except (Exception, SystemExit) as error:
            path = folder / f"{listed.name}.py"
            if path.is_file() and "kernelwatch" not in path.read_text(encoding="utf-8", errors="replace"):
                continue
            raise UserError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
        yield module


def lacking(project: Project, error: Exception) -> str:
    """What a commit lacks, if the project's own table of rungs tried to import it from there; "" for another error.

    The table is the checkout's, and may name what older or newer commits have; a module of the tree that cannot import
    another one is broken.
    """
    guard = tree.guard()
    if not (project.table and guard and isinstance(error, ImportError) and error.name):
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame.filename for frame in frames if "importlib" not in frame.filename]
    if not own or not Path(own[-1]).is_relative_to(project.here.parent):
        return ""
    if error.name.partition(".")[0] != project.package and guard.places.source(error.name) is None:
        return ""  # a module of another distribution
    return f"this commit has no such: {error}"


def import_package(project: Project, folder: str) -> Package:
    """Import the measured package from a tree, adapted to the engine; from now on, this process measures that tree.

    Raises: Absent if the tree has no such package; UserError if it has several; anything that the import raises.
    """
    places = project.places(folder)
    if not project.is_in(places):
        raise Absent(f"this commit has no package {project.package} to measure")
    tree.enter(places, project.repository, (project.here.parent, ENGINE))
    return project.renamed.package(project.adapt(importlib.import_module(project.module)))
