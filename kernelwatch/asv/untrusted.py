"""asv plugin: `asv publish` treats results and repositories as untrusted data, so it can show those of strangers.

asv inserts names, units, tags and machines into HTML unescaped and builds paths from them. It fails or hangs at a value
that is not a number, after it has deleted the pages. Here it publishes a cleaned copy of the results into a new folder,
which replaces the pages at the end. Each refused file, benchmark or value is named in a warning. As a second defense,
the pages carry a Content-Security-Policy that lets them load and run only their own files.

This plugin must be set up after the plugins that change the pages.
"""

import functools
import glob
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from asv import _stats, results, util
from asv.commands.publish import Publish
from asv.console import log
from asv.plugins.git import Git
from asv.repo import get_repo

from kernelwatch.asv import cleaning
from kernelwatch.asv.patches import replace
from kernelwatch.asv.publication import Publication
from kernelwatch.history.store import Damaged
from kernelwatch.system import cache
from kernelwatch.system.errors import UserError
from kernelwatch.system.files import locked

ASV_COMMITS = 100  # the newest ones, which asv's own pages show; "asv_commits" in asv.conf.json is another number
POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "object-src 'none'; base-uri 'none'; form-action 'none'"
)
_INLINE = re.compile(r"<script[^>]*>(?!\s*</script>).*?</script>|\s+onerror=\"[^\"]*\"", re.DOTALL)


def copy(source: Path, target: Path, shown: Collection[Path] | None = None) -> list[str]:
    """Copy the results from `source` to `target`, cleaned. Returns a message for each item that is not shown. `shown`:
    the result files that are copied, None for all. Sidecars are not."""
    messages: list[str] = []

    def copy_cleaned(path: Path, clean: Callable[[dict[str, Any], list[str]], dict[str, Any]]) -> None:
        file_messages: list[str] = []
        try:
            fresh = clean(cleaning.read(path), file_messages)
            out = target / path.relative_to(source)
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(fresh), encoding="utf-8")
            if clean is cleaning.checked_result:
                _try(out)
        except cleaning.Refused as error:
            (target / path.relative_to(source)).unlink(missing_ok=True)
            file_messages = [f"it is not shown: {error}"]
        messages.extend(f"{path}: {message}" for message in dict.fromkeys(file_messages))

    for folder, _, names in os.walk(source):
        for name in sorted(names):
            path = Path(folder, name)
            if name == "machine.json":
                copy_cleaned(path, lambda data, _: cleaning.machine(data))
            elif name == "benchmarks.json":
                copy_cleaned(path, cleaning.checked_benchmarks)
            elif name.endswith(".json"):
                if "machine.json" in names and (shown is None or path in shown):
                    copy_cleaned(path, cleaning.checked_result)
            elif not name.endswith(".facts.jsonl"):
                out = target / path.relative_to(source)
                out.parent.mkdir(parents=True, exist_ok=True)
                out.symlink_to(path.resolve())
    return messages


def _try(path: Path) -> None:
    """Let asv read a cleaned file as it does when it publishes. Raises: cleaning.Refused."""
    try:
        loaded = results.Results.load(str(path))
        for name in loaded.get_all_result_keys():
            params = loaded.get_result_params(name)
            loaded.get_result_value(name, params)
            for stats in loaded.get_result_stats(name, params):
                _stats.get_weight(stats)
    except Exception as error:  # whatever the error, this file would end the whole publication
        raise cleaning.Refused(f"asv cannot read it: {type(error).__name__}: {error}") from None


def restrict(folder: Path) -> None:
    """Restrict the pages to loading and running their own files."""
    for page in folder.rglob("*.html"):
        text = _INLINE.sub("", page.read_text(encoding="utf-8"))  # asv's message about an unreachable CDN
        tag = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        page.write_text(text.replace("<head>", f"<head>\n    {tag}", 1), encoding="utf-8")


@contextmanager
def _plain_tags() -> Iterator[None]:
    tags = Git.get_tags
    replace(
        "asv.plugins.git:Git.get_tags",
        lambda self: {cleaning.plain(name): commit for name, commit in tags(self).items()},
    )
    try:
        yield
    finally:
        Git.get_tags = tags


def _publish_untrusted(publish: Any, conf: Any, range_spec: Any = None, pull: bool = True) -> None:
    """Publish.run on a cleaned copy of the results; the new pages replace the existing ones when they are complete."""
    pages = Path(conf.html_dir).absolute()
    pages.parent.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(str(pages).encode()).hexdigest()[:16]

    def waiting(holder: str) -> None:
        log.info(f"waiting: {holder} publishes into {pages}")

    with locked(cache.folder() / f"publishing-{name}.lock", waiting):
        try:
            _clear(pages)
            try:
                _publish_into(pages, publish, conf, range_spec, pull)
            except Damaged as error:
                log.warning(f"what was kept of earlier publications is damaged ({error}): all results are read anew")
                _publish_into(pages, publish, conf, range_spec, pull)
        except (OSError, UserError) as error:
            raise util.UserError(f"nothing was published; {pages} is as it was: {error}") from None


def _prefix(pages: Path) -> str:
    """Of the names of the folders in which new pages are made, beside the existing ones."""
    return f".{pages.name}.publishing-"


def _clear(pages: Path) -> None:
    """Remove what publications that were killed have left. If one was killed while it replaced the pages, they are put
    back."""
    for left in pages.parent.glob(f"{glob.escape(_prefix(pages))}*"):
        if not pages.exists() and (left / "before").is_dir():
            (left / "before").rename(pages)
        shutil.rmtree(left, ignore_errors=True)


def _publish_into(pages: Path, publish: Any, conf: Any, range_spec: Any, pull: bool) -> None:
    source = Path(conf.results_dir).absolute()
    with tempfile.TemporaryDirectory(prefix=_prefix(pages), dir=pages.parent) as fresh, _plain_tags():
        configured = conf.html_dir, conf.results_dir
        try:
            conf.html_dir, conf.results_dir = str(Path(fresh, "html")), str(Path(fresh, "results"))
            Path(fresh, "results").mkdir()
            hashes = _hashes(conf, range_spec)
            suites = Path(conf.benchmark_dir)
            conf.publication = publication = Publication.begun(source, suites, pages, Path(conf.html_dir), hashes)
            shown = publication.recorded.newest(getattr(conf, "asv_commits", ASV_COMMITS))
            messages = [*publication.recorded.messages, *copy(source, Path(conf.results_dir), shown)]
            for message in dict.fromkeys(messages):
                log.warning(message)
            code = publish(conf, range_spec, pull)
            if code:
                raise util.UserError(f"nothing was published; {pages} is as it was")
            restrict(Path(conf.html_dir))
            publication.done()  # before the pages are replaced: if it fails, they are as they were
            if pages.exists():
                pages.rename(Path(fresh, "before"))
            Path(conf.html_dir).rename(pages)
        finally:
            conf.html_dir, conf.results_dir = configured


def _hashes(conf: Any, range_spec: Any) -> list[str] | None:
    """The commits that are published; None for all."""
    if range_spec is None or isinstance(range_spec, list):
        return range_spec
    return list(get_repo(conf).get_hashes_from_range(range_spec))


def setup() -> None:
    """Called by asv when it loads the plugin."""
    replace("asv.commands.publish:Publish.run", staticmethod(functools.partial(_publish_untrusted, Publish.run)))
