"""Show the versions of the measuring code, and which of their files changed since the lock was written.

The engine has a lock file, and a project's description may have one beside it (project.lock). An A/A (the same commit
measured before and after) can show that a change moves no figure; --accept then accepts it. Any other change must raise
the version in kernelwatch/identity.py first. --aa takes the two sidecars of the A/A (<commit>-...facts.jsonl).
It fails if the second is twice as noisy, or if cells moved; what it showed is kept beside the lock.
"""

import json
from pathlib import Path

from kernelwatch import identity
from kernelwatch.history import records, same
from kernelwatch.plan.project import Project
from kernelwatch.report.arguments import Parser


def main(project: Project, prog: str, arguments: list[str] | None = None) -> int:
    parser = Parser(prog, __doc__)
    parser.add_argument("--accept", action="store_true", help="accept the files as they are: write the lock again")
    parser.add_argument(
        "--aa", nargs=2, type=Path, metavar=("BEFORE", "AFTER"), help="with --accept: the sidecars of an A/A"
    )
    parsed = parser.parse_args(arguments)
    for path in parsed.aa or ():
        if not path.is_file():
            parser.error(f"--aa {path}: there is no such sidecar")
    if parsed.aa and not parsed.accept:
        parser.error("--aa goes with --accept")
    changed = identity.changed_files("timed")
    if parsed.accept and parsed.aa:
        why, kept = same.judge(*map(records.read, parsed.aa))
        if why:
            print("not accepted: " + "; ".join(why))
            return 1
        with identity.comparisons().open("a", encoding="utf-8") as file:
            file.write(json.dumps({"version": identity.TIMED.version, "files": changed, **kept}) + "\n")
    elif parsed.accept and changed and not identity.raised("timed"):
        print(f"accepted without an A/A, though timed figures may have moved by {', '.join(changed)}: show one by --aa")
    if parsed.accept:
        identity.accept()
        identity.accept_description(project.here)
    for name, kind in identity.IDENTITIES.items():
        print(f"{name} figures: version {kind.version}")
    sentences = [*identity.unlocked(), identity.changed_description(project.here)]
    print("\n".join(filter(None, sentences)) or "every file is as the lock has it")
    return 1 if any(sentences) else 0
