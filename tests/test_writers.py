"""Three machines record into one repository at once: nobody resolves a conflict, and nothing is lost or doubled."""

import json
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelwatch.asv.recording import by_line
from tests.repositories import ROOT, Project, copy_into, cpu_processes, few_rungs, new_project, rewrite, without_suites

CELL = "vector_add/numpy float32 65536 hot"
WRITERS = ("one", "two", "three")
SUITE = """
def track_{name}():
    return 1.0


track_{name}.version = "1"
"""
FAKES = {
    **cpu_processes(1),
    "kernelwatch/asv/machine_names.py": {"gpu = gpu_name() if gpu is None else gpu": 'gpu = os.environ["FAKE_KIND"]'},
}


def record(writer: Project, name: str, together: threading.Barrier, said: list[str]) -> None:
    """Add a suite, record the commit that all share, and pull and push until it is accepted."""
    (writer.folder / "benchmarks" / f"own_{name}.py").write_text(SUITE.format(name=name))
    writer.commit_all(f"{name}: a suite")
    bench = rf"vector_add\.CPU\.track_seconds|own_{name}"
    done = writer.asv("run", "-E", "checkout", "--bench", bench, "HEAD~1^!", FAKE_KIND=name, KERNELWATCH_ONLY=CELL)
    said.append(done.stdout + done.stderr if done.returncode else "")
    writer.commit_all(f"{name}: results")
    together.wait()
    for _ in range(20):
        pulled = writer.run("git", "pull", "-q", "--rebase")
        if pulled.returncode:
            said.append(pulled.stdout + pulled.stderr)
            return
        if writer.run("git", "push", "-q").returncode == 0:
            return
    said.append(f"{name} could not push")


def test_three_writers_at_once(kernel_cache: Path, tmp_path: Path) -> None:
    base = new_project(tmp_path)
    copy_into(base.folder)
    without_suites(base.folder, "access", "device", "matmul", "static")
    few_rungs(base.folder, ("numpy",))
    rewrite(base.folder, FAKES)
    names = base.folder / "kernelwatch" / "asv" / "machine_names.py"
    names.write_text(names.read_text().replace("import platform", "import os\nimport platform", 1))
    shutil.copy(ROOT / ".gitattributes", base.folder)
    base.commit_all("a project")
    base.run("git", "clone", "-q", "--bare", str(base.folder), str(tmp_path / "shared"))
    writers = {}
    for name in WRITERS:
        base.run("git", "clone", "-q", str(tmp_path / "shared"), str(tmp_path / name))
        writers[name] = Project(tmp_path / name, base.home)
    said: list[str] = []
    together = threading.Barrier(len(WRITERS))
    threads = [threading.Thread(target=record, args=(writers[name], name, together, said)) for name in WRITERS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "".join(said) == ""
    reader = writers["one"]
    reader.git("pull", "-q")
    results = reader.folder / "results"
    paths = sorted(results.glob("*/*-checkout-*.json"))
    assert len(paths) == len(WRITERS)
    for path in paths:
        assert "vector_add.CPU.track_seconds" in json.loads(path.read_text())["results"]
        lines = map(json.loads, path.with_name(path.name.replace(".json", ".facts.jsonl")).read_text().splitlines())
        assert [line["key"] for line in lines if line["record"] == "cell"] == [CELL]
    known = json.loads((results / "benchmarks.json").read_text())
    assert {f"own_{name}.track_{name}" for name in WRITERS} <= known.keys()
    assert known["version"] == 2
    published = reader.run(sys.executable, "-m", "asv", "publish", "--no-pull", FAKE_KIND="one")
    assert published.returncode == 0, published.stdout + published.stderr
    data = reader.folder / ".asv" / "html" / "data"
    assert sorted(path.parent.name.partition(".")[0] for path in data.glob("*/machine.json")) == sorted(WRITERS)


@pytest.mark.parametrize(("layout", "merged"), [(by_line, True), (json.dumps, False)])
def test_lists_of_benchmarks_merge_because_of_their_layout(
    layout: Callable[[dict[str, Any]], str], merged: bool, tmp_path: Path
) -> None:
    """Both sides add a benchmark at the same place and at the end, and change one."""
    project = new_project(tmp_path)
    shutil.copy(ROOT / ".gitattributes", project.folder)
    path = project.folder / "results" / "benchmarks.json"
    path.parent.mkdir()

    def write(name: str, **more: int) -> None:
        path.write_text(layout({"a": 1, "b": name, "c": 3, "version": 2, **more}))
        project.commit_all(name)

    write("base")
    project.git("checkout", "-q", "-b", "side")
    write("side", b1=1, d1=1)
    project.git("checkout", "-q", "main")
    write("main", b2=2, d2=2)
    done = project.run("git", "merge", "-q", "-m", "both", "side")
    if not merged:
        assert done.returncode or not valid(path)
        return
    assert done.returncode == 0, done.stdout
    benchmarks = json.loads(path.read_text())
    assert benchmarks.pop("b") in ("main", "side")
    assert benchmarks == {"a": 1, "c": 3, "b1": 1, "b2": 2, "d1": 1, "d2": 2, "version": 2}


def valid(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_text()), dict)
    except ValueError:
        return False


def test_a_list_of_benchmarks_has_a_line_for_each() -> None:
    benchmarks = {"version": 2, "zebra.track": {"b": 1, "a": [2]}, "ant.track": {}}
    text = by_line(benchmarks)
    assert json.loads(text) == benchmarks
    assert text == '{\n"ant.track": {},\n"zebra.track": {"a": [2], "b": 1},\n"version": 2\n}\n'
