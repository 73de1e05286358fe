"""Makes and finds the project's Python interpreter. It uses only the standard library.

A script switches to that interpreter by `environment.enter()`. It is the first of these that applies:

1. $GPUKERNELS_PYTHON, unchanged;
2. .venv, which pip installs from requirements/, and again after requirements/ has changed, though never while a process
   runs from it. It first gets only what measures; the first script that tests adds what tests;
3. the running interpreter, if pip cannot install (no network) but this interpreter has every package.

As a program, `environment.py install` installs the packages that a commit needs to be measured into the interpreter
that runs it. asv fills its virtualenvs this way.

pyproject.toml names the direct dependencies. For each name in LOCKS, requirements/ holds the dependencies of its groups
and everything that these need in turn, in exact versions with hashes. scripts/lab/lock writes these files.
"""

import ast
import ctypes
import hashlib
import importlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NoReturn

if sys.version_info < (3, 11):  # noqa: UP036 (this is the check for older versions)
    print(
        f"gpukernels needs Python 3.11 or newer, this is {sys.version.split()[0]} ({sys.executable})", file=sys.stderr
    )
    raise SystemExit(128)
import tomllib

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".venv"
LOCK_FOLDER = ROOT / "requirements"
# The groups of pyproject.toml that each locked file holds. Files of one CUDA version can be installed together.
LOCKS = {
    "tools": ("dependencies", "worker", "bench"),
    "test": ("test",),  # separate, so that measuring does not wait for a browser, a compiler and linters
    "cuda12": ("dependencies", "worker", "cuda12", "sass"),
    "cuda13": ("dependencies", "worker", "cuda13", "sass"),
    "gpu12": ("gpu12",),  # separate, so that a machine without a driver does not download cuBLAS
    "gpu13": ("gpu13",),
}
CANNOT = 128  # the engine's exit code of a command that could not do its job
MARK, TEST_MARK = "gpukernels.stamp", "gpukernels.test.stamp"
INSIDE = "GPUKERNELS_INSIDE"  # set once the right interpreter runs, so that it is searched for only once


def driver_cuda() -> int:
    """The CUDA version that the installed driver supports, in CUDA's encoding (13000 for 13.0); 0 without a driver."""
    for name in ("libcuda.so.1", "nvcuda.dll"):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        version = ctypes.c_int()
        return version.value if library.cuDriverGetVersion(ctypes.byref(version)) == 0 else 0
    return 0


def cuda_extra(version: int | None = None) -> str | None:
    """The project's CUDA extra for a driver, since a driver does not load cubins of a newer major version.

    `version`: the driver's CUDA version in CUDA's encoding, by default the installed driver's. Without a driver this is
    the newest extra, which can compile; None if there are no wheels for this platform.
    """
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
    """The extra of the libraries that only a GPU needs; None if no driver supports them."""
    extra = cuda_extra()
    return extra.replace("cuda", "gpu") if extra and driver_cuda() >= 12000 else None


def direct(*groups: str) -> list[str]:
    """The requirements in pyproject.toml of these groups: names of extras, or "dependencies"."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    known = project["optional-dependencies"] | {"dependencies": project["dependencies"]}
    return [line for group in groups for line in known[group]]


def requirements(*extras: str | None) -> list[str]:
    """The requirements in pyproject.toml: its dependencies and these extras."""
    return direct("dependencies", *(extra for extra in extras if extra))


def locks(*names: str | None) -> list[Path]:
    """The paths of the locked files of these names in LOCKS."""
    return [LOCK_FOLDER / f"{name}.txt" for name in names if name]


def missing(wanted: list[str]) -> list[str]:
    """The requirements that this interpreter lacks. Only asv and its runner must have the exact version, since the
    plugins use their internals; on a machine without a network the others may have any version."""
    import importlib.metadata  # here and in `ensure`, since every command imports this module

    lacking = []
    for line in wanted:
        name, _, pin = line.partition("==")
        name = re.split(r"[<>=!~;\[ ]", name, maxsplit=1)[0]
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            lacking.append(line)
            continue
        if name in ("asv", "asv_runner") and version != pin:
            lacking.append(f"{line} (found {version})")
    return lacking


def _python(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def pip_install(python: Path | str, wanted: list[Path]) -> str:
    """Install locked files into an interpreter's environment; pip's last lines if it fails, "" if it succeeds. Python
    compiles what is imported when it is: most of the files never are."""
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes"]
    command += ["--no-compile"]
    command += [f"--requirement={path}" for path in wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else "\n".join(done.stderr.strip().splitlines()[-3:]) or "pip failed"


def has_pins(python: Path) -> bool:
    """Whether an existing environment has asv and its runner in the pinned versions, which the plugins need."""
    pins = [line for line in requirements("bench") if line.startswith(("asv==", "asv_runner=="))]
    ask = "import importlib.metadata as m; print(*(f'{n}=={m.version(n)}' for n in ('asv', 'asv_runner')))"
    try:
        done = subprocess.run([str(python), "-c", ask], capture_output=True, text=True, check=False)
    except OSError:
        return False
    return done.stdout.split() == pins


def _stamp(wanted: list[Path]) -> str:
    """What the environment is: the version of its own interpreter, whichever runs this, and what is installed. It
    stands in the file MARK once all of it is installed."""
    ask = [str(_python(HOME)), "-I", "-S", "-c", "import sys; sys.stdout.write(sys.version)"]
    try:
        version = subprocess.run(ask, capture_output=True, text=True, check=False).stdout
    except OSError:
        version = ""
    return hashlib.sha256("\n".join([version, *(path.read_text() for path in wanted)]).encode()).hexdigest()


def _is_made(wanted: list[Path], mark: str = MARK) -> bool:
    """Whether the environment is there with all that is wanted."""
    stamp = HOME / mark
    return stamp.is_file() and stamp.read_text() == _stamp(wanted)


def _users() -> list[str]:
    """The other processes of this machine that run from the environment: their numbers and commands."""
    users = []
    within = tuple({f"{HOME}{os.sep}", f"{HOME.resolve()}{os.sep}"})
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_text(errors="replace").split("\0")
            is_user = command[0].startswith(within)
            if not is_user:
                mapped = (process / "maps").read_text(errors="replace")
                is_user = any(folder in mapped for folder in within)
        except OSError:  # it has ended, or is another user's
            continue
        if is_user and process.name != str(os.getpid()):
            users.append(f"process {process.name} ({' '.join(command).strip()[:100]})")
    return users


@contextmanager
def _making() -> Iterator[None]:
    """Make the environment while no other process does; wait for one that does."""
    with ExitStack() as held:
        # No locks on Windows, nor on some file systems; in a folder that may not be written nothing can be made.
        with suppress(OSError, ImportError):
            import fcntl

            file = held.enter_context(HOME.with_name(f"{HOME.name}.lock").open("w"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"gpukernels: another process makes {HOME.name}/; waiting for it", file=sys.stderr)
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _made(tests: bool) -> bool:
    """Whether the project's interpreter is there, so that no command has to make it. `tests`: with what tests."""
    return bool(os.environ.get("GPUKERNELS_PYTHON")) or (
        _is_made(locks("tools", cuda_extra(), gpu_extra())) and (not tests or _is_made(locks("test"), TEST_MARK))
    )


def help_at_once(program: Path, tests: bool = False) -> None:
    """If help is all that is asked for, and the environment is not made yet, print what a program's docstring says, and
    exit: nobody waits minutes for a help text. The options need the environment, since the project names them."""
    if not {"-h", "--help"} & set(sys.argv[1:]) or os.environ.get(INSIDE) == str(ROOT) or _made(tests):
        return
    about = ast.get_docstring(ast.parse(program.read_text(encoding="utf-8"))) or ""
    print(f"usage: {called()} ...\n\n{about}\n")
    print(
        "Every command is described in docs/commands.md. The options are listed here once the environment is made,\n"
        "which any script does when it is called without --help."
    )
    raise SystemExit(0)


def ensure(tests: bool = False) -> str:
    """Make the project's interpreter if necessary; its path. `tests`: with what tests.

    Raises: SystemExit with a message if there is none.
    """
    python = _ensure_base()
    wanted = locks("test")
    if tests and python == str(_python(HOME)) and not _is_made(wanted, TEST_MARK):
        with _making():
            if not _is_made(wanted, TEST_MARK):
                _add(wanted)
    return python


def _add(wanted: list[Path]) -> None:
    """Install what tests beside what measures, if pip can."""
    print(f"gpukernels: adding what tests to {HOME.name}/ (once; 1.1 GB on disk)", file=sys.stderr)
    if why := pip_install(_python(HOME), wanted):
        last = why.splitlines()[-1]
        print(f"gpukernels: pip could not install ({last}); going on with {HOME.name}/ as it is", file=sys.stderr)
    else:
        (HOME / TEST_MARK).write_text(_stamp(wanted))


def _ensure_base() -> str:
    """Make the project's interpreter, with what measures, if necessary; its path. Raises: SystemExit."""
    chosen = os.environ.get("GPUKERNELS_PYTHON")
    if chosen:
        if not shutil.which(chosen):
            raise SystemExit(f"gpukernels: GPUKERNELS_PYTHON={chosen}: no such interpreter; give the path of one")
        return chosen
    wanted = locks("tools", cuda_extra(), gpu_extra())
    if _is_made(wanted):
        return str(_python(HOME))
    with _making():
        return str(_python(HOME)) if _is_made(wanted) else _make(wanted)


def _make(wanted: list[Path]) -> str:
    """Make the environment, or keep the one that is there; the path of the interpreter. Raises: SystemExit."""
    if users := _users():
        raise SystemExit(
            f"gpukernels: {HOME.name}/ is not what {LOCK_FOLDER.name}/ locks, and cannot be made anew while it is in "
            f"use by {', '.join(users)}; run this again when that has ended"
        )
    print(
        f"gpukernels: installing what {LOCK_FOLDER.name}/ locks into {HOME.name}/ "
        "(once; 0.7 GB on disk, or 1.3 GB with a GPU's libraries)",
        file=sys.stderr,
    )
    before = HOME.with_name(".venv.before")  # kept until the new environment works
    shutil.rmtree(before, ignore_errors=True)
    if HOME.exists():
        HOME.rename(before)
    import venv

    try:
        venv.EnvBuilder(with_pip=True).create(HOME)
        why = pip_install(_python(HOME), wanted)
    except (OSError, subprocess.CalledProcessError) as error:
        why = f"{type(error).__name__}: {error}"
    if not why:
        shutil.rmtree(before, ignore_errors=True)
        (HOME / MARK).write_text(_stamp(wanted))
        return str(_python(HOME))
    shutil.rmtree(HOME, ignore_errors=True)
    if before.exists():
        before.rename(HOME)
        if (HOME / MARK).is_file() and has_pins(_python(HOME)):
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


def enter(tests: bool = False) -> None:
    """Continue in the project's interpreter: return if this is it, else replace this process. `tests`: with what
    tests."""
    if os.environ.get(INSIDE) != str(ROOT):
        try:
            python = ensure(tests)
        except KeyboardInterrupt:
            print("interrupted; the next call makes the environment from the start", file=sys.stderr)
            raise SystemExit(130) from None
        except SystemExit as error:
            print(error, file=sys.stderr)
            raise SystemExit(CANNOT) from None
        os.environ[INSIDE] = str(ROOT)
        if python != sys.executable:
            sys.stdout.flush()
            os.execv(python, [python, *sys.argv])
    sys.path[:0] = [str(ROOT)]
    os.chdir(ROOT)


def pytest_arguments() -> list[str]:
    """The arguments of pytest for this machine. With a GPU, all tests run in one process. Without one, they are spread
    over two processes more than there are cores, since many tests wait for a browser or a limit; tests of an
    xdist_group share an expensive set-up and stay in one process. They start in the order of tests/conftest.py:
    pytest-xdist would begin with the groups of most tests, which are not those that take longest."""
    processes = str(len(os.sched_getaffinity(0)) + 2)
    return [] if driver_cuda() else ["-n", processes, "--dist", "loadgroup", "--no-loadscope-reorder"]


def called() -> str:
    """How the running script was called, such as scripts/lab/scale."""
    return Path(os.path.abspath(sys.argv[0])).relative_to(ROOT).as_posix()


def command(name: str) -> NoReturn:
    """Run a command of the engine in the project's interpreter, and exit with its code."""
    engine = ROOT / "kernelwatch"
    help_at_once(next(path for room in ("commands", "extras") for path in engine.glob(f"{room}/**/{name}.py")))
    enter()
    from kernelwatch.__main__ import run

    sys.exit(run(name, sys.argv[1:], called()))


def laboratory(file: str) -> NoReturn:
    """Run a program of the laboratory in the project's interpreter, and exit with its code. `file`: its __file__."""
    help_at_once(Path(file), tests=True)
    enter(tests=True)
    from kernelwatch.__main__ import code_of

    module = Path(file).with_suffix("").name
    sys.exit(code_of(f"scripts/lab/{module}", importlib.import_module(f"lab.{module}").main))


if __name__ == "__main__":
    if sys.argv[1:] != ["install"]:
        raise SystemExit("usage: environment.py install")
    # Also without a driver, since compile-time figures are measured everywhere.
    failure = pip_install(sys.executable, locks(cuda_extra() or "tools", gpu_extra()))
    if failure:
        raise SystemExit(f"gpukernels: pip could not install what a commit needs: {failure}")
