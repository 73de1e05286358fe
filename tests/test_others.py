"""Repositories of others: what is planted there, and the page of what was found."""

import subprocess
from pathlib import Path

import pytest

from lab import figures, others
from lab.planted import run

SOFTMAX = """def f(
    X_row_stride,
    n_cols,
):
    row_id = tl.program_id(0)

f[(n_rows,)](
    y, n_cols, x
)
"""
SWIGLU = """def _swiglu_forward_kernel(a, gate, n_cols: tl.constexpr):
    at = tl.program_id(0).to(tl.int64)

_swiglu_forward_kernel[(n_rows,)](
    a,
    c.stride(-2),
    float(gate_multiplier),
    n_cols=n_cols,
)
"""
LAYER_NORM = """X_row = tl.load(at + cols, mask=mask, other=0.0)
Y_row = tl.load(at, mask=mask, other=0.0)
"""
SOURCES = {"utils": "LIMIT = 65536\n", "softmax": SOFTMAX, "swiglu": SWIGLU, "layer_norm": LAYER_NORM}


def clone(folder: Path) -> Path:
    """A repository with texts like those that the plants look for."""
    (folder / others.OPS).mkdir(parents=True)
    for name, text in SOURCES.items():
        (folder / others.OPS / f"{name}.py").write_text(text)
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder))
    for command in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "theirs")):
        subprocess.run((*git, *command), check=True)
    return folder


def test_each_plant_is_a_commit_of_one_change(tmp_path: Path) -> None:
    folder = clone(tmp_path / "clone")
    (folder / "benchmarks").mkdir()
    (folder / "benchmarks" / "project.py").write_text("")  # a description, which is no part of a plant
    assert others.main(["plant", str(folder)]) == 0
    told = run(folder, "git", "log", "--reverse", "--format=%s", "--name-only", "main..planted").split("\n\n")
    assert len(told) == 5  # git writes an empty line between a subject and its files
    own = {name: (folder / others.OPS / f"{name}.py").read_text() for name in SOURCES}
    assert own["utils"] == "LIMIT = 1 << 16\n"
    assert "    X_row_stride,\n    n_rows,\n    n_cols,\n" in own["softmax"]
    assert "f[(n_rows + n_rows // 100,)](\n    y, n_rows, n_cols, x\n)" in own["softmax"]
    assert "_swiglu_forward_kernel[(n_rows + n_rows * 3 // 100,)](" in own["swiglu"]
    assert "    float(gate_multiplier),\n    n_rows,\n    n_cols=n_cols,\n" in own["swiglu"]
    assert own["layer_norm"] == "X_row = tl.load(at + cols)\nY_row = tl.load(at, mask=mask, other=0.0)\n"


def test_a_text_that_is_not_there_is_named(tmp_path: Path) -> None:
    folder = clone(tmp_path / "clone")
    (folder / others.OPS / "swiglu.py").write_text("def other():\n    pass\n")
    run(folder, "git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", "changed")
    with pytest.raises(SystemExit, match=r"swiglu\.py of .* has no "):
        others.plant(folder)


def test_the_page_has_the_tables_of_the_recorded_links() -> None:
    tables = others.tables()
    assert len(tables) == 7
    for name, table in tables.items():
        text = (others.LINKS if name == others.OWN else others.PAGE).read_text(encoding="utf-8")
        begin, end = figures.marks(name, others.WRITER)
        assert f"{begin}\n\n{table}\n\n{end}" in text, name


def test_every_planted_and_every_flagged_commit_is_explained() -> None:
    planted = others.planted_in(others.steps_of("liger"))
    assert len(planted) == len(others.PLANTS) == 4
    flags = [(session.after, judged.word) for session, _, judged in others.flagged("liger")]
    words = [{word for hash, word in flags if hash == commit} for commit in planted]
    assert words == [set(), {"worse"}, {"worse"}, {"better"}]  # the last one is faster where it is not wrong
    used = {session.after[:8] for example in others.SITES for session, _, _ in others.flagged(example)}
    assert others.EXPLAINED.keys() == used - {hash[:8] for hash in planted}
