"""Commands that run in forks of a process behave as in interpreters of their own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.preloaded import ENGINE, Preloaded
from tests.repositories import PRELOADED, end_group, processes_in, wait_until

TELLS = """
import atexit, os, sys, threading
atexit.register(print, "registered")
threading.Thread(target=lambda: (threading.main_thread().join(), print("a thread"))).start()
import beside, shadowed
print(sys.argv, os.getcwd(), os.environ.get("TOLD"), os.environ.get("PATH"), sys.stdin.read(), __name__)
print(beside.__file__, shadowed.__file__, sorted({"kernelwatch", "gpukernels", "tests"} & set(sys.modules)))
"""
ENDS = {
    "falls off": "",
    "a code": "import sys; sys.exit(3)",
    "a sentence": "raise SystemExit('why')",
    "nothing": "raise SystemExit(None)",
    "an error": "print('before')\n1 / 0",
    "a signal": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
}


def alone(folder: Path, variables: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=variables, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "arguments", [("scripts/program.py", "one", "two words"), ("-m", "package", "--option"), ("-c", TELLS, "one")]
)
def test_a_command_sees_what_it_is_given(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    for name in ("scripts", "package", "path"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "shadowed.py").touch()
    for name in ("scripts/beside.py", "beside.py", "package/__init__.py", "shadowed.py"):
        (tmp_path / name).touch()
    for name in ("scripts/program.py", "package/__main__.py"):
        (tmp_path / name).write_text(TELLS)
    variables = {"TOLD": "ä", "PYTHONPATH": str(tmp_path / "path"), "PYTHONIOENCODING": "utf-8"}
    done, expected = PRELOADED.run(arguments, tmp_path, variables), alone(tmp_path, variables, *arguments)
    assert expected.returncode == 0, expected.stderr
    assert (done.returncode, done.stdout, done.stderr) == (0, expected.stdout, expected.stderr)


PROGRAM = """
import os, signal, sys
import beside
own = sorted({"beside", "kernelwatch", "kernelwatch.own"} & set(sys.modules))
print(sys.argv, sys.path[:2], os.getcwd(), os.environ.get("TOLD"), own, len(os.listdir("/proc/self/fd")))
print(beside.__file__, *(signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGPIPE)))
print(sys.stdin.readline(), __name__)
print("to stderr", file=sys.stderr)
sys.exit(5)
"""
STARTS = """
import os, signal, subprocess, sys
import kernelwatch.own
signal.signal(signal.SIGTERM, print)
print("not the worker's")
sys.path.insert(0, "nowhere")
command = [sys.executable, *sys.argv[1:-1], os.path.abspath(sys.argv[-1]), "one"]
variables = {**os.environ, "TOLD": "to the worker"}
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
with subprocess.Popen(command, **pipes, text=True, env=variables) as worker:
    said = worker.communicate("a job\\n")
print(*said, worker.returncode)
"""


@pytest.mark.parametrize("program", [("-P", "kernelwatch/run/worker.py"), ("asv/benchmark.py",)])
def test_a_program_of_a_command_is_as_in_its_own_interpreter(tmp_path: Path, program: tuple[str, ...]) -> None:
    files = {program[-1]: PROGRAM, "path/beside.py": "", "beside.py": "", "program.py": STARTS}
    for name, text in {**files, "kernelwatch/__init__.py": "", "kernelwatch/own.py": ""}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    variables = {**os.environ, "PYTHONPATH": str(tmp_path / "path")}
    arguments = ("program.py", *program)
    done, expected = PRELOADED.run(arguments, tmp_path, variables), alone(tmp_path, variables, *arguments)
    assert "a job\n __main__\n to stderr\n 5\n" in expected.stdout, expected
    assert (done.returncode, done.stdout, done.stderr) == (0, expected.stdout, expected.stderr)


ASKS = """
import os, sys
from {module} import record
import kernelwatch.system.cache
print(record.TOLD, record.KNOWN, record.cached(), os.environ.get("TOLD"), record.__file__, sys.argv[1:])
"""
RECORD = """
import functools, os
TOLD, KNOWN = {told!r}, {{}}
@functools.cache
def cached():
    return os.environ.get("TOLD")
"""
ASKS_BY_A_WORKER = """
import os, subprocess, sys
import kernelwatch.timing.record as record
record.TOLD, record.KNOWN[record.cached()] = "changed by the command", True
os.environ["TOLD"] += " for the worker"
print(subprocess.run([sys.executable, sys.argv[1], "a job"], capture_output=True, text=True))
"""


@pytest.mark.parametrize("program", [("ask.py",), ("start.py", "kernelwatch/run/worker.py")])
def test_commands_of_one_copy_of_the_engine_are_as_in_interpreters_of_their_own(
    tmp_path: Path, program: tuple[str, ...]
) -> None:
    """Also after its files, a variable that it reads or its folder have changed."""
    asks = ASKS.format(module="kernelwatch.timing")
    files = {"ask.py": asks, "kernelwatch/run/worker.py": asks, "start.py": ASKS_BY_A_WORKER}
    server = Preloaded()

    def compare(engine: Path, **variables: str) -> str:
        given = {**os.environ, "PYTHONPATH": str(engine), **variables}
        done, expected = server.run(program, engine, given), alone(engine, given, *program)
        assert expected.returncode == 0, expected.stderr
        assert (done.returncode, done.stdout, done.stderr) == (0, expected.stdout, expected.stderr)
        return done.stdout

    def write(engine: Path, told: str) -> None:
        made = {f"kernelwatch/{name.replace('.', '/')}.py": "" for name in (*ENGINE, "system.cache")}
        made["kernelwatch/timing/record.py"] = RECORD.format(told=told)
        for name, text in {**made, **files}.items():
            for folder in [place for place in (engine / name).parents if place.is_relative_to(engine / "kernelwatch")]:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "__init__.py").touch()
            (engine / name).write_text(text)

    try:
        for name in ("one", "two"):
            write(tmp_path / name, f"of {name}")
            told = [compare(tmp_path / name, TOLD=f"time {at}") for at in range(3)]
            assert f"of {name} {{}} time 2" in told[2]
        write(tmp_path / "one", "of one, as it is now")
        assert all("as it is now" in compare(tmp_path / "one", TOLD="then") for _ in range(2))
        write(tmp_path / "two", "of two")
        (tmp_path / "one" / "kernelwatch" / "system" / "cache.py").write_text("broken")
        broken = [server.run(["ask.py"], tmp_path / "one", os.environ).stderr for _ in range(3)]
        assert all("NameError" in said for said in broken)
        assert server._process is not None
    finally:
        server.end()


ASV = """
import asv.environment, asv.plugin_manager, asv.util
derived = sorted(each.__name__ for each in asv.util.iter_subclasses(asv.environment.Environment))
plugins = [each.__name__ for each in asv.plugin_manager.plugin_manager._plugins]
print(derived, plugins, asv.util.load_json.__module__, hasattr(asv.environment.Environment, "more"))
"""
CHANGES_OF_ASV = {
    "nothing": "",
    "a class derived": "class Own(asv.environment.Environment): tool_name = 'own'",
    "a class of two": "class Own(asv.environment.Environment, asv.plugin_manager.PluginManager): tool_name = 'own'",
    "a name": "asv.util.load_json = print",
    "a name of a class": "asv.environment.Environment.more = 1",
    "what an object holds": "asv.plugin_manager.plugin_manager._plugins.append(sys)",
}


@pytest.mark.parametrize("change", CHANGES_OF_ASV)
def test_a_program_has_asv_as_it_is_whatever_its_command_did_to_it(tmp_path: Path, change: str) -> None:
    starts = (
        f"import asv.environment, asv.plugin_manager, asv.util, subprocess, sys\n{CHANGES_OF_ASV[change]}\n"
        "print(subprocess.run([sys.executable, sys.argv[1]], capture_output=True, text=True))\n"
    )
    (tmp_path / "asv").mkdir()
    for name, text in {"asv/benchmark.py": ASV, "program.py": starts}.items():
        (tmp_path / name).write_text(text)
    arguments = ("program.py", "asv/benchmark.py")
    done, expected = PRELOADED.run(arguments, tmp_path, {}), alone(tmp_path, {}, *arguments)
    assert "ExistingEnvironment" in expected.stdout, expected
    assert (done.returncode, done.stdout, done.stderr) == (0, expected.stdout, expected.stderr)


@pytest.mark.parametrize("end", ENDS)
def test_a_command_ends_as_it_does_alone(tmp_path: Path, end: str) -> None:
    (tmp_path / "program.py").write_text(ENDS[end])
    done = PRELOADED.run(["program.py"], tmp_path, os.environ)
    expected = alone(tmp_path, dict(os.environ), "program.py")
    assert (done.returncode, done.stdout) == (expected.returncode, expected.stdout)
    assert done.stderr.splitlines()[-1:] == expected.stderr.splitlines()[-1:]


def test_a_test_that_is_stopped_leaves_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "program.py").write_text("import subprocess; subprocess.run(['sleep', '1000'])")
    PRELOADED.run(["-m", "platform"], tmp_path, os.environ)  # it has started
    process = PRELOADED._process
    assert process is not None
    assert process.stdout is not None

    def interrupted() -> str:
        assert wait_until(lambda: processes_in(tmp_path, environment=True))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(process.stdout, "readline", interrupted)
        with pytest.raises(KeyboardInterrupt):
            PRELOADED.run(["program.py"], tmp_path, os.environ | {"HERE": str(tmp_path)})
    assert wait_until(lambda: not processes_in(tmp_path, environment=True))
    assert PRELOADED.run(["-m", "platform"], tmp_path, os.environ).returncode == 0


def test_copies_of_a_module_share_its_bytecode_and_not_its_place(tmp_path: Path) -> None:
    for name, text in (("one", "1"), ("two", "1"), ("other", "2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "told.py").write_text(f"def tell():\n    return {text}\n")
    program = "import told; print(told.tell(), told.__file__ == told.tell.__code__.co_filename, told.__file__)"
    for name, number in (("one", 1), ("two", 1), ("other", 2)):
        done = PRELOADED.run(["-c", program], tmp_path / name, {})
        assert done.stdout == f"{number} True {tmp_path / name / 'told.py'}\n", done.stderr


def test_a_command_in_the_background_is_a_process_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import os, subprocess, sys, time\n"
        "print(os.getsid(0) == os.getpid() != os.getppid(), *sys.argv[1:], flush=True)\n"
        "if sys.argv[1] == 'on': subprocess.run(['sleep', '1000'])\n"
        "sys.exit(3)\n"
    )
    endless, short = (PRELOADED.start(["program.py", word], tmp_path, os.environ) for word in ("on", "short"))
    assert (short.finish(), short.returncode) == ("True short\n", 3)
    assert wait_until(lambda: endless.said) == "True on\n"
    with pytest.raises(subprocess.TimeoutExpired):
        endless.wait(0.1)
    assert PRELOADED.run(["-m", "platform"], tmp_path, os.environ).returncode == 0  # beside it
    end_group(endless)
    assert endless.returncode == -signal.SIGKILL
