"""asv, as it is: what fails here is a workaround that must change or may go."""

import importlib
import importlib.metadata
import json
import pickle
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from asv import environment
from asv.config import Config
from asv.plugins import virtualenv

from kernelwatch.asv.environment import Checkout
from tests.repositories import ROOT, Project

SUITE = """
import math

class Base:
    unit = "of the class"
    higher_is_better = True

    def setup_cache(self):
        return 1

class A(Base):
    params = [{params}]
    param_names = ["rung"]

    def track_marked(self, cache, rung):
        return rung

    track_marked.unit = "GB/s"
    track_marked.higher_is_better = True
    track_marked.version = "1"

class B(Base):
    def track_bare(self, cache):
        return 1.0
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    folder = tmp_path / "suite"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "one.py").write_text(SUITE.format(params="['first', 'second']"))
    return folder


def discovered(folder: Path) -> dict[str, dict[str, Any]]:
    out = folder.parent / "found.json"
    code = "from asv_runner.discovery import _discover; import sys; _discover(sys.argv[1:])"
    done = Project(folder.parent, folder.parent).run(sys.executable, "-c", code, str(folder), str(out))
    assert done.returncode == 0, done.stderr
    return {found["name"]: found for found in json.loads(out.read_text())}


def test_asv_records_a_functions_attributes_and_not_a_classs(suite: Path) -> None:
    found = discovered(suite)
    marked, bare = found["one.A.track_marked"], found["one.B.track_bare"]
    assert (marked["unit"], marked["higher_is_better"], marked["version"]) == ("GB/s", True, "1")
    assert "higher_is_better" not in bare
    assert len(bare["version"]) == 64  # a hash of the source: a reworded comment would drop the history


def test_asv_takes_an_inherited_setup_cache_for_the_same_one(suite: Path) -> None:
    found = discovered(suite)
    keys = {found[name]["setup_cache_key"] for name in ("one.A.track_marked", "one.B.track_bare")}
    line = SUITE.splitlines().index("    def setup_cache(self):") + 1
    assert keys == {f"one:{line}"}


def test_asv_collects_bases_that_are_not_abstract(suite: Path) -> None:
    with (suite / "one.py").open("a") as file:
        file.write(
            "from abc import ABC, abstractmethod\n"
            "class Concrete(ABC):\n    def track_it(self): return 1\n"
            "class Abstract(ABC):\n    def track_it(self): return 1\n"
            "    @abstractmethod\n    def more(self): ...\n"
        )
    names = set(discovered(suite))
    assert "one.Concrete.track_it" in names
    assert "one.Abstract.track_it" not in names


def test_asv_hands_parameters_over_by_index(suite: Path) -> None:
    """A list from the measured commit would file one rung's numbers under another's name."""
    (suite.parent / "cache.pickle").write_bytes(pickle.dumps(1))  # what setup_cache returned
    code = "from asv_runner.run import _run; import sys; _run(sys.argv[1:])"
    said = []
    # Of different lengths: with the same one, within a second, Python would take the first one's bytecode for both.
    for params in ("['first', 'second']", "['second', 'first', 'third']"):
        (suite / "one.py").write_text(SUITE.format(params=params))
        out = suite.parent / "out.json"
        arguments = (str(suite), "one.A.track_marked-0", "{}", "None", str(out))
        done = Project(suite.parent, suite.parent).run(sys.executable, "-c", code, *arguments)
        assert done.returncode == 0, done.stderr
        said.append(json.loads(out.read_text()))
    assert said == ["first", "second"]


def test_the_pinned_runner_is_no_parameter_of_a_virtualenv() -> None:
    """asv takes asv_runner out of what the matrix requires: raising the pin does not split the series."""
    conf = Config.load(str(ROOT / "asv.conf.json"))
    conf.plugins = []
    (pin,) = conf.matrix["req"]["pip+asv_runner"]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    (found,) = environment.get_environments(conf, [f"virtualenv:{python}"])
    assert isinstance(found, virtualenv.Virtualenv)
    assert found.requirements == {}
    assert found.name == f"virtualenv-py{python}"
    assert found._base_requirements["pip+asv_runner"] == pin
    assert pin == next(line for line in pinned() if line.startswith("asv_runner==")).partition("==")[2]


def test_what_the_matrix_requires_is_no_parameter_of_a_checkout() -> None:
    conf = Config.load(str(ROOT / "asv.conf.json"))
    conf.plugins = []
    conf.matrix["req"]["numpy"] = ["2.2"]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    (found,) = environment.get_environments(conf, [f"checkout:{python}"])
    assert isinstance(found, Checkout)
    assert (found.name, found.requirements) == (f"checkout-py{python}", {})


def test_the_engine_of_a_checkout_comes_before_that_of_a_commit(tmp_path: Path) -> None:
    """A repository may have the engine in it: a commit is measured by the checkout's, also one that has none."""
    conf = Config.load(str(ROOT / "asv.conf.json"))
    conf.plugins, conf.env_dir = [], str(tmp_path / "env")
    (found,) = environment.get_environments(conf, [f"checkout:{sys.version_info.major}.{sys.version_info.minor}"])
    assert isinstance(found, Checkout)
    (tmp_path / "cwd").mkdir()
    own = Path(found._build_root, "kernelwatch", "__init__.py")
    own.parent.mkdir(parents=True)
    own.write_text("")
    (own.parent.parent / "measured.py").write_text("")
    code = "import os, sys; sys.path[:0] = os.environ['ASV_PYTHONPATH'].split(os.pathsep);"
    code += "import kernelwatch, measured; print(os.path.realpath(kernelwatch.__file__), measured.__file__)"
    copied = Path(found._engine, "kernelwatch")  # whoever copies the folder of environments may follow the link
    copied.unlink()
    shutil.copytree(own.parent, copied)
    told = found.run(["-c", code], cwd=str(tmp_path / "cwd")).split()
    assert told == [str(ROOT / "kernelwatch" / "__init__.py"), str(own.parent.parent / "measured.py")]


def pinned() -> list[str]:
    lines: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["bench"]
    return lines


def test_these_are_the_versions_that_the_facts_were_seen_on() -> None:
    for name in ("asv", "asv_runner"):
        assert f"{name}=={importlib.metadata.version(name)}" in pinned()
