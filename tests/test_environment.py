"""The environment that the scripts make for themselves, and enter."""

import hashlib
import platform
import re
import shutil
import subprocess
import sys
import threading
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import environment
from tests.repositories import ROOT, wait_until


@pytest.fixture
def linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


def test_requirements_are_what_pyproject_pins() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert environment.requirements() == project["dependencies"]
    assert environment.requirements("bench", None, "test") == [
        *project["dependencies"],
        *extras["bench"],
        *extras["test"],
    ]
    assert environment.direct("worker", "dependencies") == [*extras["worker"], *project["dependencies"]]
    for extra in ("cuda12", "cuda13", "gpu12", "gpu13", "sass", "worker", "bench", "test"):
        assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9.]+", line) for line in extras[extra]), extra


@pytest.mark.usefixtures("linux")
@pytest.mark.parametrize(
    ("version", "extra", "said"),
    [
        (0, "cuda13", ""),  # no driver: the newest compiles as well
        (13000, "cuda13", ""),
        (13010, "cuda13", ""),
        (12090, "cuda12", ""),
        (12000, "cuda12", ""),
        (11080, "cuda13", "the GPU's driver supports CUDA 11.8; CuPy needs 12.0 or newer. Update the driver"),
    ],
)
def test_the_cuda_that_fits_the_driver(capsys: pytest.CaptureFixture[str], version: int, extra: str, said: str) -> None:
    assert environment.cuda_extra(version) == extra
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert bool(err) == bool(said)


def test_no_cuda_where_there_are_no_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert environment.cuda_extra(0) is None
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert environment.cuda_extra(13000) is None


def test_what_is_missing_is_named() -> None:
    import importlib.metadata

    asv, numpy = (importlib.metadata.version(name) for name in ("asv", "numpy"))
    assert environment.missing([f"asv=={asv}", "numpy>=2.2,<3", "rich==0.0.1"]) == []  # rich may be another version
    wrong = ["asv==0.0.1", f"numpy=={numpy}", "gpukernels-no-such-thing==1.0", "asv_runner==0.0.2"]
    runner = importlib.metadata.version("asv_runner")
    assert environment.missing(wrong) == [
        f"asv==0.0.1 (found {asv})",
        "gpukernels-no-such-thing==1.0",
        f"asv_runner==0.0.2 (found {runner})",
    ]


def test_an_interpreter_that_is_given_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environment, "HOME", tmp_path / "venv")
    monkeypatch.setenv("GPUKERNELS_PYTHON", sys.executable)
    assert environment.ensure() == sys.executable
    monkeypatch.setenv("GPUKERNELS_PYTHON", "/some/where/python")
    why = "GPUKERNELS_PYTHON=/some/where/python: no such interpreter; give the path of one"
    with pytest.raises(SystemExit, match=why):
        environment.ensure()
    assert list(tmp_path.iterdir()) == []


def with_interpreter(folder: Path) -> None:
    """An environment without packages."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[Path]]:
    """An environment folder that is empty, and a pip that never gets through; what it was asked for."""
    asked: list[list[Path]] = []

    def pip(python: Path | str, wanted: list[Path]) -> str:
        asked.append(wanted)
        return "first line\nno network"

    monkeypatch.delenv("GPUKERNELS_PYTHON", raising=False)
    monkeypatch.setattr(environment, "HOME", tmp_path / "venv")
    monkeypatch.setattr(environment, "pip_install", pip)
    monkeypatch.setattr(venv.EnvBuilder, "create", lambda self, where: with_interpreter(Path(where)))
    monkeypatch.setattr(environment, "driver_cuda", lambda: 0)
    return asked


def test_without_pip_the_interpreter_at_hand_will_do(
    no_pip: list[list[Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert environment.ensure() == sys.executable
    assert no_pip == [environment.locks("tools", environment.cuda_extra(0))]
    assert "pip could not install (no network); going on with" in capsys.readouterr().err


def test_without_pip_and_without_what_is_needed_it_ends(
    no_pip: list[list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "missing", lambda wanted: ["asv==0.6.6", "scipy==1.17.1"])
    with pytest.raises(SystemExit, match=r"no environment\. pip says: first line") as ended:
        environment.ensure()
    assert "it lacks asv==0.6.6, scipy==1.17.1." in str(ended.value)
    assert "GPUKERNELS_PYTHON" in str(ended.value)


def test_an_environment_is_made_once(
    no_pip: list[list[Path]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def pip(python: Path | str, wanted: list[Path]) -> str:
        no_pip.append(wanted)
        return ""

    monkeypatch.setattr(environment, "pip_install", pip)
    made = environment.ensure()
    assert Path(made).parents[1] == environment.HOME
    assert environment.ensure() == made
    assert len(no_pip) == 1
    changed = shutil.copytree(environment.LOCK_FOLDER, tmp_path / "requirements")
    monkeypatch.setattr(environment, "LOCK_FOLDER", changed)
    assert environment.ensure() == made  # it lies elsewhere, and says the same
    assert len(no_pip) == 1
    with (changed / "tools.txt").open("a") as file:
        file.write("numpy==9\n")
    assert environment.ensure() == made
    assert no_pip[1:] == [environment.locks("tools", environment.cuda_extra())]
    assert capsys.readouterr().err.count("installing what requirements/ locks into venv/") == 2


def test_what_tests_is_added_once_to_what_measures(
    no_pip: list[list[Path]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    why = ["", "", "no network"]

    def pip(python: Path | str, wanted: list[Path]) -> str:
        no_pip.append(wanted)
        return why.pop(0)

    monkeypatch.setattr(environment, "pip_install", pip)
    base, tests = environment.locks("tools", environment.cuda_extra()), environment.locks("test")
    made = environment.ensure()
    assert no_pip == [base]
    for _ in range(2):
        assert environment.ensure(tests=True) == made
        assert no_pip == [base, tests]
    assert environment.ensure() == made  # measuring goes on with it
    assert no_pip == [base, tests]
    (environment.HOME / environment.TEST_MARK).write_text("of another day")
    assert environment.ensure(tests=True) == made
    said = capsys.readouterr().err
    assert said.count("adding what tests to venv/") == 2
    assert said.endswith("pip could not install (no network); going on with venv/ as it is\n")


@pytest.fixture
def made(no_pip: list[list[Path]], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The interpreter of an environment that was made; pip gets through."""

    def pip(python: Path | str, wanted: list[Path]) -> str:
        no_pip.append(wanted)
        return ""

    monkeypatch.setattr(environment, "pip_install", pip)
    return Path(environment.ensure())


def test_another_python_takes_the_environment_that_is_there(
    made: Path, no_pip: list[list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (environment.HOME / "kept").touch()
    monkeypatch.setattr(sys, "version", "3.99 of another folder of PATH")
    assert environment.ensure() == str(made)
    assert (environment.HOME / "kept").exists()
    assert len(no_pip) == 1


def test_an_environment_whose_interpreter_is_gone_is_made_anew(made: Path, no_pip: list[list[Path]]) -> None:
    made.unlink()
    made.symlink_to("/gone/with/an/upgrade")
    assert environment.ensure() == str(made)
    assert made.resolve() == Path(sys.executable).resolve()
    assert len(no_pip) == 2


WAITS = "import sys; print('up', flush=True); sys.stdin.read()"
MAPS = "import mmap, sys; file = open(sys.argv[1]); kept = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ); "


@pytest.mark.parametrize("how", ["by its interpreter", "by a library of it"])
def test_an_environment_is_not_replaced_under_a_running_command(
    made: Path, no_pip: list[list[Path]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    library = environment.HOME / "library.so"
    library.write_text("mapped")
    command = (
        [str(made), "-c", WAITS] if how == "by its interpreter" else [sys.executable, "-c", MAPS + WAITS, str(library)]
    )
    changed = shutil.copytree(environment.LOCK_FOLDER, tmp_path / "requirements")
    with (changed / "tools.txt").open("a") as file:
        file.write("numpy==9\n")
    monkeypatch.setattr(environment, "LOCK_FOLDER", changed)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "up\n"
        with pytest.raises(SystemExit, match=rf"while it is in use by process {running.pid} \("):
            environment.ensure()
        running.communicate()
    assert library.exists()
    assert len(no_pip) == 1
    assert environment.ensure() == str(made)
    assert not library.exists()
    assert len(no_pip) == 2


def test_two_commands_make_one_environment(
    no_pip: list[list[Path]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pip(python: Path | str, wanted: list[Path]) -> str:
        no_pip.append(wanted)
        if len(no_pip) == 1:
            other.start()
            assert wait_until(waits)
            assert other.is_alive()
        return ""

    def waits() -> bool:
        said.append(capsys.readouterr().err)
        return "another process makes venv/; waiting for it" in "".join(said)

    monkeypatch.setattr(environment, "pip_install", pip)
    others: list[str] = []
    said: list[str] = []
    other = threading.Thread(target=lambda: others.append(environment.ensure()))
    first = environment.ensure()
    other.join()
    assert others == [first]
    assert len(no_pip) == 1


def test_pip_installs_only_what_has_a_hash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "nothing-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("nothing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: nothing\nVersion: 1.0\n")
        wheel.writestr("nothing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("nothing-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "target"))
    locked = tmp_path / "locked.txt"
    locked.write_text("nothing==1.0\n")
    assert "hash" in environment.pip_install(sys.executable, [locked])
    digest = hashlib.sha256((tmp_path / "nothing-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    locked.write_text(f"nothing==1.0 --hash=sha256:{digest}\n")
    assert environment.pip_install(sys.executable, [locked]) == ""


@pytest.mark.parametrize("works", [True, False])
def test_an_environment_that_works_is_kept_where_pip_fails(
    no_pip: list[list[Path]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], works: bool
) -> None:
    home = environment.HOME
    home.mkdir()
    (home / "gpukernels.stamp").write_text("of another day")
    (home / "kept").touch()
    monkeypatch.setattr(environment, "has_pins", lambda python: works)
    found = Path(environment.ensure())
    assert (found.parents[1] == home) is works
    assert works or str(found) == sys.executable
    assert sorted(path.name for path in home.iterdir()) == ["gpukernels.stamp", "kept"]
    assert [path.name for path in home.parent.glob("venv*") if path.suffix != ".lock"] == ["venv"]
    assert "pip could not install (no network); going on with" in capsys.readouterr().err


def test_an_environment_works_with_the_pinned_asv(tmp_path: Path) -> None:
    assert environment.has_pins(Path(sys.executable))
    assert not environment.has_pins(tmp_path / "python")


def test_the_program_does_one_thing() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "environment.py"), "remove"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "usage: environment.py install\n")
