"""Who measured, whole files, the sidecar; and that asv still has, and still needs, what the plugin patches."""

import atexit
import errno
import inspect
import json
import os
import platform
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from asv import machine, results, util

from kernelwatch.asv import recording
from kernelwatch.asv.machine_names import described, gpu_name

ORIGINAL = {
    "get_unique_machine_name": machine.Machine.get_unique_machine_name,
    "load": machine.MachineCollection.load,
    "save": results.Results.save,
    "write_json": util.write_json,
}


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """asv with the plugin set up, for one test; the folder where the suites leave facts."""
    monkeypatch.setattr(machine.Machine, "get_unique_machine_name", machine.Machine.get_unique_machine_name)
    monkeypatch.setattr(machine.MachineCollection, "load", machine.MachineCollection.load)
    monkeypatch.setattr(results.Results, "save", results.Results.save)
    monkeypatch.setattr(util, "write_json", util.write_json)
    monkeypatch.setenv("KERNELWATCH_FACTS", "")
    at_exit: list[Callable[[], object]] = []
    with monkeypatch.context() as patch:
        patch.setattr(atexit, "register", at_exit.append)
        recording.setup()
    folder = Path(os.environ["KERNELWATCH_FACTS"])
    yield folder
    for cleanup in at_exit:
        cleanup()
    assert not folder.exists()


# --- identity ------------------------------------------------------------------------------------------------------


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the system says of its CPU, to be changed; x86-64 and Linux."""
    said = ["Intel(R) Xeon(R) Platinum 8480+ CPU @ 2.00GHz"]
    monkeypatch.setattr(util, "get_cpu_info", lambda: said[0])
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    return said


def test_identity_is_gpu_cpu_arch_os(cpu: list[str]) -> None:
    assert described("NVIDIA H200") == {
        "machine": "nvidia-h200.intel-xeon-platinum-8480.x86-64.linux",
        "gpu": "NVIDIA H200",
        "cpu": "Intel Xeon Platinum 8480+",
        "arch": "x86_64",
        "os": "Linux",
    }


def test_identity_without_a_gpu(cpu: list[str]) -> None:
    found = described("none")
    assert found["machine"] == "no-gpu.intel-xeon-platinum-8480.x86-64.linux"
    assert found["gpu"] == "none"


def test_a_clock_in_the_cpus_name_does_not_change_who_it_is(cpu: list[str]) -> None:
    before = described("none")
    cpu[0] = "Intel(R)  Xeon(R) Platinum 8480+ CPU @ 3.80GHz"
    assert described("none") == before


@pytest.mark.parametrize(
    "name",
    [
        "../../../etc/passwd",
        "..",
        "/",
        "a/b\\c:d",
        "<script>alert(1)</script>",
        "con\nsole\0",
        "日本語",
        " ",
        "-",
        "GPU " * 5,
    ],
)
@pytest.mark.parametrize("part", ["gpu", "cpu"])
def test_any_name_makes_a_safe_slug(cpu: list[str], part: str, name: str) -> None:
    if part == "cpu":
        cpu[0] = name
    slug = described(name if part == "gpu" else "NVIDIA H200")["machine"]
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*(\.[a-z0-9]+(-[a-z0-9]+)*){3}", slug)
    assert Path("results", slug).resolve().parent == Path("results").resolve()


def test_identity_has_only_what_stays(cpu: list[str]) -> None:
    found = described("NVIDIA H200")
    assert set(found) == {"machine", "gpu", "cpu", "arch", "os"}  # no host, kernel release, memory, driver
    assert all(isinstance(value, str) for value in found.values())  # asv's pages take no nested values


def test_no_gpu_is_none(no_gpu: str) -> None:
    assert gpu_name() == "none"


@pytest.mark.gpu
def test_the_gpus_name_is_cudas() -> None:
    import cupy

    assert gpu_name() == cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()


# --- the sidecar ---------------------------------------------------------------------------------------------------


def line(group: str, **values: Any) -> str:
    return json.dumps({"group": group, **values})


def test_groups_measured_again_are_replaced_and_others_kept(tmp_path: Path) -> None:
    sidecar, fresh = tmp_path / "a.facts.jsonl", tmp_path / "fresh"
    fresh.mkdir()
    damaged, foreign = '{"group": "transpose gpu", "rec', '["no object"]'
    old = [line("transpose gpu", at=1), damaged, line("transpose cpu", at=1), foreign, line("transpose gpu", at=2)]
    sidecar.write_text("\n".join(old) + "\n")
    (fresh / "transpose.gpu.jsonl").write_text(line("transpose gpu", at=3) + "\n" + line("transpose gpu", at=4) + "\n")
    (fresh / "vector_add.cpu.jsonl").write_text(line("vector_add cpu", at=5) + "\n")
    recording.merge_facts(sidecar, fresh)
    assert sidecar.read_text().splitlines() == [
        damaged,
        line("transpose cpu", at=1),
        foreign,
        line("transpose gpu", at=3),
        line("transpose gpu", at=4),
        line("vector_add cpu", at=5),
    ]
    assert list(fresh.iterdir()) == []  # the next commit's facts are not mixed with these


def test_the_first_facts_make_the_sidecar(tmp_path: Path) -> None:
    sidecar, fresh = tmp_path / "machine" / "a.facts.jsonl", tmp_path / "fresh"
    fresh.mkdir()
    (fresh / "g.jsonl").write_text(line("g") + "\n")
    recording.merge_facts(sidecar, fresh)
    assert sidecar.read_text() == line("g") + "\n"


def test_no_facts_leave_no_sidecar(tmp_path: Path) -> None:
    recording.merge_facts(tmp_path / "a.facts.jsonl", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_facts_are_kept_until_they_are_saved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    fresh = tmp_path / "fresh"
    fresh.mkdir()
    (fresh / "g.jsonl").write_text(line("g") + "\n")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            recording.merge_facts(tmp_path / "a.facts.jsonl", fresh)
    assert (fresh / "g.jsonl").is_file()
    assert not (tmp_path / "a.facts.jsonl").exists()


# --- asv, patched --------------------------------------------------------------------------------------------------


def make_results() -> Any:
    parameters = {"machine": "here", "python": "3.12"}
    return results.Results(parameters, {}, "0123456789abcdef" * 2, 1_700_000_000_000, "3.12", "checkout-py3.12", {})


def test_results_are_saved_with_their_facts(plugin: Path, tmp_path: Path) -> None:
    (plugin / "transpose.gpu.jsonl").write_text(line("transpose gpu") + "\n")
    make_results().save(str(tmp_path))
    names = sorted(path.name for path in (tmp_path / "here").iterdir())
    assert names == ["01234567-checkout-py3.12.facts.jsonl", "01234567-checkout-py3.12.json"]
    assert (tmp_path / "here" / names[0]).read_text() == line("transpose gpu") + "\n"
    loaded = results.Results.load(str(tmp_path / "here" / names[1]))
    assert loaded.commit_hash == make_results().commit_hash


def test_results_never_lie_there_without_their_facts(
    plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in between, a run would take the commit for finished."""
    seen: list[str] = []

    def save(self: Any, folder: str) -> None:
        seen.extend(path.name for path in Path(folder).rglob("*.*json*"))

    monkeypatch.setattr(recording, "_save_results", save)
    (plugin / "transpose.gpu.jsonl").write_text(line("transpose gpu") + "\n")
    make_results().save(str(tmp_path))
    assert seen == ["01234567-checkout-py3.12.facts.jsonl"]


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("version", [None, 2])
def test_json_is_written_as_asv_writes_it(plugin: Path, tmp_path: Path, compact: bool, version: int | None) -> None:
    data = {"b": [1.5, None, float("inf")], "a": {"z": "ü", "y": True}}
    util.write_json(str(tmp_path / "folder" / "ours.json"), data, version, compact)
    ORIGINAL["write_json"](str(tmp_path / "theirs.json"), data, version, compact)
    ours, theirs = (path.read_text() for path in (tmp_path / "folder" / "ours.json", tmp_path / "theirs.json"))
    assert json.loads(ours) == json.loads(theirs)
    assert data == {"b": [1.5, None, float("inf")], "a": {"z": "ü", "y": True}}
    assert util.load_json(str(tmp_path / "folder" / "ours.json"), version)["a"] == data["a"]
    if not compact:
        assert ours.strip() == theirs.strip()


def test_this_machine_is_known_without_questions(plugin: Path, tmp_path: Path) -> None:
    me = described()
    assert machine.Machine.get_unique_machine_name() == me["machine"]
    path = str(tmp_path / "machines.json")
    assert machine.MachineCollection.load(me["machine"], _path=path) == me
    with pytest.raises(util.UserError):
        machine.MachineCollection.load("another", _path=path)
    machine.MachineCollection.save("another", {"machine": "another"}, _path=path)
    assert machine.MachineCollection.load("another", _path=path)["machine"] == "another"
    assert machine.MachineCollection.load(me["machine"], _path=path) == me


def test_a_machine_named_by_hand_keeps_its_name(plugin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.Machine, "hardcoded_machine_name", "by-hand")
    assert machine.Machine.get_unique_machine_name() == "by-hand"


# --- asv, as it is: what fails here is a patch that must change or may go ------------------------------------------


def test_asv_has_the_names_that_are_patched() -> None:
    """Names, kinds and signatures of what `setup` replaces."""
    assert isinstance(inspect.getattr_static(machine.Machine, "get_unique_machine_name"), classmethod)
    assert isinstance(inspect.getattr_static(machine.MachineCollection, "load"), classmethod)
    assert list(inspect.signature(ORIGINAL["get_unique_machine_name"]).parameters) == []
    assert str(inspect.signature(ORIGINAL["load"])) == "(machine_name, _path=None)"
    assert str(inspect.signature(ORIGINAL["save"])) == "(self, result_dir)"
    assert str(inspect.signature(ORIGINAL["write_json"])) == "(path, data, api_version=None, compact=False)"
    assert machine.Machine.hardcoded_machine_name is None
    assert make_results()._filename == os.path.join("here", "01234567-checkout-py3.12.json")


def test_the_patches_take_the_same_arguments() -> None:
    for ours, name in ((recording._load, "load"), (recording._save, "save"), (recording._write_json, "write_json")):
        assert list(inspect.signature(ours).parameters) == list(inspect.signature(ORIGINAL[name]).parameters)


def test_asv_looks_up_the_writer_where_it_is_patched() -> None:
    """No module of asv has taken util.write_json under a name of its own."""
    folder = Path(inspect.getfile(util)).parent
    called = re.compile(r"(?<!util\.)(?<!def )\bwrite_json\b")
    taken = [path.name for path in folder.rglob("*.py") if path.name != "util.py" and called.search(path.read_text())]
    assert taken == []


def test_asv_itself_destroys_a_file_on_a_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text('{"good": 1}')

    def full(data: object, file: Any, **options: Any) -> None:
        file.write('{"half')
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(json, "dump", full)
    with pytest.raises(OSError, match="No space left"):
        ORIGINAL["write_json"](str(path), {"new": 2})
    assert path.read_text() == '{"half'


def test_asv_itself_calls_a_machine_by_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "uname", lambda: platform.uname_result("Linux", "a-host", "6.1", "", "x86_64"))
    defaults = machine.Machine.get_defaults()
    assert (defaults["machine"], defaults["os"]) == ("a-host", "Linux 6.1")


def test_asv_reads_any_json_of_a_machine_as_results_but_no_jsonl(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "machine.json").write_text('{"machine": "here", "version": 1}')
    for name in ("a.facts.json", "a.facts.jsonl", "benchmarks.json"):
        (folder / name).write_text("{}")
    assert [name for _, name, _ in results.iter_results_paths(str(tmp_path))] == ["a.facts.json"]
