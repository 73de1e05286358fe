"""What an agent gets by the Model Context Protocol: the documents of the commands, and what their exit codes mean."""

import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kernelwatch.extras import mcp
from tests.repositories import ROOT, new_project
from tests.schemas import check

FUNCTIONS = """
from kernelwatch.system import clock


def numbers():
    return (list(range(100)),)


def total(x):
    clock.sleep(0.001)
    return sum(x)


def slow(x):
    clock.sleep(0.01)
    return sum(x)


def wrong(x):
    return sum(x) + 1
"""


@pytest.fixture
def folder(tmp_path: Path, exact_api: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Functions, which an engine measures that takes the cache for small and has an exact clock."""
    monkeypatch.setenv("PYTHONPATH", str(exact_api))
    (tmp_path / "sums.py").write_text(FUNCTIONS)
    return tmp_path


def in_a_thread(work: Callable[..., Awaitable[Any]], *arguments: str) -> Any:
    """What a coroutine returns. A browser of other tests leaves a loop of events running in the main thread."""
    import anyio  # here, as the SDK below: each of pytest-xdist's workers collects all tests, and one runs these

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(anyio.run, work, *arguments).result()


def asked(folder: Path, *calls: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """What the server returns to these calls of one session, which runs as an agent would run it."""
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    command = StdioServerParameters(
        command=sys.executable, args=["-m", "kernelwatch", "mcp"], env=dict(os.environ), cwd=folder
    )

    async def session() -> list[dict[str, Any]]:
        async with Client(stdio_client(command)) as client:
            known = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert known.keys() == {tool.__name__ for tool in mcp.TOOLS}
            assert all(tool.description for tool in known.values())
            found = []
            for name, arguments in calls:
                result = await client.call_tool(name, arguments)
                assert not result.is_error, result
                found.append(dict(result.structured_content or {}))
            return found

    found: list[dict[str, Any]] = in_a_thread(session)
    return found


def test_a_function_is_measured_and_compared(folder: Path) -> None:
    given = {"function": "sums.py:total", "args": "numbers"}
    alone, compared = asked(
        folder,
        ("measure_function", given | {"seconds": 0.02}),
        ("measure_function", given | {"function": "sums.py:slow", "against": "sums.py:total"}),
    )
    assert (alone["exit_code"], alone["meaning"]) == (0, "measured, and compared with nothing")
    check(alone["document"], "measure")
    assert (compared["exit_code"], compared["meaning"]) == (1, "slower")
    check(compared["document"], "measure")


def test_a_campaign_is_led(folder: Path) -> None:
    file = {"file": "search.jsonl"}
    given = {"original": "sums.py:total", "args": "numbers", "seconds": 0.5, "processes": 6}
    begun, refused, slower, crowned, known = asked(
        folder,
        ("start_campaign", file | given | {"judge": False}),
        ("try_candidate", file | {"candidate": "sums.py:wrong"}),
        ("try_candidate", file | {"candidate": "sums.py:slow"}),
        ("crown", file),
        ("show_campaign", file),
    )
    assert [each["exit_code"] for each in (begun, refused, slower, crowned, known)] == [0, 2, 1, 2, 0]
    for each in (begun, refused, slower, crowned, known):
        check(each["document"], "campaign")
    setting = begun["document"]["setting"]
    assert (setting["seconds"], setting["processes"]) == (0.5, 6)
    assert crowned["meaning"] == "none is crowned"
    assert known["document"]["tries"] == 2


def test_a_campaign_judges_what_an_agent_wrote(folder: Path) -> None:
    (folder / "doubled.py").write_text(
        "import time\nimport numpy as np\n"
        "def arrays(): return np.random.default_rng().random(100), np.zeros(100)\n"
        "def right(x, out): time.sleep(0.002); np.multiply(x, 2, out=out)\n"
        "def wrong(x, out): np.multiply(x, 3, out=out)\n"
    )
    file = {"file": "search.jsonl"}
    begun, refused, returns = asked(
        folder,
        ("start_campaign", file | {"original": "doubled.py:right", "args": "arrays"}),
        ("try_candidate", file | {"candidate": "doubled.py:wrong"}),
        ("start_campaign", {"file": "other.jsonl", "original": "sums.py:total", "args": "numbers"}),
    )
    assert begun["document"]["setting"]["judge"]
    assert (refused["exit_code"], refused["document"]["last"]["verdict"]) == (2, "refused")
    assert "100 of 100 elements wrong" in refused["document"]["last"]["why"]
    assert (returns["exit_code"], returns["document"]) == (128, None)
    assert "no array is among the arguments" in returns["said"]


def test_what_a_command_cannot_do_is_no_verdict(folder: Path) -> None:
    """Words of an agent are values: none is an option, and none reaches a shell."""
    answers = asked(
        folder,
        ("measure_function", {"function": "sums.py:nothing"}),
        ("measure_function", {"function": "--help"}),
        ("measure_function", {"function": "sums.py:total", "args": "numbers; touch broken"}),
        ("compare_commits", {"base": "HEAD~1", "head": "HEAD"}),
    )
    for answer in answers:
        assert (answer["exit_code"], answer["meaning"], answer["document"]) == (128, mcp.NO_VERDICT, None)
        assert "kernelwatch" in answer["said"]
    assert "nothing" in answers[0]["said"]
    assert not (folder / "broken").exists()


def test_a_command_that_dies_gives_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its exit code, 1, would mean "slower"."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    told = in_a_thread(mcp.run, "measure", "sums.py:total")
    assert told == {"exit_code": 1, "meaning": mcp.NO_VERDICT, "document": None, "said": ""}


def test_what_is_asked_reaches_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    echo = tmp_path / "python"
    echo.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[3:]))\n")
    echo.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(echo))

    async def told() -> list[Any]:
        return [
            (await mcp.compare_commits("A", "B", only="op/.*", exact=True, budget=9))["document"],
            (await mcp.measure_function("a.py:f", args="g", against="b.py:f", cache="hot", seconds=2))["document"],
            (await mcp.measure_function("a.py:f", args="g", reference="b.py:f", rtol=1e-5))["document"],
            (await mcp.measure_function("a.py:f", args="g", against="b.py:f", atol=1e-5))["document"],
            (await mcp.start_campaign("s.jsonl", "a.py:f", args="g", rtol=1e-5, atol=0.5))["document"],
            (await mcp.start_campaign("s.jsonl", "a.py:f", args="g", judge=False))["document"],
        ]

    assert in_a_thread(told) == [
        ["versus", "--json", "--only=op/.*", "--budget=9", "--exact", "--", "A", "B"],
        ["measure", "--json", "--args=g", "--against=b.py:f", "--cache=hot", "--seconds=2", "--", "a.py:f"],
        [
            *("measure", "--json", "--args=g", "--cache=cold", "--judge=b.py:f", "--rtol=1e-05", "--atol=0.0"),
            *("--", "a.py:f"),
        ],
        [
            *("measure", "--json", "--args=g", "--against=b.py:f", "--cache=cold", "--rtol=0.0", "--atol=1e-05"),
            *("--", "a.py:f"),
        ],
        ["campaign", "start", "--json", "--args=g", "--rtol=1e-05", "--atol=0.5", "--judge", "--", "s.jsonl", "a.py:f"],
        ["campaign", "start", "--json", "--args=g", "--rtol=0.0", "--atol=0.0", "--", "s.jsonl", "a.py:f"],
    ]


def test_words_that_no_command_line_holds_are_no_verdict() -> None:
    for word in ("a\0.py:f", "a" * (1 << 22)):
        told = in_a_thread(mcp.measure_function, word)
        assert (told["exit_code"], told["meaning"], told["document"]) == (128, mcp.NO_VERDICT, None)
        assert told["said"].startswith("kernelwatch measure cannot be started: ")


def test_an_argument_that_no_tool_has_is_refused() -> None:
    """Left out, a comparison would be a measurement, whose exit code is 0."""
    from mcp import Client

    async def session() -> list[Any]:
        async with Client(mcp.server()) as client:
            schemas = [tool.input_schema for tool in (await client.list_tools()).tools]
            call = await client.call_tool("measure_function", {"function": "sums.py:slow", "baseline": "sums.py:total"})
            return [call, *schemas]

    call, *schemas = in_a_thread(session)
    assert call.is_error
    assert "baseline" in call.content[0].text
    assert all(schema["additionalProperties"] is False for schema in schemas)


def test_two_commits_are_compared_by_exact_figures(folder: Path) -> None:
    """A commit and itself, which launch the same."""
    project = new_project(folder, "columns")
    data = ROOT / "tests" / "data" / "counted"
    shutil.copytree(data, project.folder, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    project.commit_all("One kernel")
    (told,) = asked(
        project.folder,
        ("compare_commits", {"base": "HEAD", "head": "HEAD", "exact": True, "only": "scale", "budget": 9}),
    )
    assert told["exit_code"] == 0
    check(told["document"], "versus")
    assert told["document"]["base"]["commit"] == told["document"]["head"]["commit"]


def test_without_the_sdk_it_says_what_to_install(folder: Path) -> None:
    hidden = "import sys; sys.modules['mcp'] = None; from kernelwatch.__main__ import main; sys.exit(main(['mcp']))"
    done = subprocess.run(
        [sys.executable, "-c", hidden], cwd=folder, text=True, capture_output=True, check=False
    )  # fmt: skip
    assert done.returncode == 128
    assert "; install kernelwatch[mcp]" in done.stderr
    assert "Traceback" not in done.stderr
