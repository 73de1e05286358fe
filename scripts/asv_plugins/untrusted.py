"""asv plugin: results, and what a repository is full of, are data: `asv publish` can show those of strangers.

asv joins names, units, tags and machines into HTML as they are, makes paths of them, and fails or hangs at a value that
is no number, after it has deleted the pages. So it is given a copy of the results from which all this is gone, and
writes beside the pages, which are replaced at the end. A file, benchmark or value that is refused is named. As a second
line the pages say, by a Content-Security-Policy, that they load and run nothing but their own files.

asv is patched under one name, Publish.run, and Git.get_tags while it runs; tests/test_untrusted.py fails when one is
gone, and when stock asv needs none of this. To be listed after the plugins that change the pages.
"""

import functools
import html
import json
import math
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from asv import _stats, results, util
from asv.commands.publish import Publish
from asv.console import log
from asv.plugins.git import Git

NAME = re.compile(r"[A-Za-z]\w*(\.\w+)*", re.ASCII)  # a benchmark's: module, class, function
LONGEST_BYTES = 100  # of a text that becomes a part of a file name
COMBINATIONS_MAX = 100_000  # of a benchmark's parameters: asv goes through all of them
OF_JAVASCRIPT = ("constructor", "hasOwnProperty", "isPrototypeOf", "toString", "valueOf")  # every object has them
POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "object-src 'none'; base-uri 'none'; form-action 'none'"
)
_INLINE = re.compile(r"<script[^>]*>(?!\s*</script>).*?</script>|\s+onerror=\"[^\"]*\"", re.DOTALL)


class Refused(Exception):
    """What cannot be shown; the message says why."""


def problem(path: Path) -> str:
    """Why asv could not use one of the *.json of its results, "" where it can."""
    try:
        data = _read(path)
        if path.name == "machine.json":
            _machine(data)
        elif path.name == "benchmarks.json":
            _need(all(isinstance(value, dict) for key, value in data.items() if key != "version"), "its benchmarks")
        elif not isinstance(data.get("version", 0), int):
            raise Refused("its version is no whole number")
        elif data.get("version", 0) >= results.Results.api_version:  # asv says what to do about an older one
            result(data, [])
    except Refused as error:
        return str(error)
    return ""


def plain(text: str) -> str:
    """A text that is none of HTML's tags or attributes, of a length that fits into a file name. (Of slashes asv makes
    underscores where it makes paths.)"""
    clean = re.sub(r"[<>\"\x00-\x1f\x7f]", "_", text).encode("utf-8", "replace")[:LONGEST_BYTES]
    return clean.decode("utf-8", "ignore")


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Refused(str(error) or type(error).__name__) from None
    _need(isinstance(data, dict), "it", "an object")
    return dict(data)


def _need(true: Any, what: str, wanted: str = "as asv writes them") -> None:
    if not true:
        raise Refused(f"{what} should be {wanted}")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _finite(value: Any) -> bool:
    try:
        return _number(value) and math.isfinite(value)
    except OverflowError:  # an integer that no float holds
        return False


def _simple(value: Any) -> bool:
    return value is None or isinstance(value, str | bool) or _finite(value)


def _words(values: Any, what: str) -> dict[str, Any]:
    """A flat object of names and values, plain."""
    _need(isinstance(values, dict), what, "an object")
    clean = {}
    for key, value in values.items():
        _need(
            value is None or isinstance(value, str | bool) or _finite(value),
            f"{what}: {plain(key)}",
            "a text or number",
        )
        _need(key not in OF_JAVASCRIPT and not key.startswith("__"), f"{what}: {plain(key)}", "another name")
        clean[plain(key)] = plain(value) if isinstance(value, str) else value
    return clean


def _machine(data: dict[str, Any]) -> dict[str, Any]:
    _need(isinstance(data.get("machine"), str), "its machine", "a text")
    return _words(data, "it")


def _params(values: Any, what: str) -> list[list[str]]:
    """Parameters, which the pages show as text and make no path of: as they are."""
    lists = isinstance(values, list) and all(isinstance(one, list) for one in values)
    _need(lists and all(isinstance(text, str) for one in values for text in one), what, "lists of texts")
    _need(math.prod(map(len, values)) <= COMBINATIONS_MAX, what, f"{COMBINATIONS_MAX} combinations at most")
    return list(values)


def _benchmark(name: str, found: Any) -> dict[str, Any]:
    _name(name)
    _need(isinstance(found, dict) and found.get("name") == name, "it", "an object with its name")
    params, names = _params(found.get("params", []), "its parameters"), found.get("param_names", [])
    _need(isinstance(names, list) and len(names) == len(params), "its parameters' names", "as many as parameters")
    texts = {key: value for key, value in found.items() if _simple(value)}
    clean = _words({key: value for key, value in texts.items() if key != "code"}, "it")
    return clean | {
        "code": html.escape(str(texts.get("code") or "")),  # nowhere but in a tip, as HTML
        "params": params,
        "param_names": [plain(str(one)) for one in names],
    }


def _name(name: str) -> None:
    first = name.partition(".")[0]
    _need(NAME.fullmatch(name) is not None and first not in OF_JAVASCRIPT, "its name", "that of a Python function")
    _need(len(name) <= 2 * LONGEST_BYTES, "its name", f"{2 * LONGEST_BYTES} letters long at most")


def result(data: dict[str, Any], said: list[str]) -> dict[str, Any]:
    """A commit's results, fit to be published; `said` gets what is not shown. Raises: Refused."""
    _need(isinstance(data.get("commit_hash"), str), "its commit_hash", "a text")
    _need(re.fullmatch("[0-9a-f]{7,64}", data["commit_hash"]) is not None, "its commit_hash", "a hash")
    _need(_finite(data.get("date")), "its date", "a number")
    columns: Any = data.get("result_columns")
    series: Any = data.get("results")
    _need(isinstance(columns, list) and all(isinstance(one, str) for one in columns), "its result_columns", "texts")
    _need(isinstance(series, dict), "its results", "an object")
    clean = {}
    for name, values in series.items():
        try:
            _name(name)
            _need(isinstance(values, list) and len(values) <= len(columns), "it", "a list, of a value a column at most")
            clean[name] = _series(dict(zip(columns, values, strict=False)), columns, said, name)
        except Refused as error:
            said.append(f"{plain(name)} is not shown: {error}")
    return data | {
        "params": _words(data.get("params"), "its params"),
        "env_vars": _words(data.get("env_vars", {}), "its env_vars"),
        "requirements": _words(data.get("requirements", {}), "its requirements"),
        "python": plain(str(data.get("python"))),
        "env_name": plain(str(data.get("env_name"))),
        "durations": {},
        "results": clean,
    }


def _series(found: dict[str, Any], columns: list[str], said: list[str], name: str) -> list[Any]:
    """The columns of one benchmark."""
    clean: dict[str, Any] = {"params": _params(found.get("params") or [], "its parameters")}
    values = found.get("result")
    _need(values is None or isinstance(values, list), "its result", "a list")
    for value in values or []:
        if value is not None and not _finite(value) and not (isinstance(value, float) and math.isnan(value)):
            said.append(f"{name}: {plain(repr(value))} is no finite number; shown as n/a")
    clean["result"] = values and [value if value is None or _finite(value) else math.nan for value in values]
    for column in columns:
        value = found.get(column)
        if column.startswith("stats_"):
            _need(value is None or isinstance(value, list), f"its {column}", "a list")
            clean[column] = value and [one if _number(one) else None for one in value]
        elif column in ("started_at", "duration"):
            clean[column] = value if _finite(value) else None
        elif column == "version":
            clean[column] = value if isinstance(value, str) else None
        elif column not in ("params", "result"):
            clean[column] = None  # samples, profiles: not published
    return [clean[column] for column in columns]


def copy(source: Path, target: Path) -> list[str]:
    """The results in `source`, fit to be published, into `target`; what is not shown, and why."""
    said: list[str] = []

    def clean(path: Path, kept: Any) -> None:
        told: list[str] = []
        try:
            fresh = kept(_read(path), told)
            out = target / path.relative_to(source)
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(fresh), encoding="utf-8")
            if kept is _checked_result:
                _try(out)
        except Refused as error:
            (target / path.relative_to(source)).unlink(missing_ok=True)
            told = [f"it is not shown: {error}"]
        said.extend(f"{path}: {one}" for one in dict.fromkeys(told))

    for folder, _, names in os.walk(source):
        for name in sorted(names):
            path = Path(folder, name)
            if name == "machine.json":
                clean(path, lambda data, told: _machine(data))
            elif name == "benchmarks.json":
                clean(path, _checked_benchmarks)
            elif name.endswith(".json"):
                if "machine.json" in names:
                    clean(path, _checked_result)
            else:  # sidecars, for whoever reads them while publishing
                out = target / path.relative_to(source)
                out.parent.mkdir(parents=True, exist_ok=True)
                out.symlink_to(path.resolve())
    return said


def _checked_result(data: dict[str, Any], told: list[str]) -> dict[str, Any]:
    old = data.get("version") in (None, 1)
    _need(not old, "its format", "newer: `asv update` makes it so")
    return result(data, told)


def _checked_benchmarks(data: dict[str, Any], told: list[str]) -> dict[str, Any]:
    clean: dict[str, Any] = {"version": data.pop("version", None)}
    for name, found in data.items():
        try:
            clean[name] = _benchmark(name, found)
        except Refused as error:
            told.append(f"{plain(name)} is not shown: {error}")
    return clean


def _try(path: Path) -> None:
    """Have asv read what is left of a file, as it does when it publishes. Raises: Refused."""
    try:
        loaded = results.Results.load(str(path))
        for name in loaded.get_all_result_keys():
            params = loaded.get_result_params(name)
            loaded.get_result_value(name, params)
            for stats in loaded.get_result_stats(name, params):
                _stats.get_weight(stats)
    except Exception as error:  # whatever it is, this file would end the publishing of all
        raise Refused(f"asv cannot read it: {type(error).__name__}: {error}") from None


def restrict(folder: Path) -> None:
    """Pages that load and run nothing but files of their own."""
    for page in folder.rglob("*.html"):
        text = _INLINE.sub("", page.read_text(encoding="utf-8"))  # asv's word about a CDN that is not there
        tag = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        page.write_text(text.replace("<head>", f"<head>\n    {tag}", 1), encoding="utf-8")


@contextmanager
def _plain_tags() -> Iterator[None]:
    tags = Git.get_tags
    Git.get_tags = lambda self: {plain(name): commit for name, commit in tags(self).items()}
    try:
        yield
    finally:
        Git.get_tags = tags


def _publish_untrusted(publish: Any, conf: Any, *args: Any, **kwargs: Any) -> Any:
    """Publish.run on a clean copy, beside the pages that are there, which it replaces when it is done."""
    pages, source = Path(conf.html_dir).absolute(), Path(conf.results_dir).absolute()
    pages.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{pages.name}.", dir=pages.parent) as fresh, _plain_tags():
        given = conf.html_dir, conf.results_dir
        try:
            conf.html_dir, conf.results_dir = str(Path(fresh, "html")), str(Path(fresh, "results"))
            Path(fresh, "results").mkdir()
            for said in copy(source, Path(conf.results_dir)):
                log.warning(said)
            code = publish(conf, *args, **kwargs)
            if code:
                raise util.UserError(f"nothing was published; {pages} is as it was")
            restrict(Path(conf.html_dir))
            if pages.exists():
                pages.rename(Path(fresh, "before"))
            Path(conf.html_dir).rename(pages)
        finally:
            conf.html_dir, conf.results_dir = given
    return None


def setup() -> None:
    """Called by asv when it loads the plugin."""
    Publish.run = staticmethod(functools.partial(_publish_untrusted, Publish.run))
