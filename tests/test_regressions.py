"""What the Regressions page flags with this asv.conf.json: the seconds, once, spills and lost occupancy to the last
byte and warp, and nothing that asv misreads."""

import json
from pathlib import Path

import pytest

from tests.test_site import ROOT, benchmark, publish, write_project

SLOWER, FASTER = (1.0, 2.0), (2.0, 1.0)  # before and after the third of five commits
SERIES = {
    "transpose.GPU.track_seconds": SLOWER,
    "transpose.CPU.track_seconds": (1.0, 1.3),  # a shared machine's noise
    "vector_add.CPU.track_seconds": (1.0, 1.7),
    "vector_add.GPU.track_seconds": FASTER,
    "transpose.GPU.track_bandwidth": SLOWER,  # better, and the same event as the seconds
    "transpose.GPU.track_share_of_copy": SLOWER,
    "transpose.ElementTypes.track_share_of_theoretical": SLOWER,
    "matmul.GPU.track_flops": SLOWER,
    "matmul.GPU.track_share_of_vendor": SLOWER,
    "device.State.track_temperature": SLOWER,
    "transpose.Launch.track_launch": (1.0, 1.3),  # the host's noise
    "vector_add.Launch.track_launch": (1.0, 1.7),
    "static.Matmul.track_spill_bytes": (0.0, 4.0),  # the step that no ratio describes
    "static.Transpose.track_spill_bytes": (1000.0, 1004.0),
    "static.VectorAdd.track_spill_bytes": (4.0, 0.0),
    "static.Matmul.track_unoccupied": (0.0, 50.0),
    "static.Transpose.track_unoccupied": (75.0, 76.5625),  # one warp of 64
    "static.VectorAdd.track_unoccupied": (50.0, 0.0),
    "static.Matmul.track_registers": SLOWER,
    "static.Matmul.track_shared_bytes": (0.0, 4096.0),
    "static.Matmul.track_instructions": SLOWER,
    "static.MatmulMix.track_class": SLOWER,
}


@pytest.fixture(scope="module")
def flagged(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The series on the page of a project with these histories."""
    project = tmp_path_factory.mktemp("project")
    write_project(project)
    own = json.loads((ROOT / "asv.conf.json").read_text())
    judged = {key: value for key, value in own.items() if key.startswith("regressions_")}
    path = project / "asv.conf.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | judged))
    benchmarks: dict[str, object] = {name: benchmark(name) for name in SERIES}
    (project / "results" / "benchmarks.json").write_text(json.dumps(benchmarks | {"version": 2}))
    results = [(json.loads(path.read_text()), path) for path in Path(project, "results/host").glob("*-existing.json")]
    for at, (result, where) in enumerate(sorted(results, key=lambda pair: int(pair[0]["date"]))):
        result["results"] = {name: [[levels[at >= 2]], [], "1"] for name, levels in SERIES.items()}
        where.write_text(json.dumps(result))
    run = publish(project)
    assert run.returncode == 0, run.stdout + run.stderr
    return [row[0] for row in json.loads((project / "html/regressions.json").read_text())["regressions"]]


def test_only_the_seconds_spills_and_occupancy_are_judged(flagged: list[str]) -> None:
    assert sorted(flagged) == [
        "static.Matmul.track_spill_bytes",
        "static.Matmul.track_unoccupied",
        "static.Transpose.track_spill_bytes",
        "static.Transpose.track_unoccupied",
        "transpose.GPU.track_seconds",
        "vector_add.CPU.track_seconds",
        "vector_add.Launch.track_launch",
    ]
