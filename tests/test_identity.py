"""The versions of the measuring code: what changes them, what does not, and how recorded figures stay comparable."""

import json
from pathlib import Path

import pytest

from benchmarks import _identity, _kept
from benchmarks._identity import COUNTED, TIMED

ROOT = Path(__file__).resolve().parent.parent


def test_the_lock_holds() -> None:
    assert not (said := _identity.unlocked()), "\n".join(said)


def test_every_pattern_matches_a_file() -> None:
    for identity in _identity.IDENTITIES.values():
        for pattern in identity.files:
            assert list(_identity.HERE.glob(pattern)), pattern


PYTHON = '''"""A module."""

import math  # for pi


def area(radius: float) -> float:
    """Its area.

    In square meters.
    """
    name = f"a {radius:.{3}f} {{}} b"
    if radius:
        print(name)
    return math.pi * radius**2
'''


@pytest.mark.parametrize(
    ("old", "new", "alike"),
    [
        ("  # for pi", "  # for the number pi", True),
        ("In square meters.", "In square feet.", True),
        ('"""A module."""\n\n', "", True),
        ("math.pi * radius**2", "(\n        math.pi * radius**2\n    )", False),  # parentheses are tokens
        ("radius**2", "radius ** 2", True),
        ("radius**2", "radius**3", False),
        (":.{3}f", ":.{4}f", False),
        ("        print(name)\n    return", "        print(name)\n        return", False),
    ],
)
def test_tokens_of_python(tmp_path: Path, old: str, new: str, alike: bool) -> None:
    path = tmp_path / "area.py"
    path.write_text(PYTHON)
    before = _identity.digest(path)
    assert old in PYTHON
    path.write_text(PYTHON.replace(old, new))
    assert (_identity.digest(path) == before) is alike


CUDA = """// A kernel.
#define TWO(x) \\
    (2 * (x)) /* twice */
extern "C" __global__ void twice(float *out) { out[threadIdx.x] = TWO(threadIdx.x); printf("// %d"); }
"""


@pytest.mark.parametrize(
    ("old", "new", "alike"),
    [
        ("// A kernel.", "// Another kernel, described in more words.", True),
        (" /* twice */", "", True),
        ("{ out", "{\n    out", True),
        ("(2 * (x))", "(3 * (x))", False),
        ("// %d", "// %i", False),
        ("(2 * (x)) /* twice */\n", "(2 * (x)) ", False),  # the next line would be part of the macro
    ],
)
def test_tokens_of_cuda(tmp_path: Path, old: str, new: str, alike: bool) -> None:
    path = tmp_path / "twice.cu"
    path.write_text(CUDA)
    before = _identity.digest(path)
    assert old in CUDA
    path.write_text(CUDA.replace(old, new))
    assert (_identity.digest(path) == before) is alike


def test_a_changed_file_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = _identity.now()
    lock["timed"]["files"]["_gpu.py"] = "another"
    monkeypatch.setattr(_identity, "LOCK", tmp_path / "lock.json")
    _identity.LOCK.write_text(json.dumps(lock))
    (said,) = _identity.unlocked()
    assert "timed figures: _gpu.py changed" in said
    assert "A/A" in said
    assert "raise the version" in said
    assert _identity.WRITE in said


def test_recorded_hashes_are_the_version_of_today() -> None:
    for path in [*ROOT.glob("results/*/*.facts.jsonl"), *ROOT.glob("data/planted/results/*/*.facts.jsonl")]:
        for line in map(json.loads, path.read_text().splitlines()):
            if line["record"] == "run":
                told = _kept.conditions(line["facts"])
                assert told["harness"] in (TIMED.version, None), path
                assert told["emulator"] in (COUNTED.version, None), path


def test_an_unknown_hash_is_comparable_with_nothing() -> None:
    assert _identity.known({"stick": "0123"}, TIMED) == "0123"
    assert _identity.known({"harness": "2", "stick": "1a988c45ace2976a"}, TIMED) == "2"
    assert _identity.known({}, TIMED) is None
