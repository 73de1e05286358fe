"""Small repositories that tests build in temporary folders: copies of this project, and bare projects of asv's."""

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from kernelwatch.system import lifeline
from tests.preloaded import Background, Preloaded

ROOT = Path(__file__).resolve().parents[1]
FILES = (
    "gpukernels", "kernelwatch", "benchmarks", "scripts", "requirements", "asv.conf.json", "pyproject.toml",
    ".gitignore",
)  # fmt: skip
CELLS = r"transpose/(numpy|c_blocked|c_lines) float32 256x256"
MADE = shutil.ignore_patterns("*.pyc.*", ".*_cache")  # another process may be writing a .pyc.1234
PERSON = {f"GIT_{role}_{what}": "a@b.org" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
# What runs in the background ignores the terminal's interrupt, and so would its children.
INTERRUPTIBLE = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL);"
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)

PRELOADED = Preloaded()  # one in each of pytest-xdist's workers

MEMORY_BYTES, CPU_S = 4 << 30, 60
# A Python program that would take all memory, or never end, is stopped also if the test itself is killed.
LIMITED = (
    f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_AS, ({MEMORY_BYTES},) * 2);"
    f"resource.setrlimit(resource.RLIMIT_CPU, ({CPU_S},) * 2);"
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


def copy_into(folder: Path, files: Iterable[str] = FILES) -> None:
    """Files and folders of this project, with their bytecode; its engine has a `small_cache`."""
    for name in files:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=MADE)
        else:
            shutil.copy(ROOT / name, folder / name)
    if (folder / "kernelwatch").is_dir():
        small_cache(folder / "kernelwatch")


HARNESS = ("kernelwatch", "scripts", "requirements")


def uncommitted_harness(folder: Path) -> None:
    """Keep the engine out of a copy's commits, which are exported whole for each comparison: it is the checkout's."""
    exclude = folder / ".git" / "info" / "exclude"
    exclude.write_text("".join(f"/{name}/\n" for name in HARNESS), encoding="utf-8")


def without_suites(folder: Path, *names: str) -> None:
    """Take suites of this project out of a copy, so that asv does not look through them in each run."""
    for name in names:
        (folder / "benchmarks" / f"{name}.py").unlink()


def few_rungs(folder: Path, names: Collection[str]) -> None:
    """Leave the rungs of these names in a copy's ladder: each of the others costs a compilation wherever something
    concerns all rungs."""
    ladder = folder / "gpukernels" / "ladder.toml"
    tables = re.split(r"(?m)^(?=\[)", ladder.read_text(encoding="utf-8"))
    named = [re.search(r'^name = "(.*)"$', table, re.MULTILINE) for table in tables]
    kept = [table for table, name in zip(tables, named, strict=True) if not name or name[1] in names]
    ladder.write_text("".join(kept), encoding="utf-8")


def small_cache(engine: Path) -> None:
    """Have an engine believe that this CPU's cache is small, so that its workers fill little memory with buffers."""
    rewrite(engine, {"timing/cpu.py": {"CACHE_BYTES_MAX = 256 << 20": "CACHE_BYTES_MAX = 4 << 20"}})


def cpu_processes(count: int) -> dict[str, dict[str, str]]:
    """A change of a copied engine: so many processes time a cell on the CPU."""
    of_cpu = '"kernelwatch.timing.cpu:Cpu",\n            holds="CPU",\n            processes='
    return {"kernelwatch/plan/devices.py": {f"{of_cpu}3": f"{of_cpu}{count}"}}


# Where the clock is exact (OWN_CLOCK), two turns decide.
FEWEST_TURNS = {"kernelwatch/comparison/paired.py": {"LOOKS = (4, 6, 10, 16, 24, 36)": "LOOKS = (2, 4, 6, 10)"}}

# The seconds of a CPU cell are the function calls of its process, a microsecond each: what else this machine does moves
# no verdict. Kernels in C, which make no such calls, say how much they work (WORKS): they add to an integer of the C
# library, which all libraries of a process share. Only parsers of command lines write to it, such as getopt.
WORKS = "extern int optopt;"
CALLS = """
import ctypes
import sys
import time
from types import SimpleNamespace

_calls = 0
_work = ctypes.c_int.in_dll(ctypes.CDLL(None), "optopt")


def _count(*_):
    global _calls
    _calls += 1


def _now():
    sys.setprofile(_count)
    return 1e-6 * (_calls + _work.value)


time = SimpleNamespace(perf_counter=_now)
"""
OWN_CLOCK = {"kernelwatch/timing/cpu.py": {"import time\n": CALLS}}
# The API asks another clock than a cell's worker. Functions pass its time by calling its `sleep`, which nobody waits
# for; nothing else takes any, but a millisecond between two looks, so that few calls are a sample of what takes none.
PASSED = """
_now = 0.0


def sleep(seconds):
    global _now
    _now += seconds


def perf_counter():
    sleep(1e-3)
    return _now


monotonic = perf_counter
"""
PASSED_CLOCK = {"kernelwatch/system/clock.py": {"from time import monotonic, perf_counter, sleep\n": PASSED}}
# One launch is a sample then, and few numbers fill the operands.
FEW_SAMPLES = {
    "kernelwatch/plan/devices.py": {"Budget(samples=7, sample_s=0.004)": "Budget(samples=2, sample_s=1e-6)"},
    "kernelwatch/timing/cpu.py": {"random(1 << 20, np.float32)": "random(1 << 12, np.float32)"},
}
# After `small_cache`: a function call takes as long with any cache, and each process binds a launch to every buffer.
FEW_BUFFERS = {"kernelwatch/timing/cpu.py": {"CACHE_BYTES_MAX = 4 << 20": "CACHE_BYTES_MAX = 256 << 10"}}
# A judge fills all of the arena anew before each of its rounds, however short they are.
SMALL_ARENA = {"kernelwatch/api/judge/memory.py": {"HOST_ARENA_BYTES = 64 << 20": "HOST_ARENA_BYTES = 16 << 20"}}
SMALL_ENGINE = (FEWEST_TURNS, OWN_CLOCK, FEW_SAMPLES, FEW_BUFFERS, SMALL_ARENA, cpu_processes(1))


@contextmanager
def without_modules(*names: str) -> Iterator[None]:
    """Forget the modules of these packages here, and afterwards what was imported in their place."""

    def taken() -> dict[str, object]:
        return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in names}

    known = taken()
    try:
        yield
    finally:
        taken()
        sys.modules.update(known)  # type: ignore[arg-type]


SMALLER = """

import dataclasses

PROJECT = dataclasses.replace(
    PROJECT, problems=tuple(dataclasses.replace(problem, {fields}) for problem in PROJECT.problems)
)
"""


def smaller(folder: Path, **fields: str) -> None:
    """Describe the problems of a copy of this project with other values of some fields, whichever ops there are: each
    an expression, in which `problem` is the one that it is of."""
    values = ", ".join(f"{name}={expression}" for name, expression in fields.items())
    with (folder / "benchmarks" / "project.py").open("a", encoding="utf-8") as file:
        file.write(SMALLER.format(fields=values))


def rewrite(folder: Path, edits: Mapping[str, Mapping[str, str]]) -> None:
    """Replace texts in files, each of which stands there once. `edits`: by file, the new text by the old one."""
    for file, pairs in edits.items():
        text = (folder / file).read_text(encoding="utf-8")
        for old, new in pairs.items():
            assert text.count(old) == 1, (file, old)
            text = text.replace(old, new)
        (folder / file).write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class Project:
    """A repository, and a home folder that is not the user's."""

    folder: Path
    home: Path
    preloaded: ClassVar[Preloaded] = PRELOADED

    def environment(self, **more: str) -> dict[str, str]:
        """What its commands run with: nothing of a run or a project that the tests themselves are in."""
        left = {name: value for name, value in os.environ.items() if name != lifeline.MARK}
        own = {"HOME": str(self.home), "GPUKERNELS_PYTHON": sys.executable, "COLUMNS": "200"}
        return left | PERSON | own | {"PYTHONPATH": "", "NO_COLOR": "1"} | more

    def run(self, *command: str, **more: str) -> "subprocess.CompletedProcess[str]":
        """A command with nothing to answer questions with. `more`: environment variables."""
        program, *arguments = command
        if program == sys.executable and (arguments[0] in ("-m", "-c") or not arguments[0].startswith("-")):
            return self.preloaded.run(arguments, self.folder, self.environment(**more))
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment(**more),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def begin(self, *arguments: str, **more: str) -> Background:
        """A Python program in the background: a script or `-m` and a module, then its own arguments."""
        return self.preloaded.start(arguments, self.folder, self.environment(**more))

    def git(self, *arguments: str) -> str:
        done = self.run("git", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.rstrip()

    def commit_all(self, message: str, *options: str) -> str:
        """Commit all that lies there; the hash."""
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message, *options)
        return self.git("rev-parse", "HEAD")

    def bench(self, *arguments: str, only: str = CELLS, **more: str) -> "subprocess.CompletedProcess[str]":
        """scripts/bench, of these cells only."""
        chosen = ("--only", only) if only else ()
        return self.run(sys.executable, "scripts/bench", *arguments, *chosen, **more)

    def asv(self, *arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
        return self.run(sys.executable, "-m", "asv", *arguments, **more)

    def python(self, code: str) -> str:
        """What a program prints that imports from the repository."""
        done = self.run(sys.executable, "-c", code, PYTHONPATH=str(self.folder))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def new_project(base: Path, name: str = "project") -> Project:
    """An empty repository under a folder."""
    project = Project(base / name, base / "home")
    project.folder.mkdir()
    project.home.mkdir()
    project.git("init", "-q", "-b", "main")
    return project


ALONE = """
from kernelwatch.asv import {name} as module


def setup():
    getattr(module, "setup", lambda: None)()
"""


# asv's own pages without a network, and nothing else of the engine.
OFFLINE = """
import shutil
from pathlib import Path

from asv.commands.publish import Publish

from kernelwatch.publish.offline import SITE, make_offline

publish_by_itself = Publish.run


def publish(conf, *arguments, **options):
    publish_by_itself(conf, *arguments, **options)
    shutil.copytree(SITE / "asv", conf.html_dir, ignore=shutil.ignore_patterns("regressions.js"), dirs_exist_ok=True)
    make_offline(Path(conf.html_dir))


def setup():
    Publish.run = staticmethod(publish)
"""


def alone(name: str) -> str:
    """One part of the engine's plugin, or OFFLINE, as asv's configuration names it after `link_engine`."""
    return f".alone_{name}"


def link_engine(folder: Path) -> None:
    """Have an asv project find the engine, and each part of its plugin by itself."""
    (folder / "kernelwatch").symlink_to(ROOT / "kernelwatch")
    for path in (ROOT / "kernelwatch" / "asv").glob("[!_]*.py"):
        (folder / f"alone_{path.stem}.py").write_text(ALONE.format(name=path.stem))
    (folder / "alone_offline.py").write_text(OFFLINE)


def processes_in(folder: Path, environment: bool = False) -> dict[int, str]:
    """The living processes that name a folder in their command line, or in their environment if that counts, and their
    command lines."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
            told = command + ((entry / "environ").read_bytes() if environment else b"")
        except OSError:  # it has gone, or is another's
            continue
        if str(folder).encode() in told and entry.name != str(os.getpid()):
            found[int(entry.name)] = command.replace(b"\0", b" ").decode()
    return found


def end_group(process: "subprocess.Popen[Any] | Background") -> None:
    """Kill a process that leads a session, and everything that it has started."""

    def gone() -> bool:
        has_ended = process.poll() is not None  # else it has no session yet: it has only just begun
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return has_ended
        return False

    wait_until(gone, 10)  # longer only where nobody waits for the orphans of a container


def wait_until(true: Callable[[], Any], limit_s: float = 600.0, pause_s: float = 0.02) -> Any:
    """What `true` returns as soon as it is something; None if it never is: the limit is for what hangs."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if found := true():
            return found
        time.sleep(pause_s)
    return None


def module_of(source: Path) -> Any:
    """The module of a rung, which the package imports under no name of its own."""
    spec = importlib.util.spec_from_file_location(f"{source.stem}_rung", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
