"""requirements/: what pyproject.toml asks for, and all that it needs in turn, each in one version with hashes.

Without a network: that the locked set is complete is checked by pip, which refuses what is not locked.
"""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import environment
from environment import LOCKS
from lab import lock

ROOT = Path(__file__).resolve().parents[1]
STALE = "requirements/ is not what pyproject.toml asks for: run scripts/lab/lock"
MACHINES = [
    {"python_full_version": f"{python}.1", "python_version": python, "platform_machine": machine}
    | {"sys_platform": "linux", "os_name": "posix", "platform_python_implementation": "CPython"}
    for python in ("3.11", "3.12", "3.13")
    for machine in ("x86_64", "aarch64")
]


def entries(name: str) -> list[tuple[Requirement, list[str]]]:
    """The requirements of a locked file, each with its hashes."""
    (path,) = environment.locks(name)
    lines = path.read_text().replace("\\\n", "").splitlines()
    parts = [line.split("--hash=") for line in lines if not line.startswith("#")]
    return [(Requirement(first), [digest.strip() for digest in digests]) for first, *digests in parts]


def versions(name: str, machine: dict[str, str]) -> dict[str, str]:
    """What a locked file installs on a machine: package -> version."""
    here = [found for found, _ in entries(name) if found.marker is None or found.marker.evaluate(machine)]
    packages: dict[str, str] = {
        canonicalize_name(found.name): str(found.specifier).removeprefix("==") for found in here
    }
    assert len(packages) == len(here)
    return packages


def test_there_is_a_file_for_each_name() -> None:
    assert sorted(path.name for path in environment.LOCK_FOLDER.iterdir()) == sorted(f"{name}.txt" for name in LOCKS)


@pytest.mark.parametrize("name", LOCKS)
def test_the_lock_is_of_what_pyproject_asks_for(name: str) -> None:
    (path,) = environment.locks(name)
    assert path.read_text().startswith(lock.header(name)), STALE
    for machine in MACHINES:
        locked = versions(name, machine)
        for line in environment.direct(*LOCKS[name]):
            asked = Requirement(line)
            version = locked.get(canonicalize_name(asked.name))
            assert version is not None, f"{line}: {STALE}"
            assert asked.specifier.contains(version), f"{line}, locked {version}: {STALE}"


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_has_one_version_and_hashes(name: str) -> None:
    (path,) = environment.locks(name)
    assert "://" not in path.read_text()  # no index: pip's own configuration says where packages come from
    for found, digests in entries(name):
        assert re.fullmatch(r"==[^,*]+", str(found.specifier)), found
        assert digests, found
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", digest) for digest in digests), found


@pytest.mark.parametrize("cuda", ["12", "13"])
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: "-".join(list(machine.values())[1:3]))
def test_files_that_are_installed_together_agree(cuda: str, machine: dict[str, str]) -> None:
    together: dict[str, str] = {}
    for name in ("tools", "test", f"cuda{cuda}", f"gpu{cuda}"):
        for package, version in versions(name, machine).items():
            assert together.setdefault(package, version) == version, f"{package}: {STALE}"


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: "-".join(list(machine.values())[1:3]))
def test_measuring_installs_nothing_that_only_tests_need(machine: dict[str, str]) -> None:
    measuring = {package for name in ("tools", "cuda13", "gpu13") for package in versions(name, machine)}
    heavy = {"triton", "playwright", "mypy", "ruff", "oxlint", "distributed", "dask", "codespell", "check-jsonschema"}
    assert not measuring & heavy
    assert heavy <= versions("test", machine).keys()


def test_the_lock_needs_uv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(SystemExit, match="scripts/lab/lock needs uv, which is not installed: pip install uv"):
        lock.main([])


UV = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
(cat; echo) | sed 's/$/ --hash=sha256:0/' > "$2"
"""


def test_the_lock_is_written_with_its_requirements(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    uv = tmp_path / "uv"
    uv.write_text(UV)
    uv.chmod(uv.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(environment, "LOCK_FOLDER", tmp_path / "requirements")
    assert lock.main(["--upgrade"]) == 0
    for name in LOCKS:
        asked = environment.direct(*LOCKS[name])
        text = (tmp_path / "requirements" / f"{name}.txt").read_text()
        assert text == lock.header(name) + "".join(f"{line} --hash=sha256:0\n" for line in asked)
    uv.write_text("#!/bin/sh\nexit 3\n")
    assert lock.main([]) == 3
    assert subprocess.run([sys.executable, ROOT / "scripts" / "lab" / "lock"], check=False).returncode == 3
