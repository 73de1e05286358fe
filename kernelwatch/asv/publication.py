"""What the publishers of one `asv publish` share: the results, and the writer of the data files."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelwatch.asv.plain import is_described
from kernelwatch.asv.recorded import Recorded, judged_in, open_store
from kernelwatch.site.writer import Writer


@dataclass(frozen=True)
class Publication:
    """`site`: the folder of the published site, which the new pages replace when they are complete."""

    recorded: Recorded
    writer: Writer
    site: Path

    @classmethod
    def begun(
        cls, results: Path, suites: Path, site: Path, fresh: Path, hashes: Collection[str] | None = None
    ) -> "Publication":
        """`results`: the folder of results; `suites`: that of the benchmarks; `fresh`: where the new pages are made;
        `hashes`: the commits that are published, None for all."""
        judged = judged_in(results, is_described(suites.absolute()))
        store = open_store(results, judged)
        writer = Writer(fresh / "data", site / "data", store.files(str(site)))
        return cls(Recorded(results, store, judged, hashes), writer, site)

    def done(self) -> None:
        """Note how the files of the new site were made, which is complete and not yet in its place. Those of a site
        that stays have other times, and are then written again."""
        self.recorded.store.set_files(str(self.site), self.writer.files)
        self.recorded.store.close()


def site_of(conf: Any) -> Path:
    """The folder in which the site is made, above that of asv's own pages."""
    return Path(getattr(conf, "site_dir", conf.html_dir))


def publication(conf: Any) -> Publication:
    """The one that is under way."""
    if getattr(conf, "publication", None) is None:
        site = site_of(conf)
        conf.publication = Publication.begun(Path(conf.results_dir), Path(conf.benchmark_dir), site, site)
    found: Publication = conf.publication
    return found
