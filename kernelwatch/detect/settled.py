"""The settled changes of series, kept from one publication to the next."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from kernelwatch.detect.levels import Change
from kernelwatch.detect.point import Point, Points
from kernelwatch.detect.testing import Passed
from kernelwatch.system import cache, installed
from kernelwatch.system.files import write_whole

HERE = Path(__file__).resolve().parent


class Settled:
    """Settled changes by the digest of what they were found from: the points, the detector's source, asv and NumPy.

    `path`: the file that keeps them. It holds its own digest: what is damaged counts as absent. Without one they are
    kept in memory, where there is one detector.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.used: dict[str, list[Change]] = {}
        self.kept: dict[str, list[Change]] = {}
        self.detector = hashlib.sha256()
        if path:
            asv = installed.versions(["asv"]).get("asv", "")
            sources = [file.read_bytes() for file in sorted(HERE.glob("*.py"))]
            self.detector.update(b"\0".join([*sources, asv.encode(), np.__version__.encode()]))
            self.kept = _read(path) if path.is_file() else {}

    @classmethod
    def of(cls, project: str) -> "Settled":
        """Those of a project, which are kept in the user's cache folder."""
        name = hashlib.sha256(project.encode()).hexdigest()[:16]
        return cls(cache.folder() / f"settled-{name}.json")

    def keys(self, points: Sequence[Point], ends: Iterable[int]) -> list[str]:
        """The digests of the points up to each of the ends."""
        points = Points.of(points)
        digest, keys, start = self.detector.copy(), [], 0
        columns = (points.value, points.spread, points.canary, points.common)
        numbers = np.stack([np.nan_to_num(column) for column in columns], axis=1)
        texts = np.stack([points.identity.digests(), points.conditions.digests()], axis=1)
        for end in ends:
            digest.update(numbers[start:end].tobytes())
            digest.update(texts[start:end].tobytes())
            keys.append(digest.hexdigest())
            start = end
        return keys

    def get(self, key: str) -> list[Change] | None:
        return self.used.get(key, self.kept.get(key))

    def put(self, key: str, changes: list[Change]) -> None:
        self.used[key] = changes

    def write(self) -> None:
        """Replace the file by what was used. If that fails, the next publication starts from the beginning."""
        if self.path:
            text = json.dumps(self.used)
            whole = json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest(), "settled": text})
            with suppress(OSError):
                write_whole(self.path, whole)


def _read(path: Path) -> dict[str, list[Change]]:
    """The changes in a file; none if it is damaged, or of another version of this engine."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if hashlib.sha256(content["settled"].encode()).hexdigest() != content["sha256"]:
            return {}
        settled = json.loads(content["settled"])
        return {
            key: [
                Change(since, at, tuple(boundaries), smallest, tuple(Passed(*test) for test in tests), rise)
                for since, at, boundaries, smallest, tests, rise in changes
            ]
            for key, changes in settled.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
