"""Write what a git repository needs for its kernels to be measured.

Of a package of the repository, that is a description of the kernels that are found in its sources: functions of Triton,
kernels of CUDA C++. It is to be filled in. Without any package, kernels or benchmarks, it is an example that runs at
once. A file that exists is named and left as it is. Exit code: 0; 1 if a file was left as it is.
"""

import ast
import importlib.util
import json
import keyword
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from kernelwatch.commands import discovery, skeleton
from kernelwatch.commands.discovery import Kernel
from kernelwatch.plan.functions import TABLE
from kernelwatch.plan.project import CONFIGURATION, PLUGIN, is_plain, read_configuration
from kernelwatch.plan.tree import places
from kernelwatch.report.arguments import Parser
from kernelwatch.system.errors import UserError
from kernelwatch.system.git import git, resolve

TEMPLATE = Path(__file__).with_name("template")
EXAMPLE = "row_sum"  # the op of the template
FEW = 3  # kernels in one line
SUITES = "benchmarks"  # the folder of the suites in the template
PACKAGE = "PACKAGE"  # stands in the template for the package's name
ON_GPU = "# with a GPU"  # ends the template's lines that are for a machine with a GPU
IGNORED = ("/.asv/", "/.asv.quick.conf.json", "/results/**/.*.json*", "/results.lock", "__pycache__/")
# Lines of both sides are kept where two machines wrote a file: git needs no more to merge results.
MERGED = ("/results/benchmarks.json merge=union", "/results/**/*.confirmed.jsonl merge=union")
COMMIT_PAGES = {"github": "commit", "gitlab": "-/commit"}  # by the first or second part of a host's name


def main(prog: str, arguments: list[str] | None = None) -> int:
    parser = Parser(prog, __doc__)
    parser.add_argument(
        "target", nargs="?", default="", metavar="PACKAGE", help="measure this package: its import name, or its path"
    )
    parser.add_argument("--package", default="", metavar="PACKAGE", help="the same")
    parsed = parser.parse_args(arguments)
    if parsed.target and parsed.package:
        parser.error(f"name one package: {parsed.target}, or --package {parsed.package}")
    root = _repository(Path.cwd())
    remote = _remote(root)
    name = remote.rstrip("/").rpartition("/")[2] or root.name
    wanted = parsed.target or parsed.package
    target = _named(root, wanted) if wanted else _chosen(root, name)
    texts = dict(from_template(target.package, _has_gpu()) if target.is_example else _described(root, target))
    if not target.is_new:
        texts = {file: text for file, text in texts.items() if file.startswith(f"{SUITES}/")}
    suites = _suites(root)
    texts = {re.sub(f"^{SUITES}/", f"{suites}/", file): text for file, text in texts.items()}
    texts[CONFIGURATION] = _configuration(root, name, remote)
    kept = [file for file in sorted(texts) if not _write(root / file, texts[file])]
    lines = {".gitattributes": MERGED, ".gitignore": IGNORED}
    written = [name for name, needed in lines.items() if _append(root / name, needed)]
    written += [file for file in sorted(texts) if file not in kept]
    if written:
        print(f"wrote {', '.join(written)}")
    for file in kept:
        print(f"left as it is, since it exists: {file}{_lacks(root / file)}")
    if not (target.is_new and target.is_example):
        print(_what_is_missing(target, suites))
    shown = [os.path.relpath(root / file) for file in (CONFIGURATION, *lines, suites)]
    shown.append(os.path.relpath(target.place))
    print(f"next:\n  git add {shlex.join(shown)} && git commit -m 'Measure the kernels'\n  kernelwatch bench")
    return 1 if kept else 0


def _repository(here: Path) -> Path:
    """The folder of the repository around a folder. Raises: UserError if nothing can be measured there."""
    try:
        inside = git(here, "rev-parse", "--is-inside-work-tree") == "true"
    except UserError as error:
        if "not a git repository" not in str(error):
            raise
        raise UserError(f"{here} is in no git repository; make one first: git init") from None
    if not inside:
        raise UserError(f"{here} is in a bare repository, which has no files; run this in a clone of it")
    root = Path(git(here, "rev-parse", "--show-toplevel"))
    try:
        resolve(root, "HEAD")
    except UserError:
        raise UserError(
            f"the repository in {root} has no commit yet; make one first: git commit --allow-empty -m Begin"
        ) from None
    # The nearest project of asv's, as all other commands take it: a repository may have several.
    return next((folder for folder in (here, *here.parents) if _is_project(folder, root)), root)


def _is_project(folder: Path, root: Path) -> bool:
    return folder.is_relative_to(root) and (folder / CONFIGURATION).is_file()


def _suites(root: Path) -> str:
    """The folder of the suites, relative to the project's: as asv's configuration names it, if there is one."""
    known = read_configuration(root) if (root / CONFIGURATION).is_file() else {}
    return Path(str(known.get("benchmark_dir", SUITES))).as_posix()


def _remote(root: Path) -> str:
    """The address of the remote, without a user, a password and ".git": "https://host/owner/name"; "" without one."""
    remotes = git(root, "remote").splitlines()
    if not remotes:
        return ""
    url = git(root, "remote", "get-url", "origin" if "origin" in remotes else remotes[0])
    short = re.fullmatch(r"(?:[^@/]+@)?([^:/]+):(?!//)(.+)", url)  # as in scp: git@host:owner/name
    parts = urlsplit(f"ssh://{short[1]}/{short[2]}" if short else url)
    with suppress(ValueError):  # a port that is no number
        port = f":{parts.port}" if parts.port and parts.scheme in ("http", "https") else ""
        return f"https://{parts.hostname or ''}{port}/{parts.path.strip('/').removesuffix('.git')}"
    return ""


def _configuration(root: Path, name: str, remote: str) -> str:
    """asv's configuration."""
    values: dict[str, object] = {"version": 1, "project": name, "repo": "."}
    host = (urlsplit(remote).hostname or "").split(".")
    for site, page in COMMIT_PAGES.items():
        if site in host[:2]:
            values |= {"project_url": remote, "show_commit_url": f"{remote}/{page}/"}
    try:
        branch = git(root, "symbolic-ref", "--quiet", "--short", "HEAD")
    except UserError:  # no branch is checked out
        branch = "HEAD"
    values |= {
        "branches": [branch],
        "environment_type": "checkout",
        "plugins": [PLUGIN],
        "benchmark_dir": "benchmarks",
        "results_dir": "results",
        "env_dir": ".asv/env",
        "html_dir": ".asv/html",
    }
    return json.dumps(values, indent=4, ensure_ascii=False) + "\n"


# --- the measured package ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """The measured package. `place`: its folder or file; `source`: the folder that it is imported from, relative to the
    repository, "" if it is found; `kernels`: what was found in its sources, and of CUDA C++ beside it; `is_new`: it is
    to be made; `ops`: those of its table, with their rungs; None without a table."""

    package: str
    place: Path
    source: str = ""
    kernels: tuple[Kernel, ...] = ()
    is_new: bool = False
    ops: Mapping[str, Sequence[str]] | None = None

    @property
    def is_example(self) -> bool:
        """Whether the description is that of the example."""
        return EXAMPLE in self.ops if self.ops is not None else self.is_new and not self.kernels


def _named(root: Path, wanted: str) -> Target:
    """A package by its import name or path. Raises: UserError."""
    path = Path(os.path.realpath(wanted))
    if all(part.isidentifier() for part in wanted.split(".")):
        top = wanted.partition(".")[0]
        try:
            known = places(root, top)
        except UserError as error:
            raise UserError(f"{str(error).partition(';')[0]}; name one of them by its path") from None
        place, module = known.package(top), known.source(wanted)
        if place and module:
            return _existing(root, top, place, module.parent if module.name == "__init__.py" else module)
    if path.exists() and path.is_relative_to(root):
        return _at(root, path)
    packages = [each.name for each in _packages(root)]
    there = f"there are {', '.join(packages)}" if packages else "there is none"
    raise UserError(f"no package {wanted} in {root}; {there}, and a path names one elsewhere")


def _at(root: Path, path: Path) -> Target:
    """The package that has a file or folder, or that lies in a folder. Raises: UserError if there is no such."""
    if top := _top(root, path):
        return _existing(root, _import_name(root, top), top, path)
    found = discovery.kernels(root, path)
    below = [file.parent for file in sorted(path.glob("*/__init__.py"))]
    below += [top for kernel in found if (top := _top(root, root / kernel.file)) and top.suffix == ".py"]
    below = list(dict.fromkeys(below))
    if len(below) > 1:
        names = [os.path.relpath(each) for each in below]
        raise UserError(f"{path} has several packages; name the one to measure: {', '.join(names)}")
    if below:
        return _existing(root, _import_name(root, below[0]), below[0], below[0])
    if found:
        return _beside(root, root.name, tuple(found))
    raise UserError(f"{path} is no package, since it has no __init__.py, and has no kernels of Triton or CUDA C++")


def _chosen(root: Path, name: str) -> Target:
    """The package to measure if none is named: the one that offers a table, the one with kernels of Triton, the one
    beside kernels of CUDA C++, else a new one. `name`: the repository's. Raises: UserError if there are several."""
    offering = [each for each in _packages(root) if TABLE in _bound(each / "__init__.py")]
    if offering:
        return _only(root, offering, f"offer {TABLE}")
    found = discovery.kernels(root)
    triton = dict.fromkeys(_top(root, root / kernel.file) for kernel in found if not kernel.is_cuda)
    if tops := [top for top in triton if top]:
        return _only(root, tops, "have kernels of Triton")
    if not found:
        _check_for_an_example(root)
    return _beside(root, name, tuple(kernel for kernel in found if kernel.is_cuda))


def _check_for_an_example(root: Path) -> None:
    """Raises: UserError if a repository without kernels has something else to measure. The description of an example
    would be in the way of that, since no file is overwritten."""
    packages = [os.path.relpath(each) for each in _packages(root) if each.name not in discovery.ASIDE]
    has_suites = (root / CONFIGURATION).is_file() and is_plain(root)
    if packages or has_suites:
        suites = "; asv's benchmarks need no description: kernelwatch versus HEAD~1 HEAD" if has_suites else ""
        raise UserError(
            "found no kernels of Triton or CUDA C++; name the package to measure, such as: kernelwatch init "
            f"{(packages or [PACKAGE])[0]}{suites}"
        )


def _beside(root: Path, name: str, kernels: tuple[Kernel, ...]) -> Target:
    """The package beside kernels that are in none, or without kernels or packages a new one. Raises: UserError."""
    packages = [each for each in _packages(root) if each.name not in discovery.ASIDE]
    if kernels and packages:
        only = _only(root, packages, "lie beside the kernels of CUDA C++")
        return only if only.ops is not None else replace(only, kernels=kernels)
    package = new_name(root, name)
    return Target(package, root / package, kernels=kernels, is_new=True)


def _only(root: Path, tops: Sequence[Path], what: str) -> Target:
    """The only one of some packages. Raises: UserError if there are several."""
    names = [_import_name(root, top) for top in tops]
    if len(names) > 1:
        first = os.path.relpath(tops[0])
        raise UserError(f"{', '.join(names)} {what}; name the one to measure: kernelwatch init {first}")
    return _existing(root, names[0], tops[0], tops[0])


def _existing(root: Path, package: str, place: Path, below: Path) -> Target:
    """A package of the repository. `below`: the part of it whose kernels are to be found; if that is all of it, so are
    the kernels of CUDA C++ beside it."""
    try:
        is_found = places(root, package).package(package) == place
    except UserError:  # several folders have it
        is_found = False
    source = "" if is_found else place.parent.relative_to(root).as_posix()
    names = _bound(place / "__init__.py" if place.is_dir() else place)
    if TABLE in names or "load" in names:
        return Target(package, place, source, ops=_ops(names.get(TABLE)))
    found = discovery.kernels(root, below)
    if below in (place, place / "__init__.py"):
        found += [kernel for kernel in discovery.kernels(root) if kernel.is_cuda and kernel not in found]
    modules = {kernel.file for kernel in found if not kernel.is_cuda}
    inside = {file for file in modules if (root / file).is_relative_to(place)}
    return Target(package, place, source, tuple(kernel for kernel in found if kernel.file in inside or kernel.is_cuda))


def _packages(root: Path) -> list[Path]:
    """The packages of the repository, where packages usually lie or are said to."""
    known = places(root, "")
    found = [file.parent for place in known.roots for file in sorted(place.glob("*/__init__.py"))]
    found += [folder for _, folder in known.renamed if (folder / "__init__.py").is_file()]
    return [each for each in dict.fromkeys(found) if each not in (root / SUITES, root / _suites(root))]


def _top(root: Path, path: Path) -> Path | None:
    """The top package that has a file or folder (a folder between them may have no __init__.py), or the file itself if
    it is a module of its own; None without any."""
    folders = [folder for folder in (path, *path.parents) if folder.is_relative_to(root) and folder != root]
    packages = [folder for folder in folders if (folder / "__init__.py").is_file()]
    if packages:
        return packages[-1]
    return path if path.suffix == ".py" and path.stem.isidentifier() else None


def _import_name(root: Path, top: Path) -> str:
    """The name by which a package is imported, which may not be that of its folder."""
    renamed = {folder: name for name, folder in places(root, "").renamed}
    return renamed.get(top, top.stem if top.suffix == ".py" else top.name)


def new_name(root: Path, name: str) -> str:
    """The name of a package to make. Raises: UserError if those that would do are taken."""
    own = re.sub(r"\W+", "_", name).strip("_").lower() or "own"
    for candidate in (own, f"{own}_kernels", f"kernels_{own}"):
        if not (root / candidate).exists() and _is_free(candidate):
            return candidate
    raise UserError(f"{own} and {own}_kernels exist and offer no {TABLE}; name the package to measure: --package {own}")


def _is_free(name: str) -> bool:
    """Whether a name can be that of a new package: no other module is hidden by it."""
    reserved = name == "benchmarks" or keyword.iskeyword(name)
    return name.isidentifier() and not reserved and importlib.util.find_spec(name) is None


def _bound(module: Path) -> dict[str, ast.expr | None]:
    """The names that a module defines at its top level, and the expressions that they are assigned."""
    names: dict[str, ast.expr | None] = {}
    with suppress(OSError, SyntaxError, ValueError):
        for node in ast.parse(module.read_bytes()).body:
            match node:
                case ast.Assign(targets=targets, value=value):
                    names |= {target.id: value for target in targets if isinstance(target, ast.Name)}
                case ast.AnnAssign(target=ast.Name(id=name), value=value):
                    names[name] = value
                case ast.ImportFrom(names=aliases):
                    names |= {alias.asname or alias.name: None for alias in aliases}
                case ast.FunctionDef(name=name):
                    names[name] = None
    return names


def _ops(table: ast.expr | None) -> dict[str, list[str]]:
    """The ops of a table and their rungs, as far as it is written out."""
    rows = zip(table.keys, table.values, strict=True) if isinstance(table, ast.Dict) else ()
    ops = {str(key.value): value for key, value in rows if isinstance(key, ast.Constant)}
    return {
        op: [str(key.value) for key in value.keys if isinstance(key, ast.Constant)]
        if isinstance(value, ast.Dict)
        else []
        for op, value in ops.items()
    }


def _what_is_missing(target: Target, folder: str) -> str:
    """What is to be filled in before a package of the user's own is measured. `folder`: of the suites."""
    description, suites = f"{folder}/project.py", f"{folder}/{skeleton.SUITES}.py"
    if target.is_example:
        return f"{target.package} is measured"
    if target.ops is not None:
        ops = f" ({', '.join(target.ops)})" if target.ops else ""
        fill = f"describe the ops{ops} of its {TABLE} in {description}, and their suites in {suites}"
        return f"nothing of {target.package} is measured yet: {fill}"
    named = [f"{kernel.name} in {kernel.file.as_posix()}" for kernel in target.kernels]
    count = f"{len(named)} kernel{'' if len(named) == 1 else 's'}: {', '.join(named[:FEW])}"
    more = f" and {len(named) - FEW} more" if len(named) > FEW else ""
    table = f"{folder}/{skeleton.RUNGS}.py"
    return (
        f"found {count}{more}\n"
        * bool(named)
        + f"nothing of {target.package} is measured yet: take what is to be measured out of its comments in {table} "
        f"(how it is called), {description} (what it computes) and {suites}, and fill in each ..."
    )


def _has_gpu() -> bool:
    """Whether CuPy is installed and finds a GPU."""
    try:
        import cupy

        return bool(cupy.cuda.runtime.getDeviceCount() > 0)
    except Exception:  # no CuPy, no driver, no GPU: each has an error of its own
        return False


# --- the files -----------------------------------------------------------------------------------------------------


def from_template(package: str, has_gpu: bool) -> Iterator[tuple[str, str]]:
    """The files of the example and their texts."""
    for path in sorted(TEMPLATE.rglob("*.py")):
        file = path.relative_to(TEMPLATE)
        if file.stem == "on_gpu" and not has_gpu:
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        kept = [line.removesuffix(ON_GPU).rstrip() for line in lines if has_gpu or not line.endswith(ON_GPU)]
        yield file.as_posix().replace(PACKAGE, package), "\n".join(kept).rstrip().replace(PACKAGE, package) + "\n"


def _described(root: Path, target: Target) -> Iterator[tuple[str, str]]:
    """The files of a description that is to be filled in, and their texts."""
    has_table = target.ops is not None
    if target.ops:
        device = "gpu" if discovery.kernels(root) else "cpu"
        found = [
            skeleton.Entry(op, rung, device=device) for op, rungs in target.ops.items() for rung in rungs or ("first",)
        ]
    else:
        found = skeleton.entries(target.kernels, partial(_module, root, target)) or [skeleton.unknown(target.package)]
    description = skeleton.description(target.package, target.source, found, has_table=has_table)
    yield "benchmarks/__init__.py", (TEMPLATE / "benchmarks" / "__init__.py").read_text(encoding="utf-8")
    yield "benchmarks/project.py", description
    yield f"benchmarks/{skeleton.SUITES}.py", skeleton.suites(found)
    if not has_table:
        yield f"benchmarks/{skeleton.RUNGS}.py", skeleton.table(target.package, found)
    if target.is_new:
        yield f"{target.package}/__init__.py", '"""The kernels of this repository lie beside this package."""\n'


def _module(root: Path, target: Target, file: Path) -> str:
    """The dotted name of a file of a package."""
    inside = (root / file).relative_to(target.place).with_suffix("").parts if target.place.is_dir() else ()
    return ".".join((target.package, *(part for part in inside if part != "__init__")))


def _write(path: Path, text: str) -> bool:
    """Write a new file; whether it is new. Raises: UserError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        if os.path.lexists(path):
            return False
        raise _refused(path, error) from None
    return True


def _append(path: Path, lines: Sequence[str]) -> bool:
    """Append the lines that a file of git's lacks; whether it lacked any. Raises: UserError if it cannot be written."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        missing = [line for line in lines if line not in map(str.strip, text.splitlines())]
        if missing:
            with path.open("a", encoding="utf-8") as file:
                file.write("\n" * (text != "" and not text.endswith("\n")) + "\n".join(missing) + "\n")
        return bool(missing)
    except OSError as error:
        raise _refused(path, error) from None


def _refused(path: Path, error: OSError) -> UserError:
    return UserError(f"{path} cannot be written: {error.strerror}; run this in a clone that you may write to")


def _lacks(path: Path) -> str:
    """What an existing configuration of asv needs for the commands to work; "" for another file."""
    if path.name != CONFIGURATION or PLUGIN in path.read_text(encoding="utf-8", errors="replace"):
        return ""
    return f' (it needs "plugins": ["{PLUGIN}"] and "environment_type": "checkout")'
