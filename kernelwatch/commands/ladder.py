"""Print the ladder's tables from the recorded results, by default those of the newest commit."""

import argparse
import sys
from pathlib import Path

from kernelwatch.analysis.compiled import DEVICE
from kernelwatch.analysis.occupancy import ARCHES
from kernelwatch.asv.machine_names import machine_name
from kernelwatch.history import records
from kernelwatch.history.records import Record
from kernelwatch.plan.cells import CACHES
from kernelwatch.plan.problem import Shape, label
from kernelwatch.plan.project import Project
from kernelwatch.report import compiled, terminal
from kernelwatch.report.arguments import Output, Parser
from kernelwatch.report.markdown import markdown
from kernelwatch.report.rows import sections
from kernelwatch.system.errors import UserError

RECENT = 100  # records among which an op is looked for


def add_arguments(parser: argparse.ArgumentParser, project: Project) -> None:
    """Add the options that choose what is printed."""
    parser.add_argument("op", nargs="*", help=f"of {', '.join(project.ops)} (default: all)")
    parser.add_argument(
        "--machine",
        help="part of the name of a machine's folder, such as h200 (default: the one with the newest commit)",
    )
    parser.add_argument("--device", choices=("gpu", "cpu"), default="", help="(default: the GPU if it was measured)")
    parser.add_argument("--shape", help="one shape in detail: time, spread, minimum detectable change")
    parser.add_argument("--commit", default="", help="the first digits of a commit (default: the newest)")
    parser.add_argument(
        "--type", help="element type (default: float32; the others at one shape, cold); in quotes if it has a '>'"
    )
    parser.add_argument(
        "--arch",
        choices=ARCHES,
        help="what the rungs compile to for this architecture, instead of times: registers, occupancy, instructions",
    )
    parser.add_argument("--cache", choices=CACHES, default=CACHES[0], help="of a picture (default: %(default)s)")
    for format in ("png", "svg"):
        parser.add_argument(
            f"--{format}",
            type=Path,
            metavar="FILE",
            help=f"draw one op's ladder as {format.upper()}, with its roofline or bandwidths (needs matplotlib)",
        )
    parser.add_argument("--markdown", action="store_true", help="print Markdown")


def recorded(project: Project, machine: str | None, commit: str) -> list[Path]:
    """The matching sidecars, the newest last. Raises: UserError if there are none."""
    paths = [path for path in records.sidecars(project.results, machine) if path.name.startswith(commit)]
    if not paths and (lost := _lost(project, machine, commit)):
        raise UserError("\n".join(map(_lost_text, lost)))
    if not paths:
        known = sorted({path.parent.name for path in records.sidecars(project.results)})
        raise UserError(
            f"nothing recorded for this under {project.results}, which has {', '.join(known) or 'no machine'}; "
            "the command bench measures"
        )
    return paths


def _lost(project: Project, machine: str | None, commit: str) -> list[Path]:
    """The matching sidecars that should be there, since asv has results of this engine's series beside them."""
    found = {
        path: names for path, names in records.lost(project.results, machine).items() if path.name.startswith(commit)
    }
    if not found:
        return []
    from kernelwatch.publish import benchmarks, plain  # here, since they import asv

    judged = benchmarks.judged_in(project.results)
    own = {name for name, what in judged.items() if what not in ("", plain.JUDGED)}
    return [path for path, names in found.items() if names & own]


def _lost_text(path: Path) -> str:
    return (
        f"{path} is missing, so that {path.name.partition('-')[0]} is not shown; restore it, or measure this commit "
        "again (bench --all --again)"
    )


def _record(project: Project, arguments: argparse.Namespace) -> tuple[Record, list[str]]:
    """The newest matching record in which one of the named ops was timed, with --device on that one (with --arch:
    compiled); without such an op or record, the newest. And what a reader should know about it.

    Raises: UserError if there is none.
    """
    paths = recorded(project, arguments.machine, arguments.commit)
    chosen = [DEVICE] if arguments.arch else [arguments.device] if arguments.device else []
    devices = chosen or [device.name for device in project.timed]
    groups = {f"{op} {device}" for op in arguments.op or (project.ops if chosen else ()) for device in devices}
    if not any(groups & set(records.read(path).facts) for path in reversed(paths[-RECENT:])):
        groups = set()
    record, notes = records.newest(paths, groups, project.renamed)
    shown = [
        path for path in paths if (path.parent.name, path.name.partition("-")[0]) == (record.machine, record.commit)
    ]
    lost = _lost(project, arguments.machine, arguments.commit)
    notes += [_lost_text(path) for path in lost if shown and records.is_newer(path, shown[-1])]
    if groups and not paths[-1].name.startswith(record.commit):
        what = ", ".join(arguments.op) or "some op"
        did = "compiled" if arguments.arch else f"timed{_on(arguments)}"
        notes.append(f"{what} was last {did} at {record.commit}; there are newer records without it")
    return record, notes


def show(project: Project, arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Print the tables, and on stderr what a reader should know about them."""
    every = list(dict.fromkeys(name for problem in project.problems for name in problem.types))
    if arguments.type and arguments.type not in every:
        quote = " (in quotes: '>' is the shell's)" if arguments.type.endswith("-") else ""
        parser.error(f"no type {arguments.type}; there are {', '.join(every)}{quote}")
    for op in arguments.op:
        project.op(op)
    record, notes = _record(project, arguments)
    ops, here = arguments.op or list(project.ops), machine_name()
    if record.machine != here and not arguments.arch:
        notes.append(f"these figures are of another machine, {record.machine}; this one is {here}")
    shape = _shape(project, ops, arguments, parser)
    if arguments.arch:
        return _show_compiled(record, project, ops, arguments, notes, parser)
    if missing := [op for op in ops if not sections(record, project, [op], None, arguments.type, arguments.device)]:
        named = "" if arguments.op else "; name an op to see the newest record in which it was"
        timed = f"timed{_on(arguments)} at {record.commit} on {record.machine}"
        notes.append(f"no cell of {', '.join(missing)} was {timed}{named}")
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    for path in filter(None, (arguments.png, arguments.svg)):
        if len(ops) != 1:
            parser.error(f"a picture shows one op: name one of {', '.join(ops)}")
        device = arguments.device or ("gpu" if f"{ops[0]} gpu" in record.facts else "cpu")
        from kernelwatch.extras import picture

        picture.draw(record, project, ops[0], device, arguments.cache, arguments.type, path)
        print(f"drawn: {path}")
    if arguments.png or arguments.svg:
        return 0
    if arguments.markdown:
        print(markdown(record, project, ops, [shape] if shape else None, arguments.type, arguments.device))
    else:
        terminal.show(record, project, Output(), ops, arguments.type, shape, arguments.device)
    return 0


def _on(arguments: argparse.Namespace) -> str:
    """The device that --device names, as a part of a sentence."""
    return f" on the {arguments.device.upper()}" if arguments.device else ""


def _shape(
    project: Project, ops: list[str], arguments: argparse.Namespace, parser: argparse.ArgumentParser
) -> Shape | None:
    """The shape that --shape names; None without the option."""
    if not arguments.shape:
        return None
    shapes = {label(each): each for op in ops for each in (*project.op(op).shapes, *project.op(op).cpu_shapes)}
    if arguments.shape not in shapes:
        parser.error(f"no shape {arguments.shape}; there are {', '.join(shapes)}")
    return shapes[arguments.shape]


def _show_compiled(
    record: Record,
    project: Project,
    ops: list[str],
    arguments: argparse.Namespace,
    notes: list[str],
    parser: argparse.ArgumentParser,
) -> int:
    """Print what the rungs compile to."""
    if arguments.device or arguments.shape or arguments.png or arguments.svg:
        parser.error("--arch prints compile-time figures, which have no --device, no --shape and no picture")
    arch, type = arguments.arch, arguments.type
    if missing := [op for op in ops if not compiled.cells_of(record, project.op(op), arch, type)]:
        what = f"{', '.join(missing)}{f' with {type}' if type else ''}"
        notes.append(f"{what} was not compiled for {arch} at {record.commit} on {record.machine}")
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    if arguments.markdown:
        print(compiled.markdown(record, project, ops, arch, type))
    else:
        compiled.show(record, project, Output(), ops, arch, type)
    return 0


def main(project: Project, prog: str, arguments: list[str] | None = None) -> int:
    parser = Parser(prog, __doc__)
    add_arguments(parser, project)
    return show(project, parser.parse_args(arguments), parser)
