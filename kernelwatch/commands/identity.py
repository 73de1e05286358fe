"""Show the versions of the measuring code, and which of their files changed since the lock was written.

The engine has a lock file, and a project's description may have one beside it (project.lock). An A/A (the same commit
measured before and after) can show that a change moves no figure; --accept then accepts it. Any other change must raise
the version in kernelwatch/identity.py first.
"""

from kernelwatch import identity
from kernelwatch.commands.arguments import Parser
from kernelwatch.plan.project import Project


def main(project: Project, prog: str, arguments: list[str] | None = None) -> int:
    parser = Parser(prog, __doc__)
    parser.add_argument("--accept", action="store_true", help="accept the files as they are: write the lock again")
    parsed = parser.parse_args(arguments)
    if parsed.accept:
        identity.accept()
        identity.accept_description(project.here)
    for name, kind in identity.IDENTITIES.items():
        print(f"{name} figures: version {kind.version}")
    sentences = [*identity.unlocked(), identity.changed_description(project.here)]
    print("\n".join(filter(None, sentences)) or "every file is as the lock has it")
    return 1 if any(sentences) else 0
