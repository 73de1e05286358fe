"""The names that rungs had in earlier commits: `was` of a Rung. What was recorded under an old name counts as the
rung's of today, and a tree that has a rung under an old name only is measured under that one."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from kernelwatch.plan.functions import FunctionPackage
from kernelwatch.plan.package import Absent, Binary, CudaSource, Importing, Kernel, Package

T = TypeVar("T")


@dataclass(frozen=True)
class Renamed:
    """The renamed rungs of a project. `was`: by the name of today, "op/rung", the earlier ones, the oldest first."""

    was: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def _today(self) -> dict[str, str]:
        return {old: rung for rung, names in self.was.items() for old in names}

    def now(self, name: str) -> str:
        """A rung, or the key of a cell, by the name that the rung has today."""
        rung, space, rest = name.partition(" ")
        return f"{self._today.get(rung, rung)}{space}{rest}"

    def first(self, name: str) -> str:
        """A rung, or the key of a cell, by the oldest name of the rung, from which ids are made: they outlive a
        renaming."""
        rung, space, rest = self.now(name).partition(" ")
        return f"{self.was.get(rung, (rung,))[0]}{space}{rest}"

    def first_params(self, rung: str, params: Mapping[str, str]) -> dict[str, str]:
        """The parameters of a series that shows a rung ("op/rung"), by the oldest name of the rung."""
        own, oldest = (name.partition("/")[2] for name in (rung, self.first(rung)))
        return {name: value.replace(own, oldest) if name == "rung" else value for name, value in params.items()}

    def by_now(self, named: Mapping[str, T]) -> dict[str, T]:
        """What has the names of rungs or cells, by those of today. If it has both names, the old one stays as it is:
        then it is of another rung."""
        today = {name: self.now(name) for name in named}
        return {name if today[name] in named else today[name]: value for name, value in named.items()}

    def package(self, package: Package) -> Package:
        """The package of a tree, which knows its rungs by their names of today as well."""
        if not self.was:
            return package
        if isinstance(package, FunctionPackage):
            package = replace(package, first=self.first)
        return _ImportingPackage(package, self) if isinstance(package, Importing) else _Package(package, self)


NONE = Renamed()


@dataclass(frozen=True)
class _Package:
    """A Package that is asked for the earlier names of a rung if it has none of today's."""

    own: Package
    renamed: Renamed

    @property
    def not_here(self) -> tuple[type[Exception], ...]:
        return self.own.not_here

    def _ask(self, function: Callable[..., T], op: str, rung: str, *rest: str) -> T:
        try:
            return function(op, rung, *rest)
        except Absent:
            for old in self.renamed.was.get(f"{op}/{rung}", ())[::-1]:
                with suppress(Absent):
                    return function(op, old.partition("/")[2], *rest)
            raise

    def load(self, op: str, rung: str, type: str) -> Kernel:
        return self._ask(self.own.load, op, rung, type)

    def variants(self, op: str, rung: str, type: str) -> Iterable[Kernel]:
        return self._ask(self.own.variants, op, rung, type)

    def repeats(self, op: str, rung: str) -> int:
        return self._ask(self.own.repeats, op, rung)

    def binary(self, op: str, rung: str, type: str, arch: str) -> Binary:
        return self._ask(self.own.binary, op, rung, type, arch)

    def cuda_source(self, op: str, rung: str, type: str) -> CudaSource:
        return self._ask(self.own.cuda_source, op, rung, type)


class _ImportingPackage(_Package):
    """The same of one that is Importing."""

    def imports(self) -> dict[str, str]:
        assert isinstance(self.own, Importing)
        return self.own.imports()

    def needed(self, rungs: Iterable[tuple[str, str]]) -> list[str]:
        asked = [*rungs]
        older = [old.partition("/") for op, rung in asked for old in self.renamed.was.get(f"{op}/{rung}", ())]
        assert isinstance(self.own, Importing)
        return self.own.needed([*asked, *((op, rung) for op, _, rung in older)])
