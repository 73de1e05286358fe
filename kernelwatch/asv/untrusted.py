"""asv plugin: `asv publish` treats results and repositories as untrusted data, so it can show those of strangers.

asv inserts names, units, tags and machines into HTML unescaped and builds paths from them. It fails or hangs at a value
that is not a number, after it has deleted the pages. Here it publishes a cleaned copy of the results into a new folder,
which replaces the pages at the end. Each refused file, benchmark or value is named in a warning. As a second defense,
the pages carry a Content-Security-Policy that lets them load and run only their own files.

This plugin must be set up after the plugins that change the pages.
"""

import functools
import html
import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeGuard

from asv import _stats, results, util
from asv.commands.publish import Publish
from asv.console import log
from asv.plugins.git import Git

from kernelwatch.asv.patches import replace

NAME = re.compile(r"[A-Za-z]\w*(\.\w+)*", re.ASCII)  # of a benchmark: module, class, function
LONGEST_BYTES = 100  # of a text that becomes part of a file name
COMBINATIONS_MAX = 100_000  # of a benchmark's parameters: asv visits every combination
OF_JAVASCRIPT = ("constructor", "hasOwnProperty", "isPrototypeOf", "toString", "valueOf")  # properties of every object
POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "object-src 'none'; base-uri 'none'; form-action 'none'"
)
_INLINE = re.compile(r"<script[^>]*>(?!\s*</script>).*?</script>|\s+onerror=\"[^\"]*\"", re.DOTALL)


class Refused(Exception):
    """Data that cannot be shown; the message gives the reason."""


def problem(path: Path) -> str:
    """The reason why asv could not use a *.json file of its results; "" if it can."""
    try:
        data = _read(path)
        if path.name == "machine.json":
            _machine(data)
        elif path.name == "benchmarks.json":
            _need(all(isinstance(value, dict) for key, value in data.items() if key != "version"), "its benchmarks")
        elif not isinstance(data.get("version", 0), int):
            raise Refused("its version should be a whole number")
        elif data.get("version", 0) >= results.Results.api_version:  # asv itself reports older ones
            result(data, [])
    except Refused as error:
        return str(error)
    return ""


def plain(text: str) -> str:
    """The text without characters that could form HTML tags or attributes, cut to a length that fits in a file name.
    (asv replaces slashes with underscores when it builds paths.)"""
    clean = re.sub(r"[<>\"\x00-\x1f\x7f]", "_", text).encode("utf-8", "replace")[:LONGEST_BYTES]
    return clean.decode("utf-8", "ignore")


def _read(path: Path) -> dict[str, Any]:
    try:
        data: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Refused(str(error) or type(error).__name__) from None
    if not isinstance(data, dict):
        raise Refused("it should be an object")
    return data


def _need(condition: bool, what: str, wanted: str = "as asv writes them") -> None:
    if not condition:
        raise Refused(f"{what} should be {wanted}")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_finite(value: object) -> bool:
    try:
        return _is_number(value) and math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        return False


def _is_scalar(value: object) -> bool:
    return value is None or isinstance(value, str | bool) or _is_finite(value)


def _words(values: Any, what: str) -> dict[str, Any]:
    """A flat object of names and values, cleaned by `plain`. Raises: Refused."""
    _need(isinstance(values, dict), what, "an object")
    clean = {}
    for key, value in values.items():
        _need(_is_scalar(value), f"{what}: {plain(key)}", "a text or number")
        _need(key not in OF_JAVASCRIPT and not key.startswith("__"), f"{what}: {plain(key)}", "another name")
        clean[plain(key)] = plain(value) if isinstance(value, str) else value
    return clean


def _machine(data: dict[str, Any]) -> dict[str, Any]:
    _need(isinstance(data.get("machine"), str), "its machine", "a text")
    return _words(data, "it")


def _params(values: Any, what: str) -> list[list[str]]:
    """Parameters, unchanged: the pages show them as text and build no path from them. Raises: Refused."""
    are_lists = isinstance(values, list) and all(isinstance(each, list) for each in values)
    _need(are_lists and all(isinstance(text, str) for each in values for text in each), what, "lists of texts")
    _need(math.prod(map(len, values)) <= COMBINATIONS_MAX, what, f"at most {COMBINATIONS_MAX} combinations")
    return list(values)


def _benchmark(name: str, benchmark: Any) -> dict[str, Any]:
    _check_name(name)
    _need(isinstance(benchmark, dict) and benchmark.get("name") == name, "it", "an object with its name")
    params, names = _params(benchmark.get("params", []), "its parameters"), benchmark.get("param_names", [])
    _need(isinstance(names, list) and len(names) == len(params), "its parameters' names", "as many as parameters")
    scalars = {key: value for key, value in benchmark.items() if _is_scalar(value)}
    clean = _words({key: value for key, value in scalars.items() if key != "code"}, "it")
    return clean | {
        "code": html.escape(str(scalars.get("code") or "")),  # shown only in a tooltip, as HTML
        "params": params,
        "param_names": [plain(str(each)) for each in names],
    }


def _check_name(name: str) -> None:
    first = name.partition(".")[0]
    _need(NAME.fullmatch(name) is not None and first not in OF_JAVASCRIPT, "its name", "that of a Python function")
    _need(len(name) <= 2 * LONGEST_BYTES, "its name", f"at most {2 * LONGEST_BYTES} letters long")


def result(data: dict[str, Any], messages: list[str]) -> dict[str, Any]:
    """A commit's results, fit to be published. Appends to `messages` what is not shown. Raises: Refused."""
    _need(isinstance(data.get("commit_hash"), str), "its commit_hash", "a text")
    _need(re.fullmatch("[0-9a-f]{7,64}", data["commit_hash"]) is not None, "its commit_hash", "a hash")
    _need(_is_finite(data.get("date")), "its date", "a number")
    columns: Any = data.get("result_columns")
    series: Any = data.get("results")
    _need(isinstance(columns, list) and all(isinstance(each, str) for each in columns), "its result_columns", "texts")
    _need(isinstance(series, dict), "its results", "an object")
    clean = {}
    for name, values in series.items():
        try:
            _check_name(name)
            fits = isinstance(values, list) and len(values) <= len(columns)
            _need(fits, "it", "a list of at most one value per column")
            clean[name] = _series(dict(zip(columns, values, strict=False)), columns, messages, name)
        except Refused as error:
            messages.append(f"{plain(name)} is not shown: {error}")
    return data | {
        "params": _words(data.get("params"), "its params"),
        "env_vars": _words(data.get("env_vars", {}), "its env_vars"),
        "requirements": _words(data.get("requirements", {}), "its requirements"),
        "python": plain(str(data.get("python"))),
        "env_name": plain(str(data.get("env_name"))),
        "durations": {},
        "results": clean,
    }


def _series(series: dict[str, Any], columns: list[str], messages: list[str], name: str) -> list[Any]:
    """The cleaned columns of one benchmark. Raises: Refused."""
    clean: dict[str, Any] = {"params": _params(series.get("params") or [], "its parameters")}
    values = series.get("result")
    _need(values is None or isinstance(values, list), "its result", "a list")
    for value in values or []:
        is_nan = isinstance(value, float) and math.isnan(value)
        if not (value is None or is_nan or _is_finite(value)):
            messages.append(f"{name}: {plain(repr(value))} is not a finite number; shown as n/a")
    clean["result"] = values and [value if value is None or _is_finite(value) else math.nan for value in values]
    for column in columns:
        value = series.get(column)
        if column.startswith("stats_"):
            _need(value is None or isinstance(value, list), f"its {column}", "a list")
            clean[column] = value and [each if _is_number(each) else None for each in value]
        elif column in ("started_at", "duration"):
            clean[column] = value if _is_finite(value) else None
        elif column == "version":
            clean[column] = value if isinstance(value, str) else None
        elif column not in ("params", "result"):
            clean[column] = None  # samples and profiles are not published
    return [clean[column] for column in columns]


def copy(source: Path, target: Path) -> list[str]:
    """Copy the results from `source` to `target`, cleaned. Returns a message for each item that is not shown."""
    messages: list[str] = []

    def copy_cleaned(path: Path, clean: Callable[[dict[str, Any], list[str]], dict[str, Any]]) -> None:
        file_messages: list[str] = []
        try:
            fresh = clean(_read(path), file_messages)
            out = target / path.relative_to(source)
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(fresh), encoding="utf-8")
            if clean is _checked_result:
                _try(out)
        except Refused as error:
            (target / path.relative_to(source)).unlink(missing_ok=True)
            file_messages = [f"it is not shown: {error}"]
        messages.extend(f"{path}: {message}" for message in dict.fromkeys(file_messages))

    for folder, _, names in os.walk(source):
        for name in sorted(names):
            path = Path(folder, name)
            if name == "machine.json":
                copy_cleaned(path, lambda data, _: _machine(data))
            elif name == "benchmarks.json":
                copy_cleaned(path, _checked_benchmarks)
            elif name.endswith(".json"):
                if "machine.json" in names:
                    copy_cleaned(path, _checked_result)
            else:  # sidecars, which are read during publishing
                out = target / path.relative_to(source)
                out.parent.mkdir(parents=True, exist_ok=True)
                out.symlink_to(path.resolve())
    return messages


def _checked_result(data: dict[str, Any], messages: list[str]) -> dict[str, Any]:
    is_old = data.get("version") in (None, 1)
    _need(not is_old, "its format", "newer: run `asv update`")
    return result(data, messages)


def _checked_benchmarks(data: dict[str, Any], messages: list[str]) -> dict[str, Any]:
    clean: dict[str, Any] = {"version": data.pop("version", None)}
    for name, benchmark in data.items():
        try:
            clean[name] = _benchmark(name, benchmark)
        except Refused as error:
            messages.append(f"{plain(name)} is not shown: {error}")
    return clean


def _try(path: Path) -> None:
    """Let asv read a cleaned file as it does when it publishes. Raises: Refused."""
    try:
        loaded = results.Results.load(str(path))
        for name in loaded.get_all_result_keys():
            params = loaded.get_result_params(name)
            loaded.get_result_value(name, params)
            for stats in loaded.get_result_stats(name, params):
                _stats.get_weight(stats)
    except Exception as error:  # whatever the error, this file would end the whole publication
        raise Refused(f"asv cannot read it: {type(error).__name__}: {error}") from None


def restrict(folder: Path) -> None:
    """Restrict the pages to loading and running their own files."""
    for page in folder.rglob("*.html"):
        text = _INLINE.sub("", page.read_text(encoding="utf-8"))  # asv's message about an unreachable CDN
        tag = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        page.write_text(text.replace("<head>", f"<head>\n    {tag}", 1), encoding="utf-8")


@contextmanager
def _plain_tags() -> Iterator[None]:
    tags = Git.get_tags
    replace("asv.plugins.git:Git.get_tags", lambda self: {plain(name): commit for name, commit in tags(self).items()})
    try:
        yield
    finally:
        Git.get_tags = tags


def _publish_untrusted(publish: Any, conf: Any, *args: Any, **kwargs: Any) -> Any:
    """Publish.run on a cleaned copy of the results; the new pages replace the existing ones when they are complete."""
    pages, source = Path(conf.html_dir).absolute(), Path(conf.results_dir).absolute()
    pages.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{pages.name}.", dir=pages.parent) as fresh, _plain_tags():
        configured = conf.html_dir, conf.results_dir
        try:
            conf.html_dir, conf.results_dir = str(Path(fresh, "html")), str(Path(fresh, "results"))
            Path(fresh, "results").mkdir()
            for message in copy(source, Path(conf.results_dir)):
                log.warning(message)
            code = publish(conf, *args, **kwargs)
            if code:
                raise util.UserError(f"nothing was published; {pages} is as it was")
            restrict(Path(conf.html_dir))
            if pages.exists():
                pages.rename(Path(fresh, "before"))
            Path(conf.html_dir).rename(pages)
        finally:
            conf.html_dir, conf.results_dir = configured
    return None


def setup() -> None:
    """Called by asv when it loads the plugin."""
    replace("asv.commands.publish:Publish.run", staticmethod(functools.partial(_publish_untrusted, Publish.run)))
