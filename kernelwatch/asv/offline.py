"""asv plugin: the pages that ``asv publish`` writes work without a network, over http and from ``file://``.

asv's pages load ten scripts and styles from CDNs and read their data by XMLHttpRequest, which browsers deny to pages
opened from a file. This plugin copies the ten files next to the pages and rewrites the tags. It also writes every
``x.json`` a second time as a script, ``x.json.js``, which ``offline.js`` loads instead.

It is set up after every plugin that changes the pages except ``untrusted``, which must know everything on them.
"""

import re
import shutil
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from asv.commands.publish import Publish
from asv.util import UserError

from kernelwatch.asv.patches import replace
from kernelwatch.site.writer import as_script

HERE = Path(__file__).resolve().parent
VENDOR = HERE / "vendor"
SOURCES = VENDOR / "SOURCES.toml"
LOADER = "offline.js"

_REMOTE_TAG = re.compile(r'<(?:script|link)\b[^>]*?\b(?:src|href)="(?P<url>https?://[^"]+)"[^>]*>')
# Browsers refuse a file:// resource with these attributes, since it has no origin.
_CDN_ATTRIBUTES = re.compile(r'\s+(?:integrity|crossorigin|referrerpolicy)="[^"]*"')


def make_offline(html_dir: Path) -> None:
    """Make the site in html_dir work without a network; a second call changes nothing.

    Raises: UserError if a page would load a remote file, or if index.html does not load every file it needs.
    """
    local = {source["url"]: f"vendor/{source['file']}" for source in vendored()}
    index = html_dir / "index.html"
    html = _REMOTE_TAG.sub(lambda tag: _localised(tag, local), index.read_text(encoding="utf-8"))
    if LOADER not in resources(html):
        # The end of the head: after jQuery, which the loader extends, and before asv's first request, at DOM ready.
        html = html.replace("</head>", f'  <script src="{LOADER}"></script>\n  </head>', 1)
    index.write_text(html, encoding="utf-8")
    shutil.copytree(VENDOR, html_dir / "vendor", dirs_exist_ok=True)
    shutil.copy(HERE / LOADER, html_dir)

    write_scripts(html_dir)

    for page in html_dir.rglob("*.html"):
        for url in sorted(resources(page.read_text(encoding="utf-8"))):
            if is_remote(url):
                raise UserError(
                    f"offline plugin: {page.name} loads {url}, which {SOURCES} does not list; "
                    "vendor that file and list it there, or install the asv that this project pins"
                )
    if missing := {*local.values(), LOADER} - resources(html):
        raise UserError(
            f"offline plugin: {index.name} does not load {', '.join(sorted(missing))}; asv's page should "
            f"load every url of {SOURCES} and have a </head>: install the asv that this project pins"
        )


def write_scripts(folder: Path) -> None:
    """Write every ``x.json`` under a folder a second time as a script, ``x.json.js``."""
    for data in folder.rglob("*.json"):
        script = as_script(data.read_text(encoding="utf-8"))
        data.with_name(data.name + ".js").write_text(script, encoding="ascii")


def vendored() -> list[dict[str, str]]:
    """The entries of SOURCES.toml, one for each vendored file."""
    files: list[dict[str, str]] = tomllib.loads(SOURCES.read_text(encoding="utf-8"))["file"]
    return files


def resources(html: str) -> set[str]:
    """The URLs that a page loads by itself: every src, and the href of every link element."""
    parser = _Resources()
    parser.feed(html)
    parser.close()
    return parser.urls


def is_remote(url: str) -> bool:
    """Whether a URL, as written in a page, refers to another host."""
    parts = urlsplit(url)
    return bool(parts.netloc) or parts.scheme in ("http", "https")


class _Resources(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.urls: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        loading = ("src", "href") if tag == "link" else ("src",)
        self.urls.update(url for name, url in attrs if url and name in loading)


def _localised(tag: re.Match[str], local: dict[str, str]) -> str:
    url = tag["url"]
    if url not in local:
        return tag[0]
    return _CDN_ATTRIBUTES.sub("", tag[0].replace(url, local[url]))


# asv writes index.json after the last OutputPublisher, so only the end of Publish.run is late enough.
_publish = Publish.run


def _publish_offline(conf: Any, *args: Any, **kwargs: Any) -> Any:
    result = _publish(conf, *args, **kwargs)
    make_offline(Path(conf.html_dir))
    return result


def setup() -> None:
    """Called by asv when it loads the plugin."""
    replace("asv.commands.publish:Publish.run", staticmethod(_publish_offline))
