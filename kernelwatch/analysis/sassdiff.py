"""Compare the SASS of a kernel before and after a commit: which instructions were removed and added, of which kind.

A compiler that changes one thing gives out registers anew and schedules in another order. So instructions are aligned
without the numbers of registers and predicates and without addresses; opcodes, modifiers and immediate operands count.
An instruction that was removed in one place and added in another has only moved.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from kernelwatch.analysis.sass import CLASSES, MIX, WIDTHS, class_of

AROUND = 2  # instructions that are shown before and after each difference
MOST_ROWS = 400  # of a diff
ALIGNED_MOST = 4_000  # instructions of a kernel; aligning twice as many takes four times as long

LINE = re.compile(r"^\s*/\*([0-9a-f]+)\*/[\s{]*(@!?U?P\w+)?\s*([A-Z][\w.]*)([^;]*);?", re.MULTILINE)
JUMPS = re.compile(r"BRA|BRX|JMP|BSSY|CALL|RET|WARPSYNC|BREAK")
REGISTER = re.compile(r"\b(U?[RPB])\d+\b(?:\.reuse)?")  # R12, UR4, P0, UP1, B3; not RZ, PT
ADDRESS = re.compile(r"\b0x[0-9a-f]+\b")
# Ways to write the same, between which the compiler chooses by which unit is idle.
SAME = (
    (re.compile(r"^IMAD\.MOV\.U32 R, RZ, RZ, "), "MOV R, "),
    (re.compile(r"^IMAD\.IADD R, R, 0x1, "), "IADD3 R, R, RZ, "),
    (re.compile(r"^IMAD\.X "), "IADD3.X "),
)
# What explains most changes of time, in the order in which it is told: spills, shared and global memory with the width
# of an access, barriers, special functions, tensor instructions, exchanges between lanes, atomics.
SUSPECTS = re.compile(
    rf"LDL|STL|LDS|STS|LDSM|STSM|LDG|STG|LDGSTS|UBLK\w+|UTMA\w+|BAR|MUFU|{MIX['tensor']}|SHFL|NOP|ATOM\w*|RED\w*"
)
WIDE = re.compile(r"LD|ST|LD[GSLC]|ST[GSL]|LDGSTS")  # whose suffix is the width of an access
WHOLE = re.compile(rf"MUFU|LDSM|STSM|{MIX['tensor']}")  # of which the whole name counts


@dataclass(frozen=True)
class Instruction:
    """An instruction: its address, guard ("@!P0", or ""), name and operands."""

    address: int
    guard: str
    name: str
    operands: str

    @property
    def text(self) -> str:
        return " ".join(filter(None, (self.guard, self.name, self.operands)))

    @property
    def key(self) -> str:
        """What is compared: without the numbers of registers and predicates, and without addresses."""
        operands = REGISTER.sub(r"\1", self.operands)
        if JUMPS.match(self.name):
            operands = ADDRESS.sub("LABEL", operands)
        text = f"{self.name} {operands}".strip()
        for pattern, same in SAME:
            text = pattern.sub(same, text)
        return ("@P " if self.guard else "") + text

    @property
    def opcode(self) -> str:
        """Its name, with the width of an access of memory: "LDS.128"; of a tensor instruction all of its name."""
        base, *suffixes = self.name.split(".")
        if WHOLE.fullmatch(base):
            return self.name
        width = next((each for each in suffixes if each in WIDTHS), "")
        return f"{base}.{width}" if width and WIDE.fullmatch(base) else base

    @property
    def target(self) -> int | None:
        """The address to which a branch leads, None for any other instruction."""
        found = ADDRESS.search(self.operands) if self.name.partition(".")[0] == "BRA" else None
        return int(found[0], 16) if found else None


def instructions(listing: str) -> list[Instruction]:
    """The instructions that nvdisasm printed, without the NOPs at the end, which pad the code. A NOP between others
    takes its turn: __syncwarp may be compiled to one."""
    found = [
        Instruction(int(address, 16), guard, name, operands.strip())
        for address, guard, name, operands in LINE.findall(listing)
    ]
    while found and found[-1].name == "NOP":
        found.pop()
    return found


def compare(before: str, after: str) -> dict[str, Any]:
    """How the SASS of a kernel changed, as JSON. `before`, `after`: what nvdisasm prints.

    `instructions`: how many there are, as each of the next pairs before and after; `classes`: by class (sass.MIX);
    both without NOPs, as the exact figures count. `opcodes`: those whose number changed, likely causes first.
    `loops`: branches that lead back.
    `removed`, `added`, `moved`: how many instructions. `renamed`: how many have only other registers or addresses.
    `aligned`: whether the kernels are short enough for a diff. `rows`: the diff, each row with its mark, address and
    text. The marks: "-", "+", "<" and ">" for one that moved from and to here, " " for one that stayed, "." for a gap,
    "=" for one with other registers or addresses, if nothing else differs. `left_out`: how many more rows there are.
    """
    old, new = instructions(before), instructions(after)
    opcodes = _pairs(Counter(each.opcode for each in old), Counter(each.opcode for each in new))
    classes = _pairs(
        Counter(class_of(each.name, each.operands) for each in old if each.name != "NOP"),
        Counter(class_of(each.name, each.operands) for each in new if each.name != "NOP"),
    )
    keys = Counter(each.key for each in old), Counter(each.key for each in new)
    gone, come = keys[0] - keys[1], keys[1] - keys[0]
    is_short = max(len(old), len(new)) <= ALIGNED_MOST
    matcher = SequenceMatcher(None, [each.key for each in old], [each.key for each in new], autojunk=False)
    rows = list(_rows(old, new, gone, come, matcher)) if is_short else []
    stayed = [
        (old[i + at], new[j + at])
        for i, j, size in (matcher.get_matching_blocks() if is_short else ())
        for at in range(size)
    ]
    renamed = [(before, after) for before, after in stayed if before.text != after.text]
    if not rows:  # then these are all that differs
        rows = [("=", f"{after.address:04x}", f"{before.text} \u2192 {after.text}") for before, after in renamed]
    return {
        "instructions": [sum(each.name != "NOP" for each in kernel) for kernel in (old, new)],
        "classes": {kind: classes.get(kind, [0, 0]) for kind in CLASSES},
        "opcodes": dict(sorted(((name, pair) for name, pair in opcodes.items() if pair[0] != pair[1]), key=_suspicion)),
        "loops": [_loops(old), _loops(new)],
        "removed": gone.total(),
        "added": come.total(),
        "moved": sum(mark == "<" for mark, *_ in rows),
        "renamed": len(renamed),
        "aligned": is_short,
        "rows": rows[:MOST_ROWS],
        "left_out": len(rows[MOST_ROWS:]),
    }


def _pairs(before: Counter[str], after: Counter[str]) -> dict[str, list[int]]:
    return {name: [before[name], after[name]] for name in sorted({*before, *after})}


def _suspicion(entry: tuple[str, list[int]]) -> tuple[bool, int, str]:
    name, (before, after) = entry
    return not SUSPECTS.fullmatch(name.partition(".")[0]), -abs(after - before), name


def _loops(kernel: Sequence[Instruction]) -> int:
    return sum(each.target is not None and each.target < each.address for each in kernel)


def _rows(
    old: Sequence[Instruction],
    new: Sequence[Instruction],
    gone: Counter[str],
    come: Counter[str],
    matcher: "SequenceMatcher[str]",
) -> Iterator[tuple[str, str, str]]:
    """The diff: hunks with AROUND instructions around them."""
    removed, added = gone.copy(), come.copy()

    def marked(each: Instruction, rest: Counter[str], marks: str) -> tuple[str, str, str]:
        is_own = rest[each.key] > 0
        rest[each.key] -= is_own
        return marks[0] if is_own else marks[1], f"{each.address:04x}", each.text

    for at, group in enumerate(matcher.get_grouped_opcodes(AROUND)):
        if at:
            yield ".", "", ""
        for kind, i, j, k, m in group:
            if kind == "equal":
                yield from ((" ", f"{each.address:04x}", each.text) for each in new[k:m])
                continue
            yield from (marked(each, removed, "-<") for each in old[i:j])
            yield from (marked(each, added, "+>") for each in new[k:m])
