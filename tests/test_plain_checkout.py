"""A project without a description in the environment `checkout`: whose modules its benchmarks import; its gate."""

import json
import sys
from pathlib import Path

from tests.repositories import new_project
from tests.test_plain_turns import CONFIGURATION, Plain, verdicts

EDITABLE = """
import importlib.util
import sys


class Finder:
    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_file_location(name, {file!r}) if name == "work" else None


sys.meta_path.insert(0, Finder())
"""


def test_an_editable_install_is_no_commit(tmp_path: Path, small_engine: Path) -> None:
    """A layout with `src`, of which the checkout is on the path; or is what a finder of its own finds, always first."""
    project = new_project(tmp_path)
    (project.folder / "asv.conf.json").write_text(json.dumps(CONFIGURATION))
    (project.folder / ".gitignore").write_text("env\n")
    for folder in ("benchmarks", "src"):
        (project.folder / folder).mkdir()
    (project.folder / "benchmarks" / "__init__.py").touch()
    (project.folder / "benchmarks" / "suite.py").write_text("import work\n\n\ndef track_it():\n    return work.RATE\n")
    source = project.folder / "src" / "work.py"
    commits = {}
    for name, rate in {"first": 5.0, "slower": 4.0}.items():
        source.write_text(f"RATE = {rate}\n")
        commits[name] = project.commit_all(name)
    found = Plain(project, commits, small_engine)
    out = project.home / "report.json"
    asked = ("versus", *commits.values(), "--comment", str(out))
    found.run(*asked, code=0, path=str(source.parent))
    (table,) = json.loads(out.read_text())["tables"]
    assert [row[-1] for row in table["rows"]] == ["changed"]
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(EDITABLE.format(file=str(source)))
    told = found.run(*asked, code=2, path=str(tmp_path / "site"))
    assert f"work is imported from {source}, which is no file of the commit in " in told


def test_a_project_without_a_description_has_no_gate(tmp_path: Path, small_engine: Path) -> None:
    """The recipes for CI run the gate before they compare."""
    project = new_project(tmp_path)
    (project.folder / "asv.conf.json").write_text(json.dumps(CONFIGURATION))
    (project.folder / "benchmarks").mkdir()
    (project.folder / "benchmarks" / "__init__.py").touch()
    project.commit_all("suites")
    done = project.run(sys.executable, "-m", "kernelwatch", "gate", PYTHONPATH=str(small_engine))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "benchmarks has no project.py, which may name a gate: nothing to test\n"


IN_A_CHILD = """
import subprocess
import sys


def track_it():
    return float(subprocess.check_output([sys.executable, "-c", "import work; print(work.RATE)"]))
"""


def test_a_process_that_a_benchmark_starts_imports_the_commit(tmp_path: Path, small_engine: Path) -> None:
    """As each timeraw_* does: not what is installed, which is the same for both commits."""
    project = new_project(tmp_path)
    (project.folder / "asv.conf.json").write_text(json.dumps(CONFIGURATION))
    for folder in ("benchmarks", "src"):
        (project.folder / folder).mkdir()
    (project.folder / "benchmarks" / "__init__.py").touch()
    (project.folder / "benchmarks" / "suite.py").write_text(IN_A_CHILD)
    commits = {}
    for name, rate in {"first": 5.0, "slower": 4.0}.items():
        (project.folder / "src" / "work.py").write_text(f"RATE = {rate}\n")
        commits[name] = project.commit_all(name)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "work.py").write_text("RATE = 3.0\n")
    found = Plain(project, commits, small_engine)
    out = project.home / "report.json"
    found.run("versus", *commits.values(), "--comment", str(out), code=0, path=str(tmp_path / "site"))
    assert verdicts(json.loads(out.read_text())) == {"suite.track_it": "changed"}
