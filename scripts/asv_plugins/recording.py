"""What asv records, made fit for GPUs: who measured, the facts beside the results, whole files only.

asv's machine is an identity that does not change by itself: GPU, CPU, architecture, OS family. (Its defaults, host
name, kernel release and memory size, change by themselves on cloud machines and would split the history.) Everything
that does change (driver, clocks, temperature, versions) goes into <results>/<machine>/<commit>-<env>.facts.jsonl.

asv is patched under four names: Machine.get_unique_machine_name, MachineCollection.load, Results.save and
util.write_json. tests/test_recording.py fails when one of them is gone.
"""

import atexit
import json
import os
import platform
import re
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from asv import machine, results, util
from asv.console import log

from benchmarks import _kept, _nvml
from benchmarks._files import write_whole


def gpu_name() -> str:
    """The name of the GPU that CUDA takes first, "none" without one; no context is made."""
    try:
        from cuda.bindings import driver
    except ImportError:
        return "none"
    try:
        if driver.cuInit(0)[0] != driver.CUresult.CUDA_SUCCESS:
            return "none"
        error, device = driver.cuDeviceGet(0)
        if error != driver.CUresult.CUDA_SUCCESS:
            return "none"
        return str(driver.cuDeviceGetName(100, device)[1].split(b"\0")[0].decode())
    except RuntimeError:  # no libcuda
        return "none"


def identity(gpu: str | None = None) -> dict[str, str]:
    """asv's machine: a slug and the parts it is made of. `gpu`: its name, asked for where it is not given."""
    gpu = gpu_name() if gpu is None else gpu
    cpu = re.sub(r"\((R|TM)\)|\bCPU\b|@.*", " ", util.get_cpu_info() or platform.processor() or "unknown")
    parts = {"gpu": gpu, "cpu": " ".join(cpu.split()), "arch": platform.machine(), "os": platform.system()}
    slug = ".".join(re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") or "unknown" for part in parts.values())
    return {"machine": slug.replace("none.", "no-gpu.", 1) if gpu == "none" else slug} | parts


_identity: dict[str, str] = {}


def _known_identity() -> dict[str, str]:
    if not _identity:
        _identity.update(identity())
    return _identity


_load_registered = machine.MachineCollection.load


def _load(machine_name: str, _path: str | None = None) -> Any:
    """A registered machine; this one is known without being registered, so that asv asks no questions."""
    try:
        return _load_registered(machine_name, _path=_path)
    except util.UserError:
        if machine_name == _known_identity()["machine"]:
            return dict(_known_identity())
        raise


def _write_json(path: str, data: Any, api_version: int | None = None, compact: bool = False) -> None:
    """asv.util.write_json, whole: the original truncates the file first, and a full disk then destroys a good one."""
    if api_version is not None:
        data = {**data, "version": api_version}
    layout: dict[str, Any] = {"separators": (",", ":")} if compact else {"indent": 4, "sort_keys": True}
    write_whole(path, json.dumps(data, **layout) + ("" if compact else "\n"))


_save_results = results.Results.save


def _save(self: Any, result_dir: str) -> None:
    """Save the facts that the stick left in $GPUKERNELS_FACTS, then beside them the results: what has results is not
    measured again, and would never get its facts."""
    folder = Path(os.environ["GPUKERNELS_FACTS"])
    fresh = [path.name for path in folder.glob("*.jsonl")]
    counts: dict[str, int] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            if line.get("record") == "cell":
                counts[line["state"]] = counts.get(line["state"], 0) + 1
            else:
                _say(line["group"], line.get("facts", {}))
    merge_facts(Path(result_dir, self._filename).with_suffix(".facts.jsonl"), folder)
    _save_results(self, result_dir)
    for name in fresh:  # it is where it belongs
        Path(os.environ.get("GPUKERNELS_KEPT", ""), f"{_kept.stem(self.commit_hash, self.env_name)}{name}").unlink(
            missing_ok=True
        )
    told = os.environ.get("GPUKERNELS_PROGRESS")
    if told:
        with suppress(OSError), open(told, "a", encoding="utf-8") as file:
            file.write(json.dumps({"commit": self.commit_hash, "counts": counts}) + "\n")


def _say(group: str, facts: dict[str, Any]) -> None:
    """What somebody who reads asv's words should know of how a group was measured."""
    if facts.get("resumed"):
        log.info(f"{group}: measured at {facts.get('measured_at')}, before an interruption")
    if why := _nvml.disturbed(facts.get("others")):
        log.warning(f"{group}: {why}: its figures may be disturbed")


def merge_facts(sidecar: Path, folder: Path) -> None:
    """Move the groups that lie in `folder` into a sidecar, in place of what it had of the same groups."""
    fresh = sorted(folder.glob("*.jsonl"))
    if not fresh:
        return
    lines = [line for path in fresh for line in path.read_text(encoding="utf-8").splitlines()]
    groups = {json.loads(line)["group"] for line in lines}
    try:
        kept = [
            line
            for line in sidecar.read_text(encoding="utf-8", errors="replace").splitlines()
            if _group(line) not in groups
        ]
    except FileNotFoundError:
        kept = []
    write_whole(sidecar, "".join(f"{line}\n" for line in kept + lines))
    for path in fresh:
        path.unlink()


def _group(line: str) -> str | None:
    try:
        return str(json.loads(line)["group"])
    except (ValueError, KeyError, TypeError):
        return None  # cut short or foreign: kept as it is, it may be all that is left of a measurement


def setup() -> None:
    """Called by asv when it loads the plugin."""
    folder = tempfile.TemporaryDirectory(prefix="gpukernels-facts-")
    atexit.register(folder.cleanup)
    os.environ["GPUKERNELS_FACTS"] = folder.name
    machine.Machine.get_unique_machine_name = classmethod(
        lambda cls: cls.hardcoded_machine_name or _known_identity()["machine"]
    )
    machine.MachineCollection.load = staticmethod(_load)
    results.Results.save = _save
    util.write_json = _write_json
