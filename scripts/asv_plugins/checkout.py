"""An asv environment: the interpreter that runs asv, with each commit's checkout first on its path.

`asv run -E checkout RANGE` needs no network and builds nothing, and yet goes over a range, unlike asv's own
"existing". The kernels are compiled at first use, so a checkout is all that a commit needs.
"""

import os
import sys
from typing import Any

from asv import environment, util


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
        # What the matrix pins is for environments that install: here it would only split the series by name.
        self._requirements: dict[str, str] = {}  # asv asks for it before its own __init__ sets it
        super().__init__(conf, python, {}, tagged_env_vars)

    def check_presence(self) -> bool:
        return os.path.isdir(self._path)

    def _setup(self) -> None:
        os.makedirs(self._path, exist_ok=True)

    @property
    def installed_commit_hash(self) -> None:
        """None: a checkout costs nothing, and what lies there may have been touched."""
        return

    def install_project(self, conf: Any, repo: Any, commit_hash: str) -> None:
        self.checkout_project(repo, commit_hash)

    def run(self, args: list[str], **kwargs: Any) -> Any:
        own = {**self._global_env_vars, "ASV_PYTHONPATH": self._build_root, "GPUKERNELS_PACKAGE": self._build_root}
        return util.check_output([sys.executable, *args], env={**kwargs.pop("env", os.environ), **own}, **kwargs)
