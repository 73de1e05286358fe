"""An asv environment: the interpreter that runs asv, with each commit's checkout first on its path.

`asv run -E checkout RANGE` needs no network and builds nothing. Unlike asv's own "existing", it can run a range of
commits. Kernels are compiled at first use, so a commit needs only its checkout, unless the project names a build.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from asv import environment, util

from kernelwatch.plan import tree
from kernelwatch.plan.build import tree_of_commit
from kernelwatch.plan.project import ENGINE, is_described, load_from
from kernelwatch.system.options import PREFIX

# Where Python finds the modules of these names; prints it as JSON.
WHERE = """
import importlib.util, json, sys
specs = {name: importlib.util.find_spec(name) for name in sys.argv[1:] if name not in sys.modules}
print(json.dumps({name: spec.origin for name, spec in specs.items() if spec and spec.origin}))
"""


def _shadows(folder: Path) -> bool:
    """Whether a folder has modules with the names of Python's own, which would be imported for them."""
    names = [path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()]
    return not sys.stdlib_module_names.isdisjoint({*names} - {"test"})


class Checkout(environment.Environment):
    """The current interpreter with a commit's checkout; see asv.environment.Environment for the methods."""

    tool_name = "checkout"
    matches_python_fallback = False

    @classmethod
    def matches(cls, python: str) -> bool:
        return python == f"{sys.version_info.major}.{sys.version_info.minor}"

    def __init__(self, conf: Any, python: str, requirements: dict[str, str], tagged_env_vars: dict[Any, str]) -> None:
        if not self.matches(python):
            raise environment.EnvironmentUnavailable(
                f"the checkout environment is the interpreter that runs asv, {sys.version_info.major}."
                f"{sys.version_info.minor}, not {python}"
            )
        # The matrix pins requirements for environments that install; here they would only split the series by name.
        self._requirements: dict[str, str] = {}  # asv reads it before its own __init__ sets it
        super().__init__(conf, python, {}, tagged_env_vars)
        self._conf = conf

    def check_presence(self) -> bool:
        return os.path.isdir(self._path)

    def _setup(self) -> None:
        os.makedirs(self._path, exist_ok=True)

    @property
    def installed_commit_hash(self) -> None:
        """None, so that asv always checks out: this costs nothing, and the files may have been edited."""
        return

    def install_project(self, conf: Any, repo: Any, commit_hash: str) -> None:
        """Check a commit out, and build its tree if the project says how."""
        self.checkout_project(repo, commit_hash)
        self._tree = self._build_root
        description = Path(conf.benchmark_dir).resolve()
        if is_described(description):
            project = load_from(description)
            if project.build or project.wheels:
                self._tree = tree_of_commit(project, commit_hash, Path(self._build_root))
        else:
            self._refuse_strays(conf, description)

    def _refuse_strays(self, conf: Any, description: Path) -> None:
        """Raises: UserError of asv's if a module of the commit is imported from elsewhere in the repository, as an
        editable install with a finder of its own does: both commits would then run the same files."""
        own, repository = os.path.realpath(self._build_root), os.path.realpath(conf.repo)
        names = {
            path.stem
            for root in self._roots
            for path in root.iterdir()
            if path.name != description.name and ((path / "__init__.py").is_file() or path.suffix == ".py")
        }
        path = os.pathsep.join(filter(None, [*map(str, self._roots), os.environ.get("PYTHONPATH", "")]))
        told = util.check_output(
            [sys.executable, "-P", "-c", WHERE, *sorted(names)], env={**os.environ, "PYTHONPATH": path}
        )
        for name, origin in json.loads(told.splitlines()[-1]).items():
            where = os.path.realpath(origin)
            installed = not {*tree.INSTALLED}.isdisjoint(Path(where).parts)
            if where.startswith(f"{repository}{os.sep}") and not where.startswith(f"{own}{os.sep}") and not installed:
                raise util.UserError(
                    f"{name} is imported from {where}, which is no file of the commit in {own}: uninstall what is "
                    "installed from the checkout, or use an environment of asv's own (-E virtualenv)"
                )

    @property
    def _roots(self) -> tuple[Path, ...]:
        """The folders of the commit from which modules are imported, such as `src`."""
        return tree.places(Path(self._build_root, self._repo_subdir), "").roots

    @property
    def _engine(self) -> str:
        """A folder with nothing but this engine, which comes before that of a commit that has one as well."""
        link = Path(self._path, "engine", ENGINE.name)
        if link.resolve() != ENGINE:
            shutil.rmtree(link.parent, ignore_errors=True)  # that of another engine, or a copy that followed the link
            link.parent.mkdir(parents=True)
            link.symlink_to(ENGINE)
        return str(link.parent)

    def run(self, args: list[str], **kwargs: Any) -> Any:
        tree = getattr(self, "_tree", self._build_root)
        # Kernels are imported by workers, from the tree: asv's own process needs it only for suites of asv's kind.
        first = [self._engine] if _shadows(Path(self._build_root)) else [self._engine, self._build_root]
        env = dict(kwargs.pop("env", os.environ))
        if not is_described(Path(self._conf.benchmark_dir).resolve()):
            first = [*map(str, self._roots), *first]
            # For processes that a benchmark starts, as timeraw_* does: they know nothing of ASV_PYTHONPATH.
            theirs = [str(root) for root in self._roots if not _shadows(root)]
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [*theirs, env.get("PYTHONPATH", "")]))
        own = {**self._global_env_vars, "ASV_PYTHONPATH": os.pathsep.join(first), f"{PREFIX}TREE": tree}
        return util.check_output([sys.executable, *args], env={**env, **own}, **kwargs)
