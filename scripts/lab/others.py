#!/usr/bin/env python3
"""Plants changes in a clone of Liger-Kernel, and writes the tables of links in docs/others.md and docs/links.md.

`plant DIR` makes the branch `planted` in a clone of Liger-Kernel: four commits on top of `main`, one of which changes
no launch, two make a kernel do 1 % and 3 % more work, and one makes a kernel wrong. Then copy the description
(examples/liger) into the clone and measure it with `kernelwatch link`. `figures` writes the tables from the links in
examples/liger/results and examples/sgemm_cuda/results.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelwatch.detect.judging import Judged, judge
from kernelwatch.history import links
from kernelwatch.history.links import Link, Session
from kernelwatch.report.arguments import Output, Parser
from kernelwatch.report.markdown import table
from kernelwatch.report.texts import change_text, time_text
from lab.figures import write_block
from lab.planted import HOUR, ROOT, WHO, run

PAGE, LINKS = ROOT / "docs" / "others.md", ROOT / "docs" / "links.md"
OWN = "own costs"  # the block of LINKS: what links of this repository cost
WRITER = "scripts/lab/others figures"


# --- planting ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plant:
    """A commit that replaces texts of one file: each pattern once, its first match. `explained`: for the table."""

    subject: str
    file: str
    replacements: tuple[tuple[str, str], ...]
    explained: str


OPS = "src/liger_kernel/ops"
PLANTS = (
    Plant(
        "Planted: nothing, a limit is written otherwise",
        f"{OPS}/utils.py",
        (("= 65536", "= 1 << 16"),),
        "nothing: a number is written otherwise, in a file that five ops import",
    ),
    Plant(
        "Planted: 1 % of softmax's rows are computed twice",
        f"{OPS}/softmax.py",
        (
            (r"X_row_stride,\n", r"X_row_stride,\n    n_rows,\n"),
            (r"row_id = tl\.program_id\(0\)", "row_id = tl.program_id(0) % n_rows"),
            (r"\[\(n_rows,\)\]\(\n(.*), n_cols", r"[(n_rows + n_rows // 100,)](\n\1, n_rows, n_cols"),
        ),
        "1 % of the rows are computed twice",
    ),
    Plant(
        "Planted: 3 % of SwiGLU's rows are computed twice",
        f"{OPS}/swiglu.py",
        (
            (r", n_cols: tl\.constexpr", ", n_rows, n_cols: tl.constexpr"),
            (r"tl\.program_id\(0\)\.to", "(tl.program_id(0) % n_rows).to"),
            (
                r"_swiglu_forward_kernel\[\(n_rows,\)\]\(((?:.*\n)*?)(.*float\(gate_multiplier\),\n)( *)",
                r"_swiglu_forward_kernel[(n_rows + n_rows * 3 // 100,)](\1\2\3n_rows,\n\3",
            ),
        ),
        "3 % of the rows are computed twice",
    ),
    Plant(
        "Planted: the forward pass of layer norm loads without its mask",
        f"{OPS}/layer_norm.py",
        ((r"(X_row = tl\.load\(.*), mask=mask, other=0\.0\)", r"\1)"),),
        "a load lost its mask, so rows that fill no power of two are wrong",
    ),
)


def plant(folder: Path) -> None:
    """Commit the plants on a branch of a clone. Raises: SystemExit if it is no such clone."""
    run(folder, "git", "checkout", "-q", "-B", "planted", "main")
    last = int(run(folder, "git", "log", "-1", "--format=%ct"))
    for at, each in enumerate(PLANTS, 1):
        path = folder / each.file
        text = path.read_text(encoding="utf-8")
        for pattern, new in each.replacements:
            text, count = re.subn(pattern, new, text, count=1)
            if not count:
                raise SystemExit(
                    f"scripts/lab/others: {each.file} of {folder} has no {pattern}; Liger-Kernel changed it"
                )
        path.write_text(text, encoding="utf-8")
        when = f"{last + at * HOUR} +0000"
        command = ("git", "-c", "commit.gpgsign=false", "commit", "-q", "--no-verify", "-m", each.subject, each.file)
        run(folder, *command, **WHO, GIT_AUTHOR_DATE=when, GIT_COMMITTER_DATE=when)


# --- tables --------------------------------------------------------------------------------------------------------

# What the flagged commits do, by their diffs.
EXPLAINED = {
    "6a2c4913": "backward: atomics for each row, where a program kept a sum over rows; forward: one subtraction less",
    "b27b4c5f": "the index of a row has 64 bits, against overflow",
    "540575bc": "a program keeps its sum over rows again, without atomics",
    "2ce9bdde": "pointers follow from the row's index, and are no longer carried through the loop",
    "63598637": "one more factor, an argument of the kernel",
    "692e3dc5": "variables that nothing used, and an assertion in the kernel, are gone",
    "eef5ec3b": "kernel 9 gets warp tiles",
    "beff22d4": "the barrier after the last tile is skipped, and the loop over tiles is to be unrolled",
    "97fb0117": "other tiles, tuned on another GPU",
    "49b3e8af": "less index arithmetic in the source",
    "9696ef85": "parameters that follow from others are gone; half the threads, wider tiles",
    "1d2038c7": "tiles as tuned",
    "c09b3507": "tiles as tuned on another GPU",
    "fd03f69d": "tiles as tuned",
    "1bc13530": "the barrier after the last tile is back",
    "0184e95a": "double buffering, which its subject calls slower",
    "67a113c7": "reverts the commit before",
    "7c15d6d4": "asynchronous copies",
}
# Ops that a commit's session timed though the commit does not touch their module: an A/A, by the diffs. They launch
# PyTorch's own kernels beside theirs.
UNTOUCHED = {
    "dd43660e": ("rms_norm", "layer_norm"),
    "ab07bfd6": ("rms_norm", "layer_norm"),
    "8d03e969": ("rms_norm", "layer_norm"),
    "fd8e29b6": ("rms_norm", "layer_norm"),
    "5101e3cd": ("layer_norm",),
    "91ae44ae": ("layer_norm",),
}
SITES = {"liger": "https://github.com/linkedin/Liger-Kernel", "sgemm_cuda": "https://github.com/siboehm/SGEMM_CUDA"}
PLANTED = "planted"


def sessions(example: str) -> list[Session]:
    """The recorded sessions of an example, as measured. Raises: SystemExit if a file cannot be read."""
    (folder,) = (ROOT / "examples" / example / "results").glob("*/")
    return read(folder)


def read(folder: Path) -> list[Session]:
    """The sessions in a machine's folder, as measured. Raises: SystemExit if a file cannot be read."""
    found, messages = links.read(folder)
    if messages:
        raise SystemExit("; ".join(messages))
    return found


def steps_of(example: str) -> list[Session]:
    return [session for session in sessions(example) if session.kind == "step"]


def own_steps() -> list[Session]:
    """Those of this repository, on the machine that has the most; of each commit the first, which made the history."""
    return first_steps(max((read(path) for path in (ROOT / "results").glob("*/")), key=len))


def first_steps(own: Sequence[Session]) -> list[Session]:
    """The first step to each commit from its parent. `own`: as measured."""
    found: dict[tuple[str, str], Session] = {}
    for session in (each for each in own if each.kind == "step"):
        found.setdefault((session.before, session.after), session)
    return [*found.values()]


def flagged(example: str) -> list[tuple[Session, Link, Judged]]:
    """The links by which a launch became slower or faster."""
    return [
        (session, link, judged)
        for session in steps_of(example)
        for verdicts in [judge(session)]
        for link in session.changed
        if (judged := verdicts[link.cell]).word in ("worse", "better")
    ]


def quiet(own: Sequence[Session]) -> list[Judged]:
    """The verdicts on links that moved neither way."""
    return [
        judged
        for session in own
        for verdicts in [judge(session)]
        for link in session.changed
        if (judged := verdicts[link.cell]).word in ("no change", "cannot tell")
    ]


def _commit(example: str, hash: str, planted: Sequence[str]) -> str:
    if hash in planted:
        return f"{PLANTED} {planted.index(hash) + 1}"
    return f"[{hash[:8]}]({SITES[example]}/commit/{hash})"


def planted_in(own: Sequence[Session]) -> list[str]:
    """The planted commits, the oldest first. They were measured before the others. `own`: as measured."""
    return [session.after for session in own[: len(PLANTS)]]


def tables() -> dict[str, str]:
    """The blocks of the page."""
    found: dict[str, str] = {}
    for example in SITES:
        own = steps_of(example)
        planted = planted_in(own) if example == "liger" else []
        why = EXPLAINED | {hash[:8]: each.explained for hash, each in zip(planted, PLANTS, strict=False)}
        rows = [
            [
                _commit(example, session.after, planted),
                link.cell.removesuffix(" cold").replace(" float32", ""),
                *map(time_text, link.seconds),
                change_text(math.expm1(judged.log)),
                " to ".join(map(change_text, judged.bounds)),
                why[session.after[:8]],
            ]
            for session, link, judged in flagged(example)
        ]
        rows.sort(key=lambda row: row[0].startswith(PLANTED))
        heads = ["commit", "launch", "before", "after", "change", "95 % interval", "what it does"]
        found[f"{example} flags"] = table(heads, rows)
        failed = [
            [_commit(example, session.after, planted), name.partition(" ")[0], reason.removeprefix("failed: ")]
            for session in own
            for name, reason in session.unjudged.items()
            if reason.startswith("failed")
        ]
        found[f"{example} failures"] = table(["commit", "rung", "why"], failed)
        found[f"{example} costs"] = _costs(own)
    return found | {OWN: _costs(own_steps())}


def _costs(own: Sequence[Session]) -> str:
    changing = [session for session in own if session.changed]
    alike = [session for session in own if not session.changed and not session.unjudged]
    calm = quiet(own)
    shares = sorted(abs(math.expm1(each.log)) for each in calm)
    gpu = changing[-1].conditions
    gpus = len({session.gpu for session in changing})
    facts = [
        ["GPUs, driver", f"{gpus} {gpu['gpu']}, {gpu['nvml_driver']}"],
        ["commits asked", str(len(own))],
        ["of which changed a launch", f"{len(changing)}, in {sum(len(each.changed) for each in changing)} cells"],
        ["of which changed none", f"{len(alike)}: median {_seconds(alike)}, most {_most(alike)}"],
        ["seconds for a commit that changed a launch", f"median {_seconds(changing)}, most {_most(changing)}"],
        ["all of it", f"{sum(session.seconds for session in own) / 60:.0f} min of one GPU"],
        [
            "launches that moved neither way",
            f"{len(calm)}: median {_percent(statistics.median(shares))}, 90 % within "
            f"{_percent(shares[math.ceil(0.9 * len(shares)) - 1])}, worst {_percent(shares[-1])}",
        ],
        ["of which not decided", str(sum(each.word == "cannot tell" for each in calm))],
        [
            "half-width of their 95 % interval",
            f"median {_percent(statistics.median(each.half() for each in calm))}",
        ],
    ]
    return table(["", ""], facts + _aa(own))


def _aa(own: Sequence[Session]) -> list[list[str]]:
    """A row of the links whose kernels did not change, if there are any."""
    found = [
        judge(session)[link.cell]
        for session in own
        for link in session.changed
        if link.cell.partition("/")[0] in UNTOUCHED.get(session.after[:8], ())
    ]
    if not found:
        return []
    shares = sorted(abs(math.expm1(each.log)) for each in found)
    called = sum(each.word in ("worse", "better") for each in found)
    what = f"{len(found)}: median {_percent(statistics.median(shares))}, worst {_percent(shares[-1])}"
    return [["A/A: links of modules that the commit does not touch", f"{what}; called slower or faster: {called}"]]


def _seconds(own: Sequence[Session]) -> str:
    return f"{statistics.median(session.seconds for session in own):.0f} s"


def _most(own: Sequence[Session]) -> str:
    return f"{max(session.seconds for session in own):.0f} s"


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def write_tables() -> None:
    """Write the tables into the page. Raises: SystemExit."""
    for name, text in tables().items():
        write_block(LINKS if name == OWN else PAGE, name, text, WRITER)


def main(arguments: list[str] | None = None) -> int:
    """Plant or write the tables; the exit code."""
    parser = Parser("scripts/lab/others", __doc__)
    parser.add_argument("what", choices=("plant", "figures"))
    parser.add_argument("folder", type=Path, nargs="?", help="plant: the clone of Liger-Kernel")
    options = parser.parse_args(arguments)
    if options.what == "figures":
        write_tables()
        return 0
    if options.folder is None or not (options.folder / OPS).is_dir():
        parser.error("plant needs the folder of a clone of Liger-Kernel")
    plant(options.folder.resolve())
    Output().print(f"the branch planted of {options.folder} has {len(PLANTS)} more commits than main")
    return 0
