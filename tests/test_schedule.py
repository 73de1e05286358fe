"""Who measures what in a fleet, and how results of many workers become one history."""

import itertools
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.project import PROJECT
from kernelwatch.asv.running import chosen
from kernelwatch.extras.fleet import merging
from kernelwatch.extras.fleet.schedule import Job, Schedule, Worker, misfits, recorded
from kernelwatch.extras.fleet.units import Unit, missing, read, units
from kernelwatch.history import records
from kernelwatch.run import outcome
from kernelwatch.run.outcome import together
from kernelwatch.system import git
from kernelwatch.system.errors import UserError
from tests.repositories import new_project

ADD, TRANSPOSE, MATMUL = (Unit(f"{op} gpu", "gpu", {f"{op}.GPU.track": "1"}) for op in ("add", "transpose", "matmul"))
CPU, STATIC = Unit("add cpu", "host", {"add.CPU.track": "1"}), Unit("add static", "", {"static.Add.track": "1"})
RESULTS = sorted(PROJECT.results.glob("*/*-checkout-*.json"))


def worker(at: int, gpu: str | None = None, host: str = "host", **conditions: Any) -> Worker:
    return Worker(f"tcp://{at}", f"worker {at}", "kind", f"gpu {at}" if gpu is None else gpu, host, conditions)


def schedule(commits: int, units: Iterable[Unit]) -> Schedule:
    made = Schedule()
    for at in range(commits):
        made.add("kind", at, f"commit {at}", units)
    return made


def measured(jobs: Schedule, workers: list[Worker], seed: int = 0) -> list[tuple[Worker, Job]]:
    """What each worker measures if jobs end in any order. No two jobs may be on one GPU, and no other job may load the
    CPU beside one that times it."""
    chance, running, done = random.Random(seed), dict[Worker, Job](), list[tuple[Worker, Job]]()
    while True:
        for each in workers:
            others = {other: job for other, job in running.items() if other != each}
            if each not in running and (job := jobs.take(each, others)):
                running[each] = job
        gpus = [(each.host, each.gpu) for each in running if each.gpu]
        assert len(set(gpus)) == len(gpus)
        for each, job in running.items():
            beside = [other.place for who, other in running.items() if who.host == each.host and who != each]
            assert job.place != "host" or not {"host", ""} & set(beside)
        if not running:
            return done
        each = chance.choice(list(running))
        done.append((each, running.pop(each)))


def cells(done: list[tuple[Worker, Job]]) -> list[tuple[str, str]]:
    return sorted((job.commit, unit.name) for _, job in done for unit in job.units)


ALL = (ADD, TRANSPOSE, MATMUL, CPU, STATIC)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_everything_is_measured_once(seed: int, gpus: int) -> None:
    done = measured(schedule(7, ALL), [worker(at) for at in range(gpus)], seed)
    assert cells(done) == sorted((f"commit {at}", unit.name) for at in range(7) for unit in ALL)


def test_one_gpu_measures_all_of_a_commit_at_once() -> None:
    done = measured(schedule(3, (ADD, TRANSPOSE)), [worker(0)])
    assert [len(job.units) for _, job in done] == [2, 2, 2]


@pytest.mark.parametrize("gpus", [2, 4])
def test_over_many_gpus_a_history_changes_the_gpu_seldom(gpus: int) -> None:
    commits = 40
    done = measured(schedule(commits, (ADD, MATMUL)), [worker(at) for at in range(gpus)])
    who = [each.gpu for each, job in sorted(done, key=lambda pair: pair[1].at)]
    assert len(who) == commits
    changes = sum(before != after for before, after in itertools.pairwise(who))
    assert gpus - 1 <= changes <= 2 * gpus
    shares = [who.count(gpu) for gpu in set(who)]
    assert len(shares) == gpus
    assert min(shares) > commits / gpus / 3


def test_two_workers_that_were_given_one_gpu_take_turns() -> None:
    workers = [worker(0, "gpu 0"), worker(1, "gpu 0")]
    jobs = schedule(3, ALL)
    job = jobs.take(workers[0], {})
    assert job is not None
    assert jobs.take(workers[1], {workers[0]: job}) is None
    assert jobs.take(worker(2, "gpu 0", "other host"), {workers[0]: job}) is not None


def test_a_job_that_is_put_back_is_measured_by_another() -> None:
    jobs = schedule(1, (ADD,))
    job = jobs.take(worker(0), {})
    assert job is not None
    assert jobs.take(worker(1), {}) is None
    jobs.put_back(job)
    assert len(jobs) == 1
    assert jobs.take(worker(1), {}) == job


def test_what_cannot_be_measured_is_explained() -> None:
    jobs = schedule(2, (ADD, CPU))
    workers = [worker(0, gpu="")]
    assert [name for _, name in cells(measured(jobs, workers))] == ["add cpu", "add cpu"]
    assert jobs.stranded(workers) == ["add gpu of kind: no worker of this kind is left"]
    assert jobs.stranded([worker(1)]) == []
    assert jobs.stranded([]) == ["add gpu of kind: no worker of this kind is left"]


def test_a_worker_that_differs_is_named() -> None:
    packages = {"nvidia-cuda-nvrtc": "13.0"}
    right: dict[str, Any] = {
        "nvml_driver": "590",
        "compiler": "NVRTC 13.0",
        "packages": packages,
        "nvml_uuid_sha256": "a",
    }
    other = right | {"compiler": "NVRTC 12.9", "packages": {}, "nvml_uuid_sha256": "b"}
    workers = [worker(0, **right), worker(1, **(right | {"nvml_uuid_sha256": "c"})), worker(2, **other)]
    text = "compiler NVRTC 13.0 -> NVRTC 12.9; nvidia-cuda-nvrtc 13.0 -> none"
    assert misfits(workers, {}) == {"tcp://2": text}
    assert misfits(workers, {"kind": other}).keys() == {"tcp://0", "tcp://1"}  # the history goes on as it was
    assert misfits(workers, {"kind": right | {"nvml_driver": "570"}}) == {"tcp://2": text}
    assert misfits(workers[:2], {}) == {}


# --- what there is to measure ----------------------------------------------------------------------------------------


def test_the_units_of_this_project() -> None:
    benchmarks = json.loads((PROJECT.results / "benchmarks.json").read_text())
    made = {unit.name: unit for unit in units(PROJECT, benchmarks, [])}
    assert {name: made[name].place for name in ("transpose gpu", "transpose cpu", "transpose static")} == {
        "transpose gpu": "gpu",
        "transpose cpu": "host",
        "transpose static": "",
    }
    assert made["matmul access"].place == ""
    assert made["matmul streamed"].place == "gpu"
    names = [name for unit in made.values() for name in unit.versions]
    assert sorted(names) == sorted(benchmarks.keys() - {"version"})
    assert {"device.Canary.track_canary", "transpose.Launch.track_launch"} <= made["transpose gpu"].versions.keys()
    (only,) = units(PROJECT, benchmarks, [chosen(["transpose.GPU.track_seconds"])])
    assert list(only.versions) == ["transpose.GPU.track_seconds"]


def test_a_unit_is_there_if_all_its_series_are() -> None:
    result = read(RESULTS[-1])
    assert result is not None
    name, row = next(item for item in result["results"].items() if None not in item[1][0])
    version = row[result["result_columns"].index("version")]
    assert Unit("", "", {name: version}).measured(result)
    assert not Unit("", "", {name: f"{version}1"}).measured(result)
    assert not Unit("", "", {name: version, "more": "1"}).measured(result)
    assert not Unit("", "", {name: version}).measured(result | {"results": {name: [[None, *row[0]], *row[1:]]}})


def test_where_series_are_measured_is_in_the_newest_record(tmp_path: Path) -> None:
    for commit, group, gpu in (("a", "add gpu", "1"), ("b", "add gpu", "2"), ("b", "matmul gpu", "3")):
        line = {"group": group, "record": "run", "facts": {"nvml_uuid_sha256": gpu}}
        with (tmp_path / f"{commit * 8}-checkout.facts.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
    names = ("add gpu", "matmul gpu", "transpose gpu")
    found = recorded(tmp_path, ["c" * 40, "a" * 40, "b" * 40], names)
    assert {name: facts["nvml_uuid_sha256"] for name, facts in found.items()} == {"add gpu": "1", "matmul gpu": "3"}


def test_of_a_sidecar_only_the_facts_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks for a unit that was never measured reads the whole history."""
    path, read_lines, parsed = records.sidecars(PROJECT.results)[-1], outcome.read, list[str]()
    groups = {group.name for group in read_lines(path.read_text().splitlines()) if group.facts}

    def watched(lines: Iterable[str]) -> list[outcome.Group]:
        parsed.extend(lines)
        return read_lines(parsed)

    monkeypatch.setattr(outcome, "read", watched)
    found = recorded(path.parent, [path.name.partition("-")[0]], {*groups, "never measured"})
    assert found.keys() == groups
    assert len(parsed) == len(groups)


def test_what_is_missing_is_found_in_one_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is listed once, and each file of the commits read once, however many units there are."""
    result = read(RESULTS[-1])
    assert result is not None
    column = result["result_columns"].index("version")
    names = [name for name, row in result["results"].items() if None not in row[0]][:4]
    wanted = [Unit(name, "", {name: result["results"][name][column]}) for name in names]
    kept = {"a": names, "b": names[1:], "c": [], "e": names}  # nothing of d
    for commit, there in kept.items():
        text = json.dumps(result | {"results": {name: result["results"][name] for name in there}})
        (tmp_path / f"{8 * commit}-checkout.json").write_text(text)
    (tmp_path / "bbbbbbbb-other.json").write_text(json.dumps(result | {"results": {}}))
    (tmp_path / "machine.json").write_text("{}")
    looks, text_of, list_of = list[str](), Path.read_text, Path.glob

    def text_once(path: Path, **more: Any) -> str:
        looks.append(path.name)
        return text_of(path, **more)

    def list_once(path: Path, pattern: str) -> Iterable[Path]:
        looks.append("")
        return list_of(path, pattern)

    monkeypatch.setattr(Path, "read_text", text_once)
    monkeypatch.setattr(Path, "glob", list_once)
    found = dict(missing(tmp_path, [40 * commit for commit in "dcba"], wanted))
    assert {commit[0]: [unit.name for unit in units] for commit, units in found.items()} == {
        "d": names, "c": names, "b": names[:1], "a": [],
    }  # fmt: skip
    assert sorted(looks) == ["", *sorted(path.name for path in list_of(tmp_path, "[abc]*.json"))]
    assert dict(missing(tmp_path, [40 * "a"], wanted, again=True)) == {40 * "a": wanted}


# --- the checkout ----------------------------------------------------------------------------------------------------


def test_a_worker_gets_the_checkout_as_it_is(tmp_path: Path) -> None:
    project = new_project(tmp_path)
    for name, text in {"kept": "1", "edited": "1", "results/a.json": "{}", ".gitignore": "ignored\n"}.items():
        (project.folder / name).parent.mkdir(exist_ok=True)
        (project.folder / name).write_text(text)
    first = project.commit_all("first")
    (project.folder / "later").touch()
    second = project.commit_all("second")
    (project.folder / "edited").write_text("2")
    (project.folder / "new").write_text("3")
    (project.folder / "ignored").touch()
    before = project.git("status", "--porcelain")
    made = git.snapshot(project.folder, ["results"])
    assert git.snapshot(project.folder, ["results"]) == made
    assert project.git("status", "--porcelain") == before
    clone = tmp_path / "clone"
    sent = git.objects(project.folder, made) | {first, second}
    packs = [git.pack(project.folder, sent), git.pack(project.folder, git.objects(project.folder, first) - sent)]
    git.git(tmp_path, "init", "-q", str(clone))
    for pack in packs:
        git.run_command("git", "index-pack", "--stdin", root=clone, given=pack)
    git.git(clone, "reset", "-q", "--hard", made)
    assert {path.name: path.read_text() for path in clone.iterdir() if path.is_file()} == {
        "kept": "1",
        "edited": "2",
        "new": "3",
        "later": "",
        ".gitignore": "ignored\n",
    }
    assert not (clone / "results").exists()
    git.git(clone, "checkout", "-q", first)
    assert (clone / "edited").read_text() == "1"
    assert git.git(clone, "rev-list", second).splitlines() == [second, first]


# --- merging ---------------------------------------------------------------------------------------------------------


def divided(path: Path) -> list[dict[str, str]]:
    """A commit's files as workers would send them, of which each has measured some groups."""
    result = json.loads(path.read_text())
    sidecar = path.with_name(path.name.replace(".json", merging.FACTS))
    lines = sidecar.read_text().splitlines()
    groups = sorted({json.loads(line)["group"] for line in lines})
    parts = []
    for at, group in enumerate(groups):
        names = [name for index, name in enumerate(sorted(result["results"])) if index % len(groups) == at]
        own = result | {"results": {name: result["results"][name] for name in names}, "durations": {group: 1.0}}
        facts = "".join(f"{line}\n" for line in lines if json.loads(line)["group"] == group)
        parts.append({path.name: json.dumps(own), sidecar.name: facts})
    return parts


def test_parts_of_a_commit_make_its_whole_in_any_order(tmp_path: Path) -> None:
    parts = divided(RESULTS[-1])
    assert len(parts) > 2
    for seed in range(2):
        order = [*parts, *parts]  # each comes twice
        random.Random(seed).shuffle(order)
        folder = tmp_path / str(seed)
        for part in order:
            merging.merge(folder, part)
        result = json.loads((folder / RESULTS[-1].name).read_text())
        assert result["results"] == json.loads(RESULTS[-1].read_text())["results"]
        sidecar = RESULTS[-1].name.replace(".json", merging.FACTS)
        original = RESULTS[-1].with_name(sidecar).read_text().splitlines()
        assert sorted((folder / sidecar).read_text().splitlines()) == sorted(together(original))


def test_what_is_measured_again_replaces_what_was_there(tmp_path: Path) -> None:
    part, *_ = divided(RESULTS[-1])
    merging.merge(tmp_path, part)
    changed = json.loads(part[RESULTS[-1].name])
    name = min(changed["results"])
    changed["results"] = {name: [[1.0], *changed["results"][name][1:]]}
    merging.merge(tmp_path, {RESULTS[-1].name: json.dumps(changed)})
    result = json.loads((tmp_path / RESULTS[-1].name).read_text())
    assert result["results"][name][0] == [1.0]
    assert result["results"].keys() == json.loads(part[RESULTS[-1].name])["results"].keys()


def test_other_results_are_not_merged(tmp_path: Path) -> None:
    part, *_ = divided(RESULTS[-1])
    merging.merge(tmp_path, part)
    before = (tmp_path / RESULTS[-1].name).read_text()
    other = json.loads(part[RESULTS[-1].name]) | {"env_name": "another"}
    with pytest.raises(UserError, match="have another env_name"):
        merging.merge(tmp_path, {RESULTS[-1].name: json.dumps(other)})
    assert (tmp_path / RESULTS[-1].name).read_text() == before
    with pytest.raises(UserError, match="it should have no folder"):
        merging.merge(tmp_path, {"../x.json": "{}"})
