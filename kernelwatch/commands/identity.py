"""Show the versions of the measuring code, and which of their files changed since the lock was written.

The engine has a lock file, and a project's description may have one beside it (project.lock). --accept accepts the
files as they are: it writes the lock again. If timed files changed and their version was not raised, it needs an A/A
(the same launches measured before and after), or a reason. --aa takes the two sidecars of the A/A
(<commit>-...facts.jsonl). It fails if the second is twice as noisy, or if cells moved; what it showed is kept beside
the lock. What --without-aa accepts is kept in the lock, and shown, until an A/A covers it: one that is given when
no file differs from the lock covers all of it.
"""

import json
from pathlib import Path
from typing import Any

from kernelwatch import identity
from kernelwatch.history import records, same
from kernelwatch.plan.project import Project
from kernelwatch.report.arguments import Parser
from kernelwatch.system.errors import UserError
from kernelwatch.system.git import git


def main(project: Project, prog: str, arguments: list[str] | None = None) -> int:
    parser = Parser(prog, __doc__)
    parser.add_argument("--accept", action="store_true", help="accept the files as they are: write the lock again")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument(
        "--aa", nargs=2, type=Path, metavar=("BEFORE", "AFTER"), help="with --accept: the sidecars of an A/A"
    )
    shown.add_argument("--without-aa", metavar="WHY", help="with --accept: why timed figures cannot have moved")
    parsed = parser.parse_args(arguments)
    for path in parsed.aa or ():
        if not path.is_file():
            parser.error(f"--aa {path}: there is no such sidecar")
    if (parsed.aa or parsed.without_aa is not None) and not parsed.accept:
        parser.error("--aa and --without-aa go with --accept")
    if parsed.without_aa is not None and not parsed.without_aa.strip():
        parser.error("--without-aa needs a reason")
    if parsed.accept:
        if why := _accept(parsed.aa, parsed.without_aa):
            print("not accepted: " + why)
            return 1
        identity.accept_description(project.here)
    for name, kind in identity.IDENTITIES.items():
        print(f"{name} figures: version {kind.version}")
    sentences = [*identity.unlocked(), identity.changed_description(project.here)]
    print("\n".join(filter(None, sentences)) or "every file is as the lock has it")
    if owed := identity.debt():
        print(f"changes of timed files that have no A/A yet: {len(owed)}")
        print("\n".join(f"  after {one['after'] or 'n/a'}: {', '.join(one['files'])} ({one['why']})" for one in owed))
    return 1 if any(sentences) else 0


def _accept(aa: tuple[Path, Path] | None, reason: str | None) -> str:
    """Write the lock if the changes are shown, or explained; else why not."""
    changed, raised, owed = identity.changed_files("timed"), identity.raised("timed"), identity.debt()
    if aa:
        why, kept = same.judge(*map(records.read, aa))
        if why:
            return "; ".join(why)
        files = changed or list(dict.fromkeys(file for one in owed for file in one["files"]))
        if not files:
            return "no file changed and no change lacks an A/A, so that this one would show nothing"
        with identity.comparisons().open("a", encoding="utf-8") as file:
            file.write(json.dumps({"version": identity.TIMED.version, "files": files, **kept}) + "\n")
        owed = owed if changed else []
    elif changed and not raised:
        if reason is None:
            return (
                f"timed figures may have moved by {', '.join(changed)}: show by --aa that they did not, or give the "
                "reason why they cannot have by --without-aa, which the lock keeps"
            )
        owed = [*owed, _unshown(changed, reason)]
    identity.accept([] if raised else owed)
    return ""


def _unshown(changed: list[str], reason: str) -> dict[str, Any]:
    """A change without an A/A, as the lock keeps it."""
    try:
        after = git(identity.HERE, "log", "-1", "--format=%H", "--", str(identity.LOCK))[:8]
    except UserError:  # the engine is installed, and no repository
        after = ""
    return {"after": after, "files": changed, "why": " ".join(reason.split())}
