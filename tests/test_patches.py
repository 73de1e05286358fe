"""The table of what is replaced of asv: each digest holds, and an asv that differs is refused by name."""

import inspect
import re
from dataclasses import replace
from pathlib import Path

import pytest
from asv import util
from asv.graph import Graph
from asv.util import UserError

from kernelwatch.asv import patches, publishing

PLUGINS = Path(patches.__file__).parent


@pytest.mark.parametrize("target", patches.TABLE)
def test_asv_is_the_one_that_is_replaced(target: str) -> None:
    patches.check(target)


@pytest.mark.parametrize("target", [target for target in patches.TABLE if ":" in target])
def test_all_of_a_function_counts(target: str) -> None:
    owner, name = patches.owner_of(target)
    function = getattr(owner, name)
    assert patches.source_of(function.__code__) == inspect.getsource(function)


def test_another_asv_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    target = "asv.util:write_json"
    monkeypatch.setitem(patches.TABLE, target, replace(patches.TABLE[target], digest="another"))
    with pytest.raises(UserError, match=r"asv's asv\.util:write_json is not the one .*files are written whole"):
        patches.replace(target, None)


def test_another_script_of_the_pages_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "graphdisplay.js"
    script.write_text("old old")
    with pytest.raises(UserError, match="should contain 'old' exactly once"):
        patches.replace_words(script, {"old": "new"})
    monkeypatch.setitem(patches.TABLE, "www/graphdisplay.js", replace(patches.TABLE["www/graphdisplay.js"], digest=""))
    with pytest.raises(UserError, match=r"www/graphdisplay\.js is not the one"):
        patches.replace_words(script, {"old": "new"})


def test_every_replacement_is_in_the_table_and_every_entry_is_used() -> None:
    sources = {path: path.read_text() for path in PLUGINS.glob("*.py") if path.name != "patches.py"}
    used = [target for text in sources.values() for target in re.findall(r'replace\(\s*"([^"]+:[^"]+)"', text)]
    scripts = {f"www/{name}" for text in sources.values() for name in re.findall(r'"(graphdisplay\.js)"', text)}
    assert {*used, *scripts} == set(patches.TABLE)
    assert len(used) == len(set(used))  # each by one plugin, once: the order of the plugins does not matter
    for path, text in sources.items():  # no other way to replace a name of asv's than through the table
        assert not re.search(
            r"^    (setattr\(|(Publish|Run|Compare|Git|Regressions|runner|util|results|machine)\.\w+(\.\w+)? = )",
            text,
            re.M,
        ), path


def test_a_graph_is_averaged_once_and_again_after_a_point_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    averaged: list[Graph] = []

    def average(graph: Graph) -> object:
        averaged.append(graph)
        return asvs(graph)

    asvs = publishing._reduce
    monkeypatch.setattr(publishing, "_reduce", average)
    graph = Graph("suite.step", {"machine": "host"})
    for revision, value in ((3, 1.0), (3, 2.0), (5, None), (7, 4.0)):
        graph.add_data_point(revision, value)
        assert publishing._reduced(graph) == publishing._reduced(graph) == asvs(graph)
    assert len(averaged) == 4
    assert [value for _, value, _ in publishing._reduced(graph)] == [1.5, None, 4.0]


@pytest.mark.parametrize("text", ["gpu-NVIDIA H200", 'a/b:"<c>|?*', "CON", "x" * 300, "\N{SNOWMAN}"])
def test_a_file_name_is_the_one_that_asv_gives(text: str) -> None:
    asvs = publishing._escape.__wrapped__
    assert asvs.__module__ == util.__name__
    assert publishing._file_name(text) == publishing._file_name(text) == asvs(text)
