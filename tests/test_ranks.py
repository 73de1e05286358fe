"""The processes of a rung of several GPUs: their life and their death."""

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from kernelwatch.extras.several.ranks import RankError, Ranks
from tests.repositories import wait_until

LONG_S = 600.0  # more than any of these tests takes

# A rank that answers a request by running the statement that it holds.
PROGRAM = """
import json, os, signal, sys, time
def say(**message):
    print(json.dumps(message), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    exec(request["do"])
"""


def ranks(count: int, silence_s: float = LONG_S) -> Ranks:
    return Ranks([sys.executable, "-S", "-c", PROGRAM], count, os.environ, silence_s)


def ask(team: Ranks, *statements: str) -> list[Any]:
    return team.ask([{"do": statement} for statement in statements])


PID = "say(result=os.getpid())"
WAITS = "time.sleep(600)"


def gone(processes: list[int]) -> bool:
    for process in processes:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            continue
        return False
    return True


def test_answers_come_in_the_order_of_the_ranks() -> None:
    team = ranks(3)
    late = "say(at='work'); time.sleep(0.2); say(result='late')"
    assert ask(team, late, "print('noise'); say(result=[1, 2])", "say(result=None)") == ["late", [1, 2], None]
    assert ask(team, "say(result='alone')") == ["alone"]
    processes = ask(team, PID, PID, PID)
    assert len(set(processes)) == 3
    team.close()
    assert gone(processes)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "rank 1 of 3 was killed by SIGKILL"),
        (
            "sys.stderr.write('no more memory'); sys.stderr.flush(); os._exit(7)",
            "rank 1 of 3 died with exit code 7: no",
        ),
        ("raise OSError('the link is down')", "OSError: the link is down"),
        ("say(error='ValueError: a bad shape', kind='')", "rank 1 of 3: ValueError: a bad shape"),
    ],
)
def test_a_lost_rank_is_named_and_ends_all(fault: str, words: str) -> None:
    team = ranks(3)
    processes = ask(team, PID, PID, PID)
    with pytest.raises(RankError) as error:
        ask(team, WAITS, fault, WAITS)
    assert words in str(error.value)
    assert gone(processes)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("say(at='enqueued it'); " + WAITS, WAITS, "rank 1 of 2 hangs: nothing for 1 s"),
        (WAITS, "say(at='loaded it'); " + WAITS, "rank 0 of 2 hangs: nothing for 1 s"),
        ("say(result=0)", "say(at='loaded it'); " + WAITS, "rank 1 of 2 hangs: nothing for 1 s after it loaded it"),
        (WAITS, WAITS, "ranks 0, 1 of 2 hang: nothing for 1 s"),
    ],
)
def test_a_rank_that_hangs_is_named_not_those_that_wait_for_it(first: str, second: str, words: str) -> None:
    team = ranks(2)
    processes = ask(team, PID, PID)
    ask(team, "say(result=0)", "say(at='loaded it'); say(result=0)")  # an earlier request does not count
    team.silence_s = 1.0  # not before they have started, which takes long on a busy machine
    with pytest.raises(RankError) as error:
        ask(team, first, second)
    assert str(error.value) == words
    assert gone(processes)


def test_a_rank_that_died_between_two_requests_is_named() -> None:
    team = ranks(2)
    processes = ask(team, PID, PID)
    os.kill(processes[1], signal.SIGKILL)
    with pytest.raises(RankError, match="rank 1 of 2 was killed by SIGKILL"):
        ask(team, PID, PID)
    assert gone(processes)


def test_ctrl_c_ends_all_ranks() -> None:
    team = ranks(2)
    processes = ask(team, PID, PID)
    with pytest.raises(KeyboardInterrupt):
        ask(team, f"os.kill({os.getpid()}, signal.SIGINT); {WAITS}", WAITS)
    assert gone(processes)


def test_ranks_end_with_a_parent_that_was_killed() -> None:
    """The real program of a rank, which waits for its next request."""
    code = (
        "import sys, os\n"
        "from kernelwatch.extras.several.ranks import Ranks\n"
        "from kernelwatch.extras.several.timer import START, ENGINE\n"
        "team = Ranks([sys.executable, '-P', '-c', START, str(ENGINE)], 2, os.environ, 60.0)\n"
        "try: team.ask([{'do': 'nothing'}])\n"
        "except Exception as error: print(error)\n"
        "team = Ranks([sys.executable, '-P', '-c', START, str(ENGINE)], 2, os.environ, 60.0)\n"
        "print(*(rank.process.pid for rank in team._ranks), flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert "has no attribute 'nothing'" in parent.stdout.readline()
        processes = list(map(int, parent.stdout.readline().split()))
        assert len(processes) == 2
        assert not any(gone([process]) for process in processes)
        parent.kill()
    assert wait_until(lambda: gone(processes))
