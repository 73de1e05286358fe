"""A column of texts of which few differ, such as the conditions of each point of a series."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.int32]


class Table:
    """The texts of a column, each once; many columns may share a table."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._codes: dict[str, int] = {}
        self._digests: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self.empty = self.code("")

    def code(self, text: str) -> int:
        """The place of a text in the table, to which it is added if it is new."""
        code = self._codes.get(text)
        if code is None:
            code = self._codes[text] = len(self.texts)
            self.texts.append(text)
        return code

    @property
    def digests(self) -> NDArray[np.uint64]:
        """A number for each text, which does not depend on its place in the table."""
        fresh = self.texts[len(self._digests) :]
        if fresh:
            numbers = (
                int.from_bytes(hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:8], "little")
                for text in fresh
            )
            self._digests = np.concatenate([self._digests, np.fromiter(numbers, np.uint64, len(fresh))])
        return self._digests


class Texts(Sequence[str]):
    """The column: a code for each text, and the table of the codes."""

    def __init__(self, codes: Codes, table: Table) -> None:
        self.codes, self.table = codes, table

    @classmethod
    def of(cls, texts: Iterable[str], table: Table | None = None) -> "Texts":
        table = table or Table()
        return cls(np.fromiter(map(table.code, texts), np.int32), table)

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: "slice | NDArray[Any]") -> "Texts": ...
    def __getitem__(self, at: "int | slice | NDArray[Any]") -> "str | Texts":
        if isinstance(at, int):
            return str(self.table.texts[self.codes[at]])
        return Texts(self.codes[at], self.table)

    def digests(self) -> NDArray[np.uint64]:
        return np.asarray(self.table.digests[self.codes])

    def filled(self) -> "Texts":
        """The column with the last text that is not "" in place of each ""; the first ones may have none."""
        places = np.where(self.codes != self.table.empty, np.arange(len(self)), 0)
        return Texts(self.codes[np.maximum.accumulate(places)], self.table)

    def runs(self) -> Iterator[tuple[int, int, str]]:
        """The stretches of the same text: start, end, text."""
        edges = [0, *(np.flatnonzero(np.diff(self.codes)) + 1).tolist(), len(self)]
        for start, end in pairwise(edges):
            if end > start:
                yield start, end, self[start]
