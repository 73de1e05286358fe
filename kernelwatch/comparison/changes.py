"""Find the rungs that two versions of a package may launch differently."""

import filecmp
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernelwatch.plan.package import Parts
from kernelwatch.plan.project import Project


@dataclass(frozen=True)
class Changes:
    """How two packages differ. `launched`: the rungs ("op/rung") whose declaration or launch code changed (every rung
    of an op if something they share changed). `compiled`: the rungs of which only compiled source changed; every other
    rung as well if `shared` names files that all rungs depend on. `new`: those of `launched` that only the second
    package has."""

    launched: list[str]
    compiled: list[str]
    shared: list[str]
    new: list[str]

    @property
    def rungs(self) -> list[str]:
        """All that changed."""
        return self.launched + self.compiled


def _files(package: Path) -> Iterator[str]:
    for path in package.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(package).as_posix()


def changes(project: Project, base: str, head: str) -> Changes:
    """How the packages in two folders differ, by the rungs of the checkout. A folder "" has no package."""
    packages = [Path(folder, project.package) if folder else None for folder in (base, head)]
    files = [set(_files(package)) if package else set() for package in packages]
    differ = {
        name
        for name in files[0] | files[1]
        if not (name in files[0] and name in files[1])
        or not filecmp.cmp(Path(base, project.package, name), Path(head, project.package, name), shallow=False)
    }
    parts: list[dict[str, Parts]] = [project.parts_in(package) if package else {} for package in packages]
    of_rung = {rung: [part[rung] for part in parts if rung in part] for rung in project.rungs()}
    claimed = {name for part in parts for files_of in part.values() for name in files_of.sources | files_of.others}
    unclaimed = sorted(differ - claimed)
    # An unclaimed file in an op's folder concerns every rung of that op; any other unclaimed file concerns all rungs.
    whole = {name.split("/")[0] for name in unclaimed if name.split("/")[0] in project.ops}
    shared = [name for name in unclaimed if name.split("/")[0] not in whole]
    launched, compiled, new = [], [], []
    for rung, sides in of_rung.items():
        if rung in parts[1] and rung not in parts[0]:
            new.append(rung)
        sources = {name for side in sides for name in side.sources}
        alike = len(sides) == 2 and sides[0].launch == sides[1].launch
        if rung.split("/")[0] in whole or (sides and not alike):
            launched.append(rung)
        elif shared or sources & differ or (differ and not sides and not project.parts):
            compiled.append(rung)  # a rung that no table lists may have been added to one by code
    return Changes(launched, compiled, shared, new)
