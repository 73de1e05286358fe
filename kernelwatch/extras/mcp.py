"""Offer verdicts to agents by the Model Context Protocol: `kernelwatch mcp`, a server on its standard input and output.

Each tool runs a command of this engine in the current folder, as a process of its own, and returns the document that
the command prints with --json (docs/agents.md). The server decides nothing, and a fault of a command is no verdict.
"""

import json
import sys
from typing import Annotated, Any, Literal

from kernelwatch.report.arguments import Parser
from kernelwatch.system.errors import CANNOT, UserError

INSTRUCTIONS = """Measurements of GPU kernels and verdicts on changes of their speed.
Each result has an exit code, what it means, and the document of a command: its schema, verdict, ratio, interval and why
it is undecided. Report a change only if the verdict says so, with its interval and device. "Cannot tell" is not "no
change". Never repeat a comparison until it says what is wanted. To choose among several variants use a campaign, and
report only what it crowns: the ratio of a try is no result."""

NO_VERDICT = "no verdict: the command could not do its job"
MEANINGS = {  # of the exit codes, by what was asked
    "versus": {0: "no change, or better", 1: "worse", 2: "cannot tell, or the second commit fails"},
    "measure": {0: "measured, and compared with nothing"},
    "measure, compared": {0: "faster or the same", 1: "slower", 2: "cannot tell"},
    "start": {0: "the campaign has begun"},
    "try": {0: "faster or the same, which is no result yet", 1: "slower", 2: "cannot tell, or refused"},
    "crown": {0: "a candidate is crowned", 2: "none is crowned"},
    "show": {0: "what is known"},
}
SAID_MOST = 4_000  # characters of what a command says beside its document

Function = Annotated[str, "MODULE:FUNCTION, or FILE.py:FUNCTION"]
Cache = Literal["cold", "hot"]


async def run(asked: str, *arguments: str) -> dict[str, Any]:
    """Run a command; `asked`: what is asked of it, as in MEANINGS. An agent that no longer waits ends it."""
    import anyio  # of the SDK

    command = ["campaign", asked] if asked in ("start", "try", "crown", "show") else [asked]
    words = [sys.executable, "-m", "kernelwatch", *command, "--json", *arguments]
    try:
        done = await anyio.run_process(words, check=False)
    except (OSError, ValueError) as error:  # words that no command line can hold
        said = f"kernelwatch {' '.join(command)} cannot be started: {error}"
        return {"exit_code": CANNOT, "meaning": NO_VERDICT, "document": None, "said": said[-SAID_MOST:]}
    try:
        document = json.loads(done.stdout)
    except ValueError:
        document = None
    compared = isinstance(document, dict) and document.get("comparison")
    known = MEANINGS[f"{asked}, compared" if compared else asked]
    meaning = known.get(done.returncode, NO_VERDICT) if document else NO_VERDICT
    said = done.stderr.decode(errors="replace").strip()[-SAID_MOST:]
    return {"exit_code": done.returncode, "meaning": meaning, "document": document, "said": said}


def options(**given: object) -> list[str]:
    """The options of a command line that are given: neither None nor ""."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value not in (None, "")]


async def compare_commits(
    base: str, head: str, only: str = "", exact: bool = False, budget: float | None = None
) -> dict[str, Any]:
    """Compare the kernels of two commits of the repository in the current folder, which take turns on the GPU.

    only: a regular expression on cells, such as "matmul/tiled float32"; by default those whose launch changed.
    exact: time nothing, and compare registers, spills, instructions and counted accesses. Needs no GPU.
    budget: seconds of measuring; more decide smaller changes.
    """
    return await run("versus", *options(only=only, budget=budget), *(["--exact"] if exact else []), "--", base, head)


async def measure_function(
    function: Function,
    args: str = "",
    against: str = "",
    cache: Cache = "cold",
    seconds: float | None = None,
    reference: str = "",
    rtol: float = 0.0,
    atol: float = 0.0,
) -> dict[str, Any]:
    """Measure a function, or compare it with another one (`against`) in turns.

    args: a function that returns the arguments. seconds: how long to measure in each process.
    reference: a trusted function that writes the right outputs; the function is then judged from another process, as
    everything should be that an agent wrote. rtol, atol: tolerances of an output, relative and absolute.
    """
    asked = options(args=args, against=against, cache=cache, seconds=seconds, judge=reference)
    asked += options(rtol=rtol, atol=atol) if reference or rtol or atol else []
    return await run("measure", *asked, "--", function)


async def start_campaign(
    file: str,
    original: Function,
    args: str,
    rtol: float = 0.0,
    atol: float = 0.0,
    judge: bool = True,
    seconds: float | None = None,
    processes: int | None = None,
) -> dict[str, Any]:
    """Begin a search for a function that is faster than an original: one for each search.

    file: where the campaign is kept, such as search.jsonl. args: a function that returns the arguments.
    rtol, atol: tolerances of an output, relative to the original's and absolute.
    judge: run each candidate in a process that does not time it. Its functions write their outputs into array
    arguments. Only a person should turn it off.
    seconds: how long to measure in each process. processes: of a confirmation, an even number; more show smaller gains.
    """
    asked = options(args=args, rtol=rtol, atol=atol, seconds=seconds, processes=processes)
    return await run("start", *asked, *(["--judge"] if judge else []), "--", file, original)


async def try_candidate(file: str, candidate: Function) -> dict[str, Any]:
    """Compare a candidate with the original of a campaign. Its ratio says whether it is worth another look, no more."""
    return await run("try", "--", file, candidate)


async def crown(file: str) -> dict[str, Any]:
    """Measure the most promising candidates of a campaign again, and crown the first that is surely faster.

    It is the only result that may be reported. Each call makes the next one stricter.
    """
    return await run("crown", "--", file)


async def show_campaign(file: str) -> dict[str, Any]:
    """The tries and confirmations of a campaign, and what is left of its chance of error."""
    return await run("show", "--", file)


TOOLS = (compare_commits, measure_function, start_campaign, try_candidate, crown, show_campaign)


def server() -> Any:
    """The server, an mcp.server.MCPServer with TOOLS. Raises: UserError if the SDK is not installed."""
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.tools import Tool
    except ImportError as error:
        raise UserError(f"it needs the package mcp ({error}); install kernelwatch[mcp]") from None
    tools = [Tool.from_function(tool) for tool in TOOLS]
    for tool in tools:  # the SDK leaves out what it does not know: with "baseline" nothing would be compared
        model = tool.fn_metadata.arg_model
        model.model_config["extra"] = "forbid"
        model.model_rebuild(force=True)
        tool.parameters = model.model_json_schema()
    return MCPServer("kernelwatch", instructions=INSTRUCTIONS, log_level="WARNING", tools=tools)


def main(prog: str, arguments: list[str]) -> int:
    """Serve until the standard input ends."""
    Parser(prog, __doc__).parse_args(arguments)
    server().run("stdio")
    return 0
