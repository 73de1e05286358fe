"""Write what a git repository needs for its kernels to be measured, with an example that runs at once.

A file that exists is named and left as it is. Exit code: 0; 1 if a file was left as it is.
"""

import ast
import importlib.util
import json
import keyword
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from kernelwatch.commands.arguments import Parser
from kernelwatch.plan.functions import TABLE
from kernelwatch.plan.project import CONFIGURATION
from kernelwatch.system.errors import UserError
from kernelwatch.system.git import git, resolve

TEMPLATE = Path(__file__).with_name("template")
PACKAGE = "PACKAGE"  # stands in the template for the package's name
ON_GPU = "# with a GPU"  # ends the template's lines that are for a machine with a GPU
IGNORED = ("/.asv/", "/.asv.quick.conf.json", "/results/**/.*.json*", "/results.lock", "__pycache__/")
# Lines of both sides are kept where two machines wrote a file: git needs no more to merge results.
MERGED = ("/results/benchmarks.json merge=union", "/results/**/*.confirmed.jsonl merge=union")
COMMIT_PAGES = {"github": "commit", "gitlab": "-/commit"}  # by the first or second part of a host's name


def main(prog: str, arguments: list[str] | None = None) -> int:
    parser = Parser(prog, __doc__)
    parser.add_argument("--package", default="", metavar="NAME", help="measure this package of the repository")
    parsed = parser.parse_args(arguments)
    root = _repository(Path.cwd())
    remote = _remote(root)
    name = remote.rstrip("/").rpartition("/")[2] or root.name
    package, is_new = _package(root, parsed.package, name)
    texts = dict(_from_template(package, is_new, _has_gpu()))
    texts[CONFIGURATION] = _configuration(root, name, remote)
    kept = [file for file in sorted(texts) if not _write(root / file, texts[file])]
    lines = {".gitattributes": MERGED, ".gitignore": IGNORED}
    written = [name for name, needed in lines.items() if _append(root / name, needed)]
    written += [file for file in sorted(texts) if file not in kept]
    if written:
        print(f"wrote {', '.join(written)}")
    for file in kept:
        print(f"left as it is, since it exists: {file}{_lacks(root / file)}")
    if not is_new:
        print(_what_is_missing(root / package))
    shown = [os.path.relpath(root / file) for file in (CONFIGURATION, *lines, "benchmarks", package)]
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
    return root


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
        "plugins": [".kernelwatch.asv"],
        "benchmark_dir": "benchmarks",
        "results_dir": "results",
        "env_dir": ".asv/env",
        "html_dir": ".asv/html",
    }
    return json.dumps(values, indent=4, ensure_ascii=False) + "\n"


# --- the measured package ------------------------------------------------------------------------------------------


def _package(root: Path, wanted: str, name: str) -> tuple[str, bool]:
    """The measured package, and whether it is to be made. Raises: UserError if that is not clear."""
    if wanted:
        if not (wanted.isidentifier() and (root / wanted / "__init__.py").is_file()):
            raise UserError(f"no package {wanted} in {root}; --package names one, which has an __init__.py")
        return wanted, False
    offering = [path.parent.name for path in sorted(root.glob("*/__init__.py")) if _offers(path)]
    if len(offering) > 1:
        raise UserError(f"{', '.join(offering)} offer {TABLE}; name the one to measure: --package {offering[0]}")
    if offering:
        return offering[0], False
    own = re.sub(r"\W+", "_", name).strip("_").lower() or "own"
    for candidate in (own, f"{own}_kernels", f"kernels_{own}"):
        if not (root / candidate).exists() and _is_free(candidate):
            return candidate, True
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


def _offers(module: Path) -> bool:
    return TABLE in _bound(module)


def _what_is_missing(package: Path) -> str:
    """What a package of the user's own needs for the example in benchmarks/project.py to run, or to be replaced."""
    names, described = _bound(package / "__init__.py"), "benchmarks/project.py"
    if TABLE not in names and "load" not in names:
        example = f'{TABLE} = {{"row_sum": {{"numpy": a_function}}}}'
        return f"{package.name} offers no kernels yet: {package.name}/__init__.py must define such as {example}"
    table = names.get(TABLE)
    keys = [key.value for key in table.keys if isinstance(key, ast.Constant)] if isinstance(table, ast.Dict) else []
    if "row_sum" in keys:
        return f"{package.name} is measured"
    ops = f" ({', '.join(map(str, keys))})" if keys else ""
    return f"{package.name} is measured: describe its ops{ops} in {described}, in place of the example row_sum"


def _has_gpu() -> bool:
    """Whether CuPy is installed and finds a GPU."""
    try:
        import cupy

        return bool(cupy.cuda.runtime.getDeviceCount() > 0)
    except Exception:  # no CuPy, no driver, no GPU: each has an error of its own
        return False


# --- the files -----------------------------------------------------------------------------------------------------


def _from_template(package: str, is_new: bool, has_gpu: bool) -> Iterator[tuple[str, str]]:
    """The files and their texts: the suites, and the package if it is new."""
    for path in sorted(TEMPLATE.rglob("*.py")):
        file = path.relative_to(TEMPLATE)
        if (file.parts[0] == PACKAGE and not is_new) or (file.stem == "on_gpu" and not has_gpu):
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        kept = [line.removesuffix(ON_GPU).rstrip() for line in lines if has_gpu or not line.endswith(ON_GPU)]
        yield file.as_posix().replace(PACKAGE, package), "\n".join(kept).rstrip().replace(PACKAGE, package) + "\n"


def _write(path: Path, text: str) -> bool:
    """Write a new file; whether it is new. Raises: UserError if it cannot be written."""
    try:
        path.parent.mkdir(exist_ok=True)
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
    if path.name != CONFIGURATION or ".kernelwatch.asv" in path.read_text(encoding="utf-8", errors="replace"):
        return ""
    return ' (it needs "plugins": [".kernelwatch.asv"] and "environment_type": "checkout")'
