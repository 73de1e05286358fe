"""`asv publish`, from what is recorded to the pages.

    index.html, pages/    the pages (kernelwatch/site)
    data/                 what they read (docs/data.md), each file also as a script, for pages opened from a file
    regressions.xml       a feed
    asv/                  asv's grid, list and plots

Results and repositories are untrusted data, so that those of strangers can be shown. asv inserts names, units, tags and
machines into HTML unescaped and builds paths from them. It fails or hangs at a value that is not a number, after it has
deleted the pages. Here it publishes a cleaned copy of the results into a new folder, which replaces the pages at the
end. Each refused file, benchmark or value is named in a warning. As a second defense, the pages carry a
Content-Security-Policy that lets them load and run only their own files.
"""

import itertools
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from asv import util
from asv.benchmarks import Benchmarks
from asv.console import log
from asv.repo import get_repo

from kernelwatch.history.store import Damaged
from kernelwatch.plan import project as projects
from kernelwatch.plan.renamed import NONE
from kernelwatch.publish import cleaning, events, linked, pages, place, series
from kernelwatch.publish.benchmarks import judged_in
from kernelwatch.publish.offline import SITE, make_offline, restrict
from kernelwatch.publish.publication import Publication
from kernelwatch.publish.recorded import History, open_store
from kernelwatch.publish.writer import Writer
from kernelwatch.system.errors import UserError

LOST = re.compile(r": it(s sidecar)? is not (shown|read)( as a whole)?: ")  # said of a file as a whole
ASV_COMMITS = 100  # the newest ones, which asv's own pages show; "asv_commits" in asv.conf.json is another number


def publish(asv_publish: Callable[..., Any], conf: Any, range_spec: Any = None, pull: bool = True) -> None:
    """asv's Publish.run. `asv_publish`: asv's own, which writes asv's pages.

    Raises: asv's UserError if nothing was published; the pages are then as they were.
    """
    site = Path(conf.html_dir).absolute()
    try:
        with place.alone(site):
            try:
                _publish(site, asv_publish, conf, range_spec, pull)
            except Damaged as error:
                log.warning(f"what was kept of earlier publications is damaged ({error}): all results are read anew")
                _publish(site, asv_publish, conf, range_spec, pull)
    except (OSError, UserError) as error:
        raise util.UserError(f"nothing was published; {site} is as it was: {error}") from None


def _publish(site: Path, asv_publish: Callable[..., Any], conf: Any, range_spec: Any, pull: bool) -> None:
    results, suites = Path(conf.results_dir).absolute(), Path(conf.benchmark_dir)
    configured = conf.html_dir, conf.results_dir
    with place.fresh(site) as folder:
        html = folder / "html"
        conf.html_dir, conf.results_dir = str(html / "asv"), str(folder / "results")
        try:
            # Read what is recorded, and refuse what cannot be trusted.
            Path(conf.results_dir).mkdir()
            repo = get_repo(conf)
            if pull:
                repo.pull()
            is_list = range_spec is None or isinstance(range_spec, list)
            hashes = range_spec if is_list else list(repo.get_hashes_from_range(range_spec))
            project = projects.load(suites.resolve().parent) if projects.is_described(suites.absolute()) else None
            judged = judged_in(results)
            renamed = project.renamed if project else NONE
            today = series.params_by_now(suites, renamed)
            store = open_store(results, judged, renamed)
            history = History(results, store, judged, hashes, renamed, today)
            shown = history.newest(getattr(conf, "asv_commits", ASV_COMMITS))
            messages = [*history.messages, *cleaning.copy(results, Path(conf.results_dir), shown, today)]
            sessions, unread = linked.read(Path(conf.results_dir), renamed)
            messages += [message.replace(conf.results_dir, str(results)) for message in unread]
            for message in dict.fromkeys(messages):
                log.warning(message)
            lost = [message.replace(f"{results}/", "") for message in dict.fromkeys(messages) if LOST.search(message)]
            writer = Writer(html / "data", site / "data", store.files(str(site)))
            publication = Publication(conf, repo, Benchmarks.load(conf), project, history, sessions, lost, html, writer)

            # Judge it.
            found = events.judge(publication)
            events.write(publication, found)

            # Write asv's own pages, which work without a network.
            if asv_publish(conf, range_spec, pull=False):
                raise util.UserError(f"nothing was published; {site} is as it was")
            shutil.copytree(SITE, html, dirs_exist_ok=True)
            make_offline(html / "asv")

            # Write the data files of the pages.
            linked_commits = {
                commit
                for each in itertools.chain.from_iterable(found.sessions.values())
                for commit in (each.before, each.after)
            }
            pages.write(publication, linked_commits)
            restrict(html)

            # Note how the files were made before the pages are replaced: if it fails, they are as they were.
            store.set_files(str(site), writer.files)
            store.close()
        finally:
            conf.html_dir, conf.results_dir = configured
