"""What publishing keeps from one time to the next: a file of SQLite in the user's cache folder.

It holds what was read of each result file, so that only new files are read, and how each published file was made, so
that only changed ones are written. Losing it costs time and nothing else. What a publication that was killed had not
yet committed is absent; numbers and texts that are damaged are noticed by their checksums.
"""

import hashlib
import json
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

from kernelwatch.system import cache
from kernelwatch.system.errors import UserError
from kernelwatch.system.files import read_regular

T = TypeVar("T")

BATCH = 200  # entries that are committed together
WAIT_S = 60.0  # for another publication that is writing
TABLES = """
CREATE TABLE about(version TEXT);
CREATE TABLE entries(path TEXT PRIMARY KEY, stamp TEXT, digest TEXT, checksum INTEGER, head BLOB, numbers BLOB);
CREATE TABLE texts(path TEXT PRIMARY KEY, checksum INTEGER, content BLOB);
CREATE TABLE parts(digest TEXT PRIMARY KEY, content BLOB);
CREATE TABLE commits(hash TEXT PRIMARY KEY, content TEXT);
CREATE TABLE files(site TEXT, name TEXT, made_of TEXT, stamp TEXT, PRIMARY KEY(site, name));
"""


class Damaged(Exception):
    """The file was not what was written, and is gone: the next store has a new one."""


class Known(NamedTuple):
    """Which files an entry was read from: `stamp` changes with their sizes and times, `digest` with their content."""

    stamp: str
    digest: str


class Store:
    """`path`: of the file; None keeps everything in memory. `version`: what was written by another one is thrown away.

    Raises, from every method: Damaged; UserError if the file cannot be written.
    """

    def __init__(self, path: Path | None, version: str) -> None:
        self.path, self.version = path, version
        self._parts: dict[str, bytes] = {}
        self._decoded: dict[str, Any] = {}
        self._pending = 0
        self._open()

    @classmethod
    def of(cls, results: Path, version: str) -> "Store":
        """The one for a results folder."""
        name = hashlib.sha256(str(results.resolve()).encode()).hexdigest()[:16]
        return cls(cache.folder() / f"published-{name}.sqlite", version)

    def _open(self) -> None:
        with self._safely():
            self._base = sqlite3.connect(self.path or ":memory:", timeout=WAIT_S, isolation_level=None)
            self._base.execute("BEGIN IMMEDIATE")
            tables = {name for (name,) in self._base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            versions = self._base.execute("SELECT version FROM about").fetchall() if "about" in tables else []
            if versions != [(self.version,)]:
                for name in tables:
                    self._base.execute(f'DROP TABLE "{name}"')
                for statement in filter(str.strip, TABLES.split(";")):
                    self._base.execute(statement)
                self._base.execute("INSERT INTO about VALUES (?)", (self.version,))
            self._base.execute("COMMIT")

    @contextmanager
    def _safely(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            if "malformed" in str(error) or "no such" in str(error):
                self._discard(str(error))
            raise UserError(f"{self.path} cannot be written: {error}; it keeps what was published") from None
        except sqlite3.DatabaseError as error:
            self._discard(str(error))

    def _discard(self, why: str) -> NoReturn:
        """Remove the file, so that the next store starts with an empty one. Raises: Damaged."""
        self.close()
        if self.path:
            for name in (self.path.name, f"{self.path.name}-journal"):
                self.path.with_name(name).unlink(missing_ok=True)
        raise Damaged(why)

    def close(self) -> None:
        self._base.close()

    def _write(self, statement: str, *values: object) -> None:
        with self._safely():
            if not self._base.in_transaction:
                self._base.execute("BEGIN IMMEDIATE")
            self._base.execute(statement, values)

    def commit(self) -> None:
        with self._safely():
            if self._base.in_transaction:
                self._base.execute("COMMIT")

    # --- what was read of result files ---------------------------------------------------------------------------

    def known(self) -> dict[str, Known]:
        """The entries by path."""
        with self._safely():
            rows = self._base.execute("SELECT path, stamp, digest FROM entries").fetchall()
        return {path: Known(stamp, digest) for path, stamp, digest in rows}

    def put(self, path: str, known: Known, head: dict[str, Any], numbers: bytes, long: str = "") -> None:
        """Keep an entry. `long`: a text that is seldom needed."""
        packed = zlib.compress(long.encode(), 1)
        self._write("INSERT OR REPLACE INTO texts VALUES (?, ?, ?)", path, zlib.crc32(packed), packed)
        text = json.dumps(head).encode()
        checksum = zlib.crc32(numbers, zlib.crc32(text))
        self._write(
            "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?)",
            path, known.stamp, known.digest, checksum, text, numbers,
        )  # fmt: skip
        self._pending += 1
        if self._pending % BATCH == 0:
            self.commit()

    def touch(self, path: str, stamp: str) -> None:
        """Note that an entry's files have another stamp and the same content."""
        self._write("UPDATE entries SET stamp = ? WHERE path = ?", stamp, path)

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._write("DELETE FROM entries WHERE path = ?", path)
            self._write("DELETE FROM texts WHERE path = ?", path)

    def get(self, path: str) -> tuple[dict[str, Any], bytes]:
        """The head and the numbers of an entry."""
        with self._safely():
            row = self._base.execute("SELECT checksum, head, numbers FROM entries WHERE path = ?", (path,)).fetchone()
        if row is None or zlib.crc32(row[2], zlib.crc32(row[1])) != row[0]:
            self._discard(f"what it holds of {path} is not what was written")
        return json.loads(row[1]), row[2]

    def long(self, path: str) -> str:
        """The long text of an entry."""
        with self._safely():
            row = self._base.execute("SELECT checksum, content FROM texts WHERE path = ?", (path,)).fetchone()
        if row is None or zlib.crc32(row[1]) != row[0]:
            self._discard(f"the text that it holds of {path} is not what was written")
        return zlib.decompress(row[1]).decode()

    def part(self, content: bytes) -> str:
        """Keep what many entries share, once; its digest."""
        digest = hashlib.sha256(content).hexdigest()[:32]
        if digest not in self._parts:
            self._parts[digest] = content
            self._write("INSERT OR REPLACE INTO parts VALUES (?, ?)", digest, content)
        return digest

    def content(self, digest: str) -> bytes:
        """A part. Raises: Damaged."""
        if digest not in self._parts:
            with self._safely():
                row = self._base.execute("SELECT content FROM parts WHERE digest = ?", (digest,)).fetchone()
            if row is None or hashlib.sha256(row[0]).hexdigest()[:32] != digest:
                self._discard(f"the part {digest} is not what was written")
            self._parts[digest] = row[0]
        return self._parts[digest]

    def decoded(self, digest: str, decode: Callable[[bytes], T]) -> T:
        """A part in the form that `decode` gives it, which is made once; one part has one form."""
        if digest not in self._decoded:
            self._decoded[digest] = decode(self.content(digest))
        return cast(T, self._decoded[digest])

    # --- what git tells of commits, which never changes ----------------------------------------------------------

    def commits(self, wanted: Iterable[str]) -> dict[str, Any]:
        """What is known of commits, by hash."""
        with self._safely():
            known = dict(self._base.execute("SELECT hash, content FROM commits").fetchall())
        try:
            return {commit: json.loads(known[commit]) for commit in wanted if commit in known}
        except ValueError as error:
            self._discard(str(error))

    def add_commits(self, commits: dict[str, Any]) -> None:
        for commit, content in commits.items():
            self._write("INSERT OR REPLACE INTO commits VALUES (?, ?)", commit, json.dumps(content))
        self.commit()

    # --- how the files of a site were made -----------------------------------------------------------------------

    def files(self, site: str) -> dict[str, tuple[str, str]]:
        """By name, what a published file was made of and its stamp."""
        with self._safely():
            rows = self._base.execute("SELECT name, made_of, stamp FROM files WHERE site = ?", (site,)).fetchall()
        return {name: (made_of, stamp) for name, made_of, stamp in rows}

    def set_files(self, site: str, files: dict[str, tuple[str, str]]) -> None:
        """Replace what is known of a site's files."""
        self._write("DELETE FROM files WHERE site = ?", site)
        for name, (made_of, stamp) in files.items():
            self._write("INSERT INTO files VALUES (?, ?, ?, ?)", site, name, made_of, stamp)
        self.commit()


def stamp(*paths: Path) -> str:
    """Sizes and times of files; one that is missing has none, and one that cannot be looked at has the reason."""
    stamps = []
    for path in paths:
        try:
            found = path.stat()
            stamps.append(f"{found.st_size}-{found.st_mtime_ns}")
        except FileNotFoundError:
            stamps.append("none")
        except OSError as error:
            stamps.append(f"error {error.errno}")
    return " ".join(stamps)


def digest(*paths: Path) -> str:
    """Of the content of files; one that is missing has none, and one that cannot be read has the reason."""
    whole = hashlib.sha256()
    for path in paths:
        try:
            content = read_regular(path)
            whole.update(f"{len(content)} ".encode() + content)
        except FileNotFoundError:
            whole.update(b"none ")
        except OSError as error:
            whole.update(f"error {error.errno} ".encode())
    return whole.hexdigest()
