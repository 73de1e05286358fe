"""What of foreign results can be shown: each reader returns a cleaned copy, or raises Refused with the reason.

asv inserts names, units and machines into HTML unescaped, builds paths from them, and fails or hangs at a value that is
not a number.
"""

import html
import json
import math
import os
import re
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

from asv import _stats, results

from kernelwatch.history.records import is_finite
from kernelwatch.system.files import open_regular, read_regular

NAME = re.compile(r"[A-Za-z]\w*(\.\w+)*", re.ASCII)  # of a benchmark: module, class, function
LONGEST_BYTES = 100  # of a text that becomes part of a file name
COMBINATIONS_MAX = 100_000  # of a benchmark's parameters: asv visits every combination
OF_JAVASCRIPT = ("constructor", "hasOwnProperty", "isPrototypeOf", "toString", "valueOf")  # properties of every object


ParamsOf = Callable[[str, list[list[str]]], list[list[str]]]  # of a benchmark, from those that are recorded


def as_they_are(_benchmark: str, params: list[list[str]]) -> list[list[str]]:
    """A ParamsOf."""
    return params


class Refused(Exception):
    """Data that cannot be shown; the message gives the reason."""


def problem(path: Path) -> str:
    """The reason why asv could not use a *.json file of its results; "" if it can."""
    try:
        data = read(path)
        if path.name == "machine.json":
            machine(data)
        elif path.name == "benchmarks.json":
            need(all(isinstance(value, dict) for key, value in data.items() if key != "version"), "its benchmarks")
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


def read(path: Path) -> dict[str, Any]:
    try:
        data: object = json.loads(read_regular(path).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Refused(str(error) or type(error).__name__) from None
    if not isinstance(data, dict):
        raise Refused("it should be an object")
    return data


def need(condition: bool, what: str, wanted: str = "as asv writes them") -> None:
    if not condition:
        raise Refused(f"{what} should be {wanted}")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_finite(value: object) -> bool:
    return _is_number(value) and is_finite(value)


def _is_scalar(value: object) -> bool:
    return value is None or isinstance(value, str | bool) or _is_finite(value)


def _words(values: Any, what: str) -> dict[str, Any]:
    """A flat object of names and values, cleaned by `plain`. Raises: Refused."""
    need(isinstance(values, dict), what, "an object")
    clean = {}
    for key, value in values.items():
        need(_is_scalar(value), f"{what}: {plain(key)}", "a text or number")
        need(key not in OF_JAVASCRIPT and not key.startswith("__"), f"{what}: {plain(key)}", "another name")
        clean[plain(key)] = plain(value) if isinstance(value, str) else value
    return clean


def machine(data: dict[str, Any]) -> dict[str, Any]:
    need(isinstance(data.get("machine"), str), "its machine", "a text")
    return _words(data, "it")


def _params(values: Any, what: str) -> list[list[str]]:
    """Parameters, unchanged: the pages show them as text and build no path from them. Raises: Refused."""
    are_lists = isinstance(values, list) and all(isinstance(each, list) for each in values)
    need(are_lists and all(isinstance(text, str) for each in values for text in each), what, "lists of texts")
    need(math.prod(map(len, values)) <= COMBINATIONS_MAX, what, f"at most {COMBINATIONS_MAX} combinations")
    return list(values)


def _benchmark(name: str, benchmark: Any, params_of: ParamsOf) -> dict[str, Any]:
    _check_name(name)
    need(isinstance(benchmark, dict) and benchmark.get("name") == name, "it", "an object with its name")
    params, names = _params(benchmark.get("params", []), "its parameters"), benchmark.get("param_names", [])
    need(isinstance(names, list) and len(names) == len(params), "its parameters' names", "as many as parameters")
    scalars = {key: value for key, value in benchmark.items() if _is_scalar(value)}
    clean = _words({key: value for key, value in scalars.items() if key != "code"}, "it")
    return clean | {
        "code": html.escape(str(scalars.get("code") or "")),  # shown only in a tooltip, as HTML
        "params": params_of(name, params),
        "param_names": [plain(str(each)) for each in names],
    }


def _check_name(name: str) -> None:
    first = name.partition(".")[0]
    need(NAME.fullmatch(name) is not None and first not in OF_JAVASCRIPT, "its name", "that of a Python function")
    need(len(name) <= 2 * LONGEST_BYTES, "its name", f"at most {2 * LONGEST_BYTES} letters long")


def result(data: dict[str, Any], messages: list[str], params_of: ParamsOf = as_they_are) -> dict[str, Any]:
    """A commit's results, fit to be published. Appends to `messages` what is not shown. Raises: Refused."""
    need(isinstance(data.get("commit_hash"), str), "its commit_hash", "a text")
    need(re.fullmatch("[0-9a-f]{7,64}", data["commit_hash"]) is not None, "its commit_hash", "a hash")
    need(_is_finite(data.get("date")), "its date", "a number")
    columns: Any = data.get("result_columns")
    series: Any = data.get("results")
    need(isinstance(columns, list) and all(isinstance(each, str) for each in columns), "its result_columns", "texts")
    need(isinstance(series, dict), "its results", "an object")
    clean = {}
    for name, values in series.items():
        try:
            _check_name(name)
            fits = isinstance(values, list) and len(values) <= len(columns)
            need(fits, "it", "a list of at most one value per column")
            clean[name] = _series(dict(zip(columns, values, strict=False)), columns, messages, name, params_of)
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


def _series(
    series: dict[str, Any], columns: list[str], messages: list[str], name: str, params_of: ParamsOf
) -> list[Any]:
    """The cleaned columns of one benchmark. Raises: Refused."""
    clean: dict[str, Any] = {"params": params_of(name, _params(series.get("params") or [], "its parameters"))}
    values = series.get("result")
    need(values is None or isinstance(values, list), "its result", "a list")
    for value in values or []:
        is_nan = isinstance(value, float) and math.isnan(value)
        if not (value is None or is_nan or _is_finite(value)):
            messages.append(f"{name}: {plain(repr(value))} is not a finite number; shown as n/a")
    clean["result"] = values and [value if value is None or _is_finite(value) else math.nan for value in values]
    for column in columns:
        value = series.get(column)
        if column.startswith("stats_"):
            need(value is None or isinstance(value, list), f"its {column}", "a list")
            clean[column] = value and [each if _is_number(each) else None for each in value]
        elif column in ("started_at", "duration"):
            clean[column] = value if _is_finite(value) else None
        elif column == "version":
            clean[column] = value if isinstance(value, str) else None
        elif column not in ("params", "result"):
            clean[column] = None  # samples and profiles are not published
    return [clean[column] for column in columns]


def checked_result(data: dict[str, Any], messages: list[str], params_of: ParamsOf = as_they_are) -> dict[str, Any]:
    is_old = data.get("version") in (None, 1)
    need(not is_old, "its format", "newer: run `asv update`")
    return result(data, messages, params_of)


def checked_benchmarks(data: dict[str, Any], messages: list[str], params_of: ParamsOf = as_they_are) -> dict[str, Any]:
    clean: dict[str, Any] = {"version": data.pop("version", None)}
    for name, benchmark in data.items():
        try:
            clean[name] = _benchmark(name, benchmark, params_of)
        except Refused as error:
            messages.append(f"{plain(name)} is not shown: {error}")
    return clean


def copy(
    source: Path, target: Path, shown: Collection[Path] | None = None, params_of: ParamsOf = as_they_are
) -> list[str]:
    """Copy the results from `source` to `target`, cleaned. Returns a message for each item that is not shown. `shown`:
    the result files that are copied, None for all. Sidecars are not."""
    messages: list[str] = []
    checked = partial(checked_result, params_of=params_of)

    def copy_cleaned(path: Path, clean: Callable[[dict[str, Any], list[str]], dict[str, Any]]) -> None:
        file_messages: list[str] = []
        try:
            fresh = clean(read(path), file_messages)
            out = target / path.relative_to(source)
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(fresh), encoding="utf-8")
            if clean is checked:
                _try(out)
        except Refused as error:
            (target / path.relative_to(source)).unlink(missing_ok=True)
            file_messages = [f"it is not shown: {error}"]
        messages.extend(f"{path}: {message}" for message in dict.fromkeys(file_messages))

    def refuse(error: OSError) -> None:
        messages.append(f"{error.filename}: it is not shown: {error.strerror}")

    for folder, _, names in os.walk(source, onerror=refuse):
        for name in sorted(names):
            path = Path(folder, name)
            if name == "machine.json":
                copy_cleaned(path, lambda data, _: machine(data))
            elif name == "benchmarks.json":
                copy_cleaned(path, partial(checked_benchmarks, params_of=params_of))
            elif name.endswith(".json"):
                if "machine.json" in names and (shown is None or path in shown):
                    copy_cleaned(path, checked)
            elif not name.endswith(".facts.jsonl"):
                out = target / path.relative_to(source)
                out.parent.mkdir(parents=True, exist_ok=True)
                try:
                    open_regular(path).close()
                    out.symlink_to(path.resolve())
                except OSError as error:
                    refuse(error)
    return messages


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
