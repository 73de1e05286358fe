"""Every GPU rung, element type and run-time edge at one ragged shape under compute-sanitizer: memcheck (out of bounds,
misaligned), racecheck (shared-memory hazards), initcheck (reads of memory nobody wrote), synccheck (barriers)."""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from scripts import _environment

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
EXTENTS = (67, 131, 37)  # of the dims in order: prime, more than one tile, none a tile divides
FOUND = 17  # compute-sanitizer's exit code for findings


def launch_all(only: str) -> int:
    """In the sanitizer's child: launch everything once, each array in an allocation of its own."""
    import cupy
    import numpy as np

    import gpukernels

    cupy.cuda.set_allocator(None)  # a pool would put other arrays where an overrun lands
    count = 0
    for op in gpukernels.ops():
        extents = dict(zip(op.dims, EXTENTS, strict=False))
        for rung in op.rungs:
            for type in rung.types if rung.device == "gpu" and only in str(rung) else ():
                for edge in rung.edges or (None,):
                    shapes = [tuple(extents[dim] for dim in operand.split()) for operand in rung.inputs]
                    into = type.partition("->")[0]
                    inputs = [np.random.default_rng().integers(0, 9, shape).astype(into) for shape in shapes]
                    if rung.operands == "device":
                        inputs = [cupy.asarray(values) for values in inputs]
                    gpukernels.load(op.name, rung.name, type, edge=edge)(*inputs)
                    cupy.cuda.runtime.deviceSynchronize()
                    count += 1
    print(f"{count} launches")
    return 0 if count else 1


def command(sanitizer: str, tool: str, only: str) -> list[str]:
    """One tool over the rungs whose op/name holds `only`; its exit code is FOUND where it finds something."""
    return [sanitizer, "--tool", tool, "--error-exitcode", str(FOUND), sys.executable, __file__, "--child", only]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/sanitize", description=__doc__)
    parser.add_argument("--tool", choices=TOOLS, action="append", help="some tools only (default: all)")
    parser.add_argument("--only", default="", help="rungs whose op/name holds this text")
    given = parser.parse_args(arguments)
    sanitizer = shutil.which("compute-sanitizer")
    if not sanitizer:
        print("scripts/sanitize: compute-sanitizer is not on the PATH; it comes with the CUDA toolkit", file=sys.stderr)
        return 1
    worst = 0
    for tool in given.tool or TOOLS:
        done = subprocess.run(
            command(sanitizer, tool, given.only),
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env=_environment.with_root(),
        )
        last = [line for line in done.stdout.splitlines() if "SUMMARY" in line or "launches" in line]
        print(f"{tool}: {'clean' if done.returncode == 0 else 'FOUND'}: {'; '.join(line.strip('= ') for line in last)}")
        if done.returncode:
            print(done.stdout[-6000:], done.stderr[-2000:], sep="\n")
        worst = max(worst, 0 if done.returncode == 0 else 1)
    return worst


if __name__ == "__main__":
    sys.exit(launch_all(sys.argv[2]))
