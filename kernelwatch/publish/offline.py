"""Makes asv's pages work without a network, over http and from ``file://``, and lets pages load only their own files.

asv's pages load ten scripts and styles from CDNs and read their data by XMLHttpRequest, which browsers deny to pages
opened from a file. The ten files lie next to the pages (kernelwatch/site/asv), and the tags are rewritten. Every
``x.json`` is written a second time as a script, ``x.json.js``, which ``offline.js`` loads instead.
"""

import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

from asv.util import UserError

import kernelwatch
from kernelwatch.publish.writer import as_script

SITE = Path(kernelwatch.__file__).resolve().parent / "site"  # what every site has: scripts, styles, HTML
VENDOR = SITE / "asv" / "vendor"
SOURCES = VENDOR / "SOURCES.toml"
LOADER = "offline.js"
POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "object-src 'none'; base-uri 'none'; form-action 'none'"
)
_INLINE = re.compile(r"<script[^>]*>(?!\s*</script>).*?</script>|\s+onerror=\"[^\"]*\"", re.DOTALL)

_REMOTE_TAG = re.compile(r'<(?:script|link)\b[^>]*?\b(?:src|href)="(?P<url>https?://[^"]+)"[^>]*>')
# Browsers refuse a file:// resource with these attributes, since it has no origin.
_CDN_ATTRIBUTES = re.compile(r'\s+(?:integrity|crossorigin|referrerpolicy)="[^"]*"')


def make_offline(html_dir: Path) -> None:
    """Make asv's pages in html_dir work without a network, beside the files of SITE; a second call changes nothing.

    Raises: UserError if a page would load a remote file, or if index.html does not load every file it needs.
    """
    local = {source["url"]: f"vendor/{source['file']}" for source in vendored()}
    index = html_dir / "index.html"
    html = _REMOTE_TAG.sub(lambda tag: _localised(tag, local), index.read_text(encoding="utf-8"))
    if LOADER not in resources(html):
        # The end of the head: after jQuery, which the loader extends, and before asv's first request, at DOM ready.
        html = html.replace("</head>", f'  <script src="{LOADER}"></script>\n  </head>', 1)
    index.write_text(html, encoding="utf-8")
    write_scripts(html_dir)

    for page in html_dir.rglob("*.html"):
        for url in sorted(resources(page.read_text(encoding="utf-8"))):
            if is_remote(url):
                raise UserError(
                    f"asv's pages: {page.name} loads {url}, which {SOURCES} does not list; "
                    "vendor that file and list it there, or install the asv that this project pins"
                )
    if missing := {*local.values(), LOADER} - resources(html):
        raise UserError(
            f"asv's pages: {index.name} does not load {', '.join(sorted(missing))}; asv's page should "
            f"load every url of {SOURCES} and have a </head>: install the asv that this project pins"
        )


def restrict(folder: Path) -> None:
    """Restrict the pages to loading and running their own files."""
    for page in folder.rglob("*.html"):
        text = _INLINE.sub("", page.read_text(encoding="utf-8"))  # asv's message about an unreachable CDN
        tag = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        page.write_text(text.replace("<head>", f"<head>\n    {tag}", 1), encoding="utf-8")


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
