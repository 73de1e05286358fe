"""Devices and commits: every figure is read back from the pages and compared with the data files."""

import json
import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from asv.plugins.git import Git

from kernelwatch.publish import diffs
from kernelwatch.publish.writer import as_script
from tests.pages import (
    H100,
    HOSTILE,
    NARROW,
    PADDED,
    RECORDED,
    browser,
    data,
    details,
    fits,
    folder,
    history,
    invented_site,
    marks,
    opened,
    pages_group,
    planted_site,
    recorded_site,
    slower,
    two_gpus_site,
    view,
)
from tests.test_site import git

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser", "invented_site", "planted_site", "recorded_site", "two_gpus_site"]  # fixtures
pytestmark = pages_group


def write(site: Path, name: str, content: object) -> None:
    """Replace a data file, as JSON and as a script."""
    text = json.dumps(content)
    (site / "data" / f"{name}.json").write_text(text, encoding="utf-8")
    (site / "data" / f"{name}.json.js").write_text(as_script(text), encoding="ascii")


# --- Devices ---------------------------------------------------------------------------------------------------------


def test_devices_shows_what_was_read(browser: "Browser", recorded_site: Path) -> None:
    machine = details(recorded_site)
    newest = data(recorded_site, f"{folder(recorded_site)}/at/{machine['commits'][-1]}")
    (blocks,) = machine["states"]
    states = data(recorded_site, f"{folder(recorded_site)}/{blocks}")
    with opened(browser, recorded_site, view("devices", op="transpose")) as page:
        for figure, name in (("SM clock", "clock_mhz"), ("Temperature", "temperature_c"), ("Power", "power_w")):
            found = marks(page.locator(f".state [data-figure='{figure}']"))
            assert [float(each["value"]) for each in found] == [state[name] for state in states]
        for name in ("spread", "spread_90", "two_levels", "canary_spread"):
            assert all(0 <= state[name] < 1 for state in states if name in state)
        spreads = marks(page.locator(".state [data-figure^='Spread between processes, median']"))
        known = [100 * state["spread"] for state in states if "spread" in state]
        assert [float(each["value"]) for each in spreads] == pytest.approx(known)
        last = {each["figure"]: each for each in machine["instrument"]}  # the oldest come first
        worse = {figure for figure, each in last.items() if each["after"] > each["before"]}
        assert {each["moved"] for each in marks(page.locator("[data-moved]"))} == worse
        assert page.get_by_text("Did the instrument stay as quiet?").count() == 1
        canary = [state["canary_memory_s"] for state in states]
        middle = sorted(canary)[len(canary) // 2]
        found = marks(page.locator(".state [data-figure^='Canary of the memory']"))
        assert [float(each["value"]) for each in found] == pytest.approx([100 * (each / middle - 1) for each in canary])

        assert sum(int(each["count"]) for each in marks(page.locator(".bin [data-count]"))) == len(machine["noise"])
        page.get_by_role("button", name=f"Show all {len(machine['noise'])} rows").click()
        noise = [(each["key"], float(each["cv"])) for each in marks(page.locator("[data-cv]"))]
        assert dict(noise) == machine["noise"]
        assert [cv for _, cv in noise] == sorted(machine["noise"].values(), reverse=True)

        limited = {each["limited"] for each in marks(page.locator("[data-limited]"))}
        assert limited == set(data(recorded_site, "site")["machines"][0]["limited"])
        assert states[-1]["limited"] == len(limited)
        cells = data(recorded_site, "cells")
        energy = {each["key"]: float(each["value"]) for each in marks(page.locator("td [data-key][data-value]"))}
        assert PADDED in energy
        for key, value in energy.items():
            cell = newest["cells"][key]
            assert value == pytest.approx(1e12 * cell["s"] * cell["power_w"] / cells[key]["bytes"])
        drawn = marks(page.locator(".energy [data-key]"))
        assert len(drawn) == sum(len(history(recorded_site, key)["at"]) for key in energy)
        facts = newest["facts"]["transpose gpu"]
        assert page.locator("[data-fact='Driver']").inner_text() == facts["nvml_driver"]
        assert page.locator("[data-fact='Power limit']").inner_text() == "700 W"
        said = "kernelwatch.facts_of({facts: {'move gpu': {l2_reset: told}}})[0][1]"
        assert page.evaluate(f"(told) => {said}", "ok") == "reset before each timing"
        assert page.evaluate(f"(told) => {said}", "no such call") == "not reset: no such call"
        assert "Only this machine is recorded" in page.locator(".view").inner_text()


def test_two_machines_are_compared_by_their_own_ceilings(browser: "Browser", invented_site: Path) -> None:
    name = f"at/{details(invented_site)['commits'][-1]}"
    one, two = (data(invented_site, f"{folder(invented_site, index)}/{name}") for index in (0, 1))
    cells = data(invented_site, "cells")
    timed = [key for key, cell in one["cells"].items() if "s" in cell]
    with opened(browser, invented_site, view("devices", **{"with": HOSTILE})) as page:
        for device in ("gpu", "cpu"):
            count = sum(cells[key]["device"] == device for key in timed)
            page.get_by_role("button", name=f"Show all {count} rows").click()
        ratios = {each["key"]: float(each["ratio"]) for each in marks(page.locator("[data-ratio][data-key]"))}
        assert ratios == pytest.approx({key: two["cells"][key]["s"] / one["cells"][key]["s"] for key in timed})
        points = marks(page.locator(".share [data-key]"))
        assert len(points) > 100
        for point in points:
            cell = cells[point["key"]]
            unit = cell["unit"] if cell["flops"] else "memory"
            for index, (side, record) in enumerate((("first", one), ("second", two))):
                rate = (cell["flops"] or cell["bytes"]) / record["cells"][point["key"]]["s"]
                every = data(invented_site, f"{folder(invented_site, index)}/machine")["roofs"]
                known = every[record["facts"][f"{cell['op']} gpu"]["gpu"]]
                own = next(roof["rate"] for roof in known if roof["unit"] == unit) / cell.get("operations", 1)
                assert float(point[side]) == pytest.approx(rate / own)
    with opened(browser, invented_site, view("devices", machine=HOSTILE), NARROW) as page:
        assert fits(page)
        assert page.locator("h1").inner_text() == HOSTILE
        assert "No A/A is recorded on this machine." in page.locator(".view").inner_text()


def test_machines_are_compared_at_a_commit_that_both_measured(
    browser: "Browser", invented_site: Path, tmp_path: Path
) -> None:
    """Though one of them has a newer one; and only if they share none, the newest of each."""
    commits, hashes = details(invented_site)["commits"], data(invented_site, "commits")
    for known, shared in ((commits[:-1], commits[-2]), ([], None)):
        site = shutil.copytree(invented_site, tmp_path / str(shared))
        for name, change in (("second/machine", {"commits": known}), ("site", None)):
            content = data(site, name)
            if change is None:
                content["machines"][1]["newest"] = commits[-2]
            write(site, name, {**content, **(change or {})})
        expected = data(site, f"{folder(site)}/at/{shared or commits[-1]}")["cells"]
        theirs = data(site, f"second/at/{commits[-2]}")["cells"]
        with opened(browser, site, view("devices", **{"with": HOSTILE})) as page:
            said = page.locator("main").inner_text()
            told = (
                f"The newest commit that both measured: {hashes[str(shared)]['hash'][:8]}" if shared else "They differ"
            )
            assert told in said
            assert ("They differ" in said) == (shared is None)
            ratios = {each["key"]: float(each["ratio"]) for each in marks(page.locator("[data-ratio][data-key]"))}
            assert len(ratios) >= 20
            for key, ratio in ratios.items():
                assert ratio == pytest.approx(theirs[key]["s"] / expected[key]["s"])


def test_a_column_that_no_machine_fills_is_left_out(browser: "Browser", invented_site: Path, tmp_path: Path) -> None:
    """Such as that of the CPUs, if the newest commit of each machine was timed on the GPU alone."""
    for cpus in (["", "a CPU"], ["", ""]):
        site = shutil.copytree(invented_site, tmp_path / str(any(cpus)))
        content = data(site, "site")
        for machine, cpu in zip(content["machines"], cpus, strict=True):
            machine["cpu"] = cpu
        write(site, "site", content)
        with opened(browser, site, "devices") as page:
            listed = page.get_by_role("table", name="Machines")
            assert ("CPU" in listed.locator("th").all_inner_texts()) == any(cpus)
            lines = listed.locator("tr").all()
            assert len({line.locator("th, td").count() for line in lines}) == 1


def test_two_gpus_are_set_side_by_side(browser: "Browser", two_gpus_site: Path) -> None:
    """The second GPU's seconds and ceilings are known multiples of the first one's."""
    names = [RECORDED.replace("h200", "h100"), RECORDED]
    machines = {each["name"]: each for each in data(two_gpus_site, "site")["machines"]}
    assert sorted(machines) == names
    cells = data(two_gpus_site, "cells")
    with opened(browser, two_gpus_site, view("devices", machine=names[1])) as page:
        listed = page.get_by_role("table", name="Machines").locator("tbody tr")
        assert listed.locator("a[href*='#/devices?machine=']").first.inner_text() == H100
        assert listed.count() == 2
        page.get_by_role("link", name=f"compare with {names[0]}").click()
        page.locator("h2", has_text=f"NVIDIA H200 and {H100}").wait_for()
        facts = {each["fact"]: float(each["ratio"]) for each in marks(page.locator("[data-fact][data-ratio]"))}
        assert facts["L2 cache"] == pytest.approx(50 / 60)
        assert facts["Copy, measured"] == pytest.approx(0.68)
        assert facts["float32 arithmetic, measured"] == pytest.approx(0.97)
        page.get_by_role("button", name="rows").first.click()
        ratios = {each["key"]: float(each["ratio"]) for each in marks(page.locator("[data-ratio][data-key]"))}
        on_gpu = {key: ratio for key, ratio in ratios.items() if cells[key]["device"] != "cpu"}
        expected = {key: slower(cells[key]["op"]) * (1 + len(key) % 7 / 100) for key in on_gpu}
        assert len(on_gpu) > 200
        assert on_gpu == pytest.approx(expected, rel=1e-5)
        assert not any("complex128" in key for key in on_gpu)
        by_op = {each["op"]: float(each["ratio"]) for each in marks(page.locator("[data-op]")) if each["ratio"] != "1"}
        logs = [math.log(ratio) for key, ratio in expected.items() if cells[key]["op"] == "transpose"]
        assert by_op["transpose"] == pytest.approx(math.exp(sum(logs) / len(logs)), rel=1e-5)
        points = marks(page.locator(".share [data-key]"))
        assert len(points) > 200
        for point in points:
            scale = 0.97 if cells[point["key"]]["flops"] else 0.68
            rate = 1 / expected[point["key"]]
            assert float(point["second"]) == pytest.approx(float(point["first"]) * rate / scale, rel=1e-4)
    for place in ("devices", "history", "roofline", "ladder"):
        with opened(browser, two_gpus_site, view(place, machine=names[0], **{"with": ""})) as page:
            said = page.locator("main").inner_text()
            assert H100 in said
            assert ("2 of 3 other GPUs worked when a process" in said) == (place == "devices")
    with opened(browser, two_gpus_site, "status", NARROW) as page:
        assert page.locator(".machine").count() == 2
        assert fits(page)


def test_two_boards_of_one_name_are_told_apart(browser: "Browser", planted_site: Path, recorded_site: Path) -> None:
    boards = {
        group: {known["nvml_uuid_sha256"] for _, known in runs}
        for group, runs in details(planted_site)["turns"].items()
        if group.endswith(" gpu")
    }
    with opened(browser, planted_site, "devices") as page:
        answer = page.locator("dd:has([data-boards])")
        assert answer.inner_text().startswith("No, 2 boards")
        page.get_by_text("Which boards measured what").click()
        told = answer.locator("details p").all_inner_texts()
        assert told == [f"{group.replace('gpu', 'GPU')}: {board}" for group, (board,) in boards.items()]
    with opened(browser, recorded_site, "devices") as page:
        assert page.locator("[data-boards]").count() == 0


def test_a_machine_is_not_compared_with_itself(browser: "Browser", two_gpus_site: Path) -> None:
    with opened(browser, two_gpus_site, view("devices", machine=RECORDED, **{"with": RECORDED}), NARROW) as page:
        assert fits(page)
        assert page.get_by_role("heading", name="What differs").count() == 0


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"import scipy": "1.0"}, {"import scipy": "1.1"}, ["import scipy 1.0 \u2192 1.1"]),
        ({}, {"import scipy": "1.1"}, []),
        ({"import scipy": "1.0"}, {}, []),
    ],
)
def test_a_new_import_is_no_difference(
    browser: "Browser", recorded_site: Path, before: dict[str, str], after: dict[str, str], said: list[str]
) -> None:
    with opened(browser, recorded_site, view("devices", op="transpose")) as page:
        assert page.evaluate("([before, after]) => kernelwatch.differences(before, after)", [before, after]) == said


# --- Commit ----------------------------------------------------------------------------------------------------------


def test_a_commit_lists_what_moved(browser: "Browser", planted_site: Path) -> None:
    at = next(at for at, commit in data(planted_site, "commits").items() if commit["hash"].startswith("1f4563dc"))
    before, after = (data(planted_site, f"{folder(planted_site)}/at/{each}")["cells"] for each in (int(at) - 1, at))
    changes = (change for event in data(planted_site, "events")["events"] for change in event["changes"])
    sizes = {change["cell"]: change["size"] for change in changes if change["to"].startswith("1f4563dc")}
    moved = {}
    for key, cell in after.items():
        change = cell["s"] / before[key]["s"] - 1
        if abs(change) > max(cell["detectable"], before[key]["detectable"]):
            moved[key] = sizes[key]  # which is not just the difference of the two runs
            assert 1e-4 < abs(sizes[key] - change) < 1e-3
    assert len(moved) == 2
    with opened(browser, planted_site, view("commit", hash="1f4563dc")) as page:
        assert page.locator("h1").inner_text() == "A barrier after each step of loads"
        found = {each["key"]: float(each["change"]) for each in marks(page.locator("td [data-change]"))}
        assert found == pytest.approx(moved)
        assert {each["cell"] for each in marks(page.locator(".happened li"))} - {""} == set(moved)
        assert "confirmed: barriers (padded, float32 256x256)" in page.locator(".happened").inner_text()
        assert page.locator(".files code").all_inner_texts() == ["gpukernels/transpose/padded.cu"]
        ladder = page.get_by_role("link", name="transpose", exact=True).get_attribute("href") or ""
        assert ladder.startswith("#/ladder?op=transpose")
        assert ladder.endswith("&commit=1f4563dc")
        page.get_by_role("link", name="older measured commit").click()
        older = data(planted_site, "commits")[str(int(at) - 1)]["subject"]
        page.locator("h1", has_text=older).wait_for()
        assert "No event begins at this commit." in page.locator(".view").inner_text()
        assert page.locator(".happened").count() == 0


def test_a_commit_shows_what_it_changed(browser: "Browser", planted_site: Path) -> None:
    with opened(browser, planted_site, view("commit", hash="08ef6ba0")) as page:
        lines = page.locator(".files .lines")
        assert [(each["path"], each["added"], each["removed"]) for each in marks(lines)] == [
            ("gpukernels/matmul/thread_tile_2d.cu", "1", "1")
        ]
        assert page.locator(".diff .bad").all_inner_texts() == ["-constexpr int PAD_A = 4;\n"]
        assert page.locator(".diff .good").all_inner_texts() == ["+constexpr int PAD_A = 0;\n"]
        assert (
            "git show --first-parent -m 08ef6ba0a2a96ad3ab3f68d5d65ff97c27eae313" in page.locator(".view").inner_text()
        )
        page.get_by_role("link", name="older measured commit").click()
        page.locator("h1", has_text="The naive transpose").wait_for()
        assert page.locator(".diff").count() == 0  # it has no event


def test_a_long_diff_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    class Repository:
        def _run_git(self, arguments: list[str], **_options: object) -> str:
            assert arguments[-3:] == ["abc", "--", "gpukernels"]
            return f"+{HOSTILE}\n-{'x' * 99}\n+y\n"

    monkeypatch.setattr(diffs, "LIMIT", 120)
    assert diffs.diff_of(Repository(), "abc", ["gpukernels"]) == {
        "whole": False, "lines": [f"+{HOSTILE}"], "left_out": 2
    }  # fmt: skip


def test_a_commit_lists_exact_figures_and_what_is_not_known(
    browser: "Browser", invented_site: Path, recorded_site: Path
) -> None:
    at = details(invented_site)["commits"]
    with opened(browser, invented_site, view("commit", at=at[6]), NARROW) as page:
        assert fits(page)
        assert page.locator("h1").inner_text() == HOSTILE
        own = page.locator("section").first
        found = marks(own.locator("[data-benchmark]"))
        assert [(each["rung"], each["place"], each["value"]) for each in found] == [("padded", "float32 256x256", "32")]
        assert page.locator("section[data-machine]").count() == 2
    head = data(recorded_site, "site")["head"]
    with opened(browser, recorded_site, view("commit", at=head)) as page:
        assert (
            "It was not measured on this machine. The newest commit that was is 47de068d."
            in page.locator(".view").inner_text()
        )
    with opened(browser, recorded_site, view("commit", at=at[0])) as page:
        assert "the first commit measured here" in page.locator(".view").inner_text()


def test_the_diff_of_a_merge_is_what_it_brought_to_its_branch(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "first")
    git(tmp_path, "checkout", "-q", "-b", "side")
    (tmp_path / "kernels" / "a.cu").write_text("slow\n")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "side")
    git(tmp_path, "checkout", "-q", "main")
    git(tmp_path, "merge", "-q", "--no-ff", "-m", "merge", "side")
    told = diffs.diff_of(Git(str(tmp_path), str(tmp_path / "mirror")), "main", ["kernels"])
    assert "+slow" in told["lines"]
