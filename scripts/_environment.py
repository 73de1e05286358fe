"""The interpreter that the project runs with: made at first use, checked at every one. Standard library only.

A script enters it by `_environment.enter()`. It is, in this order: $GPUKERNELS_PYTHON, as it is; .venv, made with pip
from what requirements/ locks (again when that has changed); the interpreter at hand, where pip cannot install (no
network) and it has everything. As a program, `_environment.py install` puts what a commit needs to be measured into
the interpreter that runs it: asv's own virtualenvs are filled so.

pyproject.toml names the direct dependencies. requirements/ holds, for each name in LOCKS, those of its groups and
everything that they need in turn, in exact versions with hashes; scripts/lock writes it (`_lock.py`).
"""

import ctypes
import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036 (this file is what tells)
    raise SystemExit(f"gpukernels needs Python 3.11 or newer, this is {sys.version.split()[0]} ({sys.executable})")
import tomllib

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".venv"
LOCK_FOLDER = ROOT / "requirements"
# The groups of pyproject.toml that each locked file holds. Files of one CUDA version can be installed together.
LOCKS = {
    "tools": ("dependencies", "worker", "bench", "test"),
    "cuda12": ("dependencies", "worker", "cuda12", "sass"),
    "cuda13": ("dependencies", "worker", "cuda13", "sass"),
    "gpu12": ("gpu12",),  # apart: a machine without a driver does not fetch cuBLAS
    "gpu13": ("gpu13",),
}
INSIDE = "GPUKERNELS_INSIDE"  # set once the right interpreter runs, so that it is not looked for again


def driver_cuda() -> int:
    """The CUDA version that the installed driver supports, as CUDA counts (13000); 0 without a driver."""
    for name in ("libcuda.so.1", "nvcuda.dll"):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        version = ctypes.c_int()
        return version.value if library.cuDriverGetVersion(ctypes.byref(version)) == 0 else 0
    return 0


def cuda_extra(version: int | None = None) -> str | None:
    """Which of the project's CUDA extras fits a driver: cubins of a newer major version are not loaded by an older
    driver. Without a driver the newest, which compiles as well; None where there are no wheels."""
    version = driver_cuda() if version is None else version
    if sys.platform not in ("linux", "win32") or platform.machine().lower() not in ("x86_64", "amd64", "aarch64"):
        return None
    if 0 < version < 12000:
        print(
            f"gpukernels: the GPU's driver supports CUDA {version // 1000}.{version % 1000 // 10}; CuPy needs 12.0 "
            "or newer. Update the driver; until then GPU cells are n/a.",
            file=sys.stderr,
        )
    return "cuda12" if 12000 <= version < 13000 else "cuda13"


def gpu_extra() -> str | None:
    """The extra of libraries that only a GPU needs, None without a driver that they fit."""
    extra = cuda_extra()
    return extra.replace("cuda", "gpu") if extra and driver_cuda() >= 12000 else None


def direct(*groups: str) -> list[str]:
    """What pyproject.toml asks for in these groups: its extras, or "dependencies"."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    known = project["optional-dependencies"] | {"dependencies": project["dependencies"]}
    return [line for group in groups for line in known[group]]


def requirements(*extras: str | None) -> list[str]:
    """What pyproject.toml asks for, with these extras."""
    return direct("dependencies", *(extra for extra in extras if extra))


def locks(*names: str | None) -> list[Path]:
    """The locked files of these names."""
    return [LOCK_FOLDER / f"{name}.txt" for name in names if name]


def missing(wanted: list[str]) -> list[str]:
    """Which requirements this interpreter lacks. Exact pins bind only for asv and its runner, whose insides the
    plugins use: on a machine without a network the rest may be another version."""
    lacking = []
    for line in wanted:
        name, _, pin = line.partition("==")
        name = re.split(r"[<>=!~;\[ ]", name, maxsplit=1)[0]
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            lacking.append(line)
            continue
        if name in ("asv", "asv_runner") and found != pin:
            lacking.append(f"{line} (found {found})")
    return lacking


def _python(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _pip(python: Path | str, wanted: list[Path]) -> str:
    """Install locked files into an interpreter's environment; pip's last words if it fails, "" if it does not."""
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes"]
    command += [f"--requirement={path}" for path in wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else "\n".join(done.stderr.strip().splitlines()[-3:]) or "pip failed"


def _works(python: Path) -> bool:
    """Whether an environment of another day has what the plugins need: asv and its runner in the pinned versions."""
    pins = [line for line in requirements("bench") if line.startswith(("asv==", "asv_runner=="))]
    ask = "import importlib.metadata as m; print(*(f'{n}=={m.version(n)}' for n in ('asv', 'asv_runner')))"
    try:
        done = subprocess.run([str(python), "-c", ask], capture_output=True, text=True, check=False)
    except OSError:
        return False
    return done.stdout.split() == pins


def ensure() -> str:
    """The path of the interpreter to use, made ready. Exits with a message where there is none."""
    given = os.environ.get("GPUKERNELS_PYTHON")
    if given:
        if not shutil.which(given):
            raise SystemExit(f"gpukernels: GPUKERNELS_PYTHON={given}: no such interpreter; give the path of one")
        return given
    wanted = locks("tools", cuda_extra(), gpu_extra())
    stamp = hashlib.sha256("\n".join([sys.version, *(path.read_text() for path in wanted)]).encode()).hexdigest()
    mark = HOME / "gpukernels.stamp"
    if mark.is_file() and mark.read_text() == stamp:
        return str(_python(HOME))
    print(
        f"gpukernels: installing what {LOCK_FOLDER.name}/ locks into {HOME.name}/ "
        "(once; some 400 MB to fetch, 1 GB on disk)",
        file=sys.stderr,
    )
    before = HOME.with_name(".venv.before")  # an environment that works is not given up for one that cannot be made
    shutil.rmtree(before, ignore_errors=True)
    if HOME.exists():
        HOME.rename(before)
    try:
        venv.EnvBuilder(with_pip=True).create(HOME)
        why = _pip(_python(HOME), wanted)
    except (OSError, subprocess.CalledProcessError) as error:
        why = f"{type(error).__name__}: {error}"
    if not why:
        shutil.rmtree(before, ignore_errors=True)
        mark.write_text(stamp)
        return str(_python(HOME))
    shutil.rmtree(HOME, ignore_errors=True)
    if before.exists():
        before.rename(HOME)
        if (HOME / mark.name).is_file() and _works(_python(HOME)):
            print(
                f"gpukernels: pip could not install ({why.splitlines()[-1]}); going on with {HOME.name}/ as it was",
                file=sys.stderr,
            )
            return str(_python(HOME))
    lacking = missing(requirements(cuda_extra() if driver_cuda() else None, "worker", "bench"))
    if not lacking:
        print(
            f"gpukernels: pip could not install ({why.splitlines()[-1]}); going on with {sys.executable}, which has "
            "what is needed, in its own versions",
            file=sys.stderr,
        )
        return sys.executable
    raise SystemExit(
        f"gpukernels: no environment. pip says: {why}\n{sys.executable} cannot stand in for it: it lacks "
        f"{', '.join(lacking)}. With a network run this again; or name an interpreter that has them in "
        "GPUKERNELS_PYTHON."
    )


def enter() -> None:
    """Go on in the project's interpreter: returns at once there, else replaces this process."""
    if os.environ.get(INSIDE) != str(ROOT):
        try:
            python = ensure()
        except KeyboardInterrupt:
            raise SystemExit("interrupted; the same call begins the environment anew") from None
        os.environ[INSIDE] = str(ROOT)
        sys.stdout.flush()
        os.execv(python, [python, *sys.argv])
    sys.path[:0] = [str(ROOT)]
    os.chdir(ROOT)


def with_root() -> dict[str, str]:
    """The environment for a child that imports this checkout's packages. Never for asv, whose children import those of
    another commit."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


if __name__ == "__main__":
    if sys.argv[1:] != ["install"]:
        raise SystemExit("usage: _environment.py install")
    # Without a driver too: what the kernels compile to is measured everywhere.
    failure = _pip(sys.executable, locks(cuda_extra() or "tools", gpu_extra()))
    if failure:
        raise SystemExit(f"gpukernels: pip could not install what a commit needs: {failure}")
