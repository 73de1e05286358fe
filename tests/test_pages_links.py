"""Links on the pages: the recorded ones beside full runs, and hostile ones of a machine that has no full run."""

import json
import math
import os
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kernelwatch.history import links
from kernelwatch.publish.offline import write_scripts
from lab import picture
from tests.pages import HOSTILE, NARROW, RECORDED, WIDE, browser, data, fits, opened, pages_group, view
from tests.repositories import ROOT
from tests.test_pages import violations

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser"]  # fixtures
pytestmark = pages_group

FULL_RUNS = ("46ae8df7", "cdf67321")  # on two GPUs
ALONE = "rented"
CHANGED, SAME = "matmul/pipelined_32x64 float32 1024x1024x1024 cold", "transpose/padded float32 4096x4096 cold"
UNCHANGED = "matmul/initial float32 1024x1024x1024 cold"
NOT_ASKED = "vector_add/c float32 65536 cold"  # of the CPU
COMMIT = "93833de8"  # made some launches faster and others slower


def linked_files() -> list[Path]:
    return sorted((ROOT / "results" / RECORDED).glob(f"*{links.SUFFIX}"))


def _publish(base: Path) -> Path:
    folder = base / "linked site"
    done = folder / "published"  # by another module of tests in this process
    if done.exists():
        return Path(done.read_text())
    own, alone = folder / "results" / RECORDED, folder / "results" / ALONE
    own.mkdir(parents=True)
    alone.mkdir()
    for path in linked_files():
        shutil.copy(path, own)
        text = path.read_text().replace("matmul/pipelined", f"matmul/{HOSTILE}").replace("no suite times it", HOSTILE)
        (alone / links.name_of(links.parsed(text.splitlines()), text)).write_text(text)
    for commit in FULL_RUNS:
        for path in (ROOT / "results" / RECORDED).glob(f"{commit}-checkout-*"):
            shutil.copy(path, own)
    shutil.copy(ROOT / "results" / RECORDED / "machine.json", own)
    shutil.copy(ROOT / "results" / "benchmarks.json", folder / "results")
    os.mkfifo(alone / f"fifo{links.SUFFIX}")
    (alone / f"loop{links.SUFFIX}").symlink_to(f"loop{links.SUFFIX}")
    done.write_text(str(picture.publish_own(folder, folder / "results").parent))
    return Path(done.read_text())


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recorded links with two full runs, each on another GPU; the same links, with hostile names, of a machine
    without any full run."""
    return _publish(tmp_path_factory.getbasetemp())


def linked_changes(site: Path, machine: str = RECORDED) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    events = data(site, "events")["events"]
    found = [(event, change) for event in events for change in event["changes"] if change["linked"]]
    return [(event, change) for event, change in found if change["place"]["machine"] == machine]


def test_a_change_has_one_size_interval_and_verdict_everywhere(browser: "Browser", site: Path) -> None:
    told = data(site, f"links/{RECORDED}")
    found = linked_changes(site)
    assert len(found) > 10
    position = {commit["hash"]: int(at) for at, commit in told["commits"].items()}
    own: dict[str, float] = {}  # cell -> what the link of COMMIT says
    for event, change in found:
        first, at = (position[change[end]] for end in ("from", "to"))
        launches = [each for each in told["cells"][change["cell"]]["launches"] if each["word"]]
        (launch,) = (each for each in launches if each["at"] == at)
        log, half = launch["step"]
        if change["to"].startswith(COMMIT):
            own[change["cell"]] = math.expm1(log)
        if event["gradual"]:  # several links together, each too small for an event or beside one
            steps = [each["step"][0] for each in launches if first < each["at"] <= at]
            assert len(steps) > 1
            assert math.expm1(math.fsum(steps)) == pytest.approx(change["change"], abs=1e-5)
        else:
            assert math.expm1(log) == pytest.approx(change["change"], abs=1e-5)
            assert [math.expm1(log - half), math.expm1(log + half)] == pytest.approx(change["interval"], abs=2e-4)
            assert launch["word"] == {"regression": "worse", "improvement": "better"}[event["kind"]]
        verdict = change["verdict"]
        assert [verdict["low"], verdict["high"]] == change["interval"]
        assert (verdict["word"], verdict["change"]) == ("confirmed", change["change"])
    with opened(browser, site, f"commit?hash={COMMIT}") as page:
        shown = page.locator(f"section[data-machine='{RECORDED}'] [data-key]").evaluate_all(
            "all => all.map(each => [each.dataset.key, Number(each.dataset.change)])"
        )
        assert {key: change for key, change in shown if key in own} == pytest.approx(own, abs=1e-5)
        assert len(own) > 5
    worst = max(
        (change["size"] for _, change in found if change["open"]),
        default=0.0,
    )
    with opened(browser, site, "status") as page:
        assert f"+{100 * worst:.2f} %" in page.locator(f"[data-machine='{RECORDED}'] ul:not(.gaps)").inner_text()
    feed = ET.parse(site / "regressions.xml").getroot()
    assert f"+{100 * worst:.2f} %" in "".join(feed.itertext())


def test_the_page_of_a_gradual_change_tells_the_sum_of_all_its_links(browser: "Browser", site: Path) -> None:
    told = data(site, f"links/{RECORDED}")
    position = {commit["hash"]: int(at) for at, commit in told["commits"].items()}
    gradual = [event for event, _ in linked_changes(site) if event["gradual"]]
    assert gradual
    for event in gradual:
        change = event["changes"][0]
        first, last = (position[change[end]] for end in ("from", "to"))
        cell = told["cells"][change["cell"]]
        ends = [cell["launches"][link[2]]["at"] for link in cell["links"]]
        own = [link for link, at in zip(cell["links"], ends, strict=True) if first < at <= last]
        steps = [told["sessions"][link[0]] for link in own if told["sessions"][link[0]]["kind"] == "step"]
        assert (change["links"], change["gpus"]) == (len(steps), sorted({each["gpu"] for each in steps}))
        for size in (WIDE, NARROW):
            with opened(browser, site, f"event?id={event['id']}", size=size) as page:
                assert fits(page)
                words = page.locator("main").inner_text()
                assert "Both commits were measured again" not in words
                samples = page.locator(f".samples [data-links='{change['links']}'][data-gpus='{len(change['gpus'])}']")
                low, high = (f"{100 * end:+.2f} %".replace("-", "\u2212") for end in change["interval"])
                assert f"{low} to {high}" in samples.first.inner_text()
                dots = page.locator(".samples figure").first.locator("[data-row='each link']")
                assert dots.count() == change["links"]
                assert f"git diff {event['before'][:8]} {event['last']['hash'][:8]}" in words
                for gpu in change["gpus"]:
                    assert gpu in page.locator("table[aria-label='GPUs and clocks']").inner_text()
    assert len({gpu for event in gradual for gpu in event["changes"][0]["gpus"]}) > 1


@pytest.mark.parametrize(
    "name",
    [
        "status",
        "regressions",
        f"commit?hash={COMMIT}",
        "devices",
        view("history", cell=CHANGED),
        view("history", cell=[CHANGED, "matmul/pipelined float32 256x256x256 hot"]),
        view("history", cell=SAME),
        "event",
    ],
    ids=lambda name: name.partition("?")[0],
)  # fmt: skip
def test_every_view_is_plain_fits_and_shuts_nobody_out(browser: "Browser", site: Path, name: str) -> None:
    for size, scheme in ((WIDE, "light"), (NARROW, "dark")):
        with opened(browser, site, name, size, scheme, fresh=True) as page:  # type: ignore[arg-type]
            assert page.locator("main .error").count() == 0
            assert not page.evaluate("window.pwned")
            assert fits(page)
            assert not re.search(r"\b(undefined|NaN|null|\[object)", page.locator("main").inner_text())
            assert violations(page) == []
            for drawn in page.locator("section.links svg").all():
                box = drawn.bounding_box()
                assert box is not None
                assert box["x"] + box["width"] <= size[0]


def test_history_opens_with_links_if_no_two_full_runs_compare(browser: "Browser", site: Path) -> None:
    with opened(browser, site, view("history", cell=CHANGED)) as page:
        assert page.locator("main h2").all_inner_texts()[:2] == ["By links", "By full runs"]
        rows = page.locator("table[aria-label^='Links of'] tbody tr").count()
        assert rows == len(data(site, f"links/{RECORDED}")["cells"][CHANGED]["links"])
    with opened(browser, site, view("history", cell=SAME)) as page:
        assert f"No commit that was asked changed the launch of {SAME}." in page.locator("section.links").inner_text()


def test_where_links_go_on_nothing_is_said_not_to_be_compared(browser: "Browser", site: Path) -> None:
    for cell in (CHANGED, UNCHANGED):
        with opened(browser, site, view("history", cell=cell)) as page:
            told = page.locator("li[data-kind=turn]").inner_text()
            assert "another GPU of the same model" in told
            assert told.endswith("Figures of full runs stop there; links go on.")
            assert "not compared" not in page.locator("main").inner_text()


def test_links_join_the_launches_of_a_piece(browser: "Browser", site: Path) -> None:
    told = data(site, f"links/{RECORDED}")
    steps = [session for session in told["sessions"] if session["kind"] == "step"]
    first, last = min(session["from"] for session in steps), max(session["at"] for session in steps)
    cell, launches = next(  # a launch that nothing links with the one before it
        (cell, own["launches"])
        for cell, own in told["cells"].items()
        if [launch["piece"] for launch in own["launches"][:3]] == [0, 1, 1]
    )
    left = next(session["at"] for session in steps if "vector_add/c" in session["unjudged"])
    (reach,) = (each for each in data(site, "events")["links"] if each["machine"] == RECORDED)
    unasked = sorted(commit["at"] for commit in reach["missing"])  # nobody knows what these changed
    asked_spans = list(zip([first, *unasked], [*(at - 1 for at in unasked), last], strict=True))
    asked: list[tuple[str, int, int, bool]] = [
        (cell, launches[1]["at"], launches[2]["at"], True),
        (cell, launches[1]["at"], launches[2]["at"] - 1, True),
        (cell, launches[1]["at"] - 1, launches[1]["at"], False),
        *((UNCHANGED, low, high, True) for low, high in asked_spans),
        *((UNCHANGED, at - 1, at, False) for at in unasked),
        (UNCHANGED, first, last, not unasked),
        (UNCHANGED, first - 1, first, False),
        (UNCHANGED, last, last + 1, False),
        (NOT_ASKED, left - 1, left, False),
        (NOT_ASKED, left, left, True),
        ("transpose/vector_copy float32 4096x4096 cold", first, last, False),  # a line to compare with
        ("matmul/cublas float32 1024x1024x1024 cold", last - 1, last, True),  # a rung, and such a line
    ]
    script = """async ([machine, asked]) => {
        const joins = await kernelwatch.links.joining(machine, await kernelwatch.load("events"));
        return asked.map(([cell, from, to]) => joins(cell, from, to));
    }"""
    with opened(browser, site, "status") as page:
        assert page.evaluate(script, [RECORDED, asked]) == [joined for *_, joined in asked]
        assert page.evaluate(script, ["another", asked[:1]]) == [False]


def test_pages_that_compare_two_full_runs_say_what_links_compare(browser: "Browser", site: Path) -> None:
    newest, before = FULL_RUNS
    for name in (f"commit?hash={newest}", view("ladder", op="matmul", device="gpu", commit=newest, **{"with": before})):
        with opened(browser, site, name) as page:
            told = page.locator("main p.warn", has_text="another GPU of the same model").inner_text()
        found = re.search(r"links compare these commits in (\d+) of (\d+) cells\.$", told)
        assert found is not None, told  # cuBLAS's launch was described later, and was not asked at a commit between
        assert 20 < int(found[1]) < int(found[2])


def test_a_rung_tells_by_links_what_no_two_full_runs_tell(browser: "Browser", site: Path) -> None:
    told = data(site, f"links/{RECORDED}")
    op, rung = CHANGED.partition(" ")[0].split("/")
    with opened(browser, site, view("rung", op=op, rung=rung)) as page:
        chart = page.locator(".charts a", has_text="float32 1024³ cold")
        shown = chart.locator("[data-linked]")
        newest = told["cells"][CHANGED]["launches"][-1]
        assert float(shown.get_attribute("data-linked") or "") == pytest.approx(math.expm1(newest["log"]), abs=1e-6)
        first = next(each for each in told["cells"][CHANGED]["launches"] if each["piece"] == newest["piece"])
        (reach,) = (each for each in data(site, "events")["links"] if each["machine"] == RECORDED)
        ends = told["commits"][str(first["at"])]["hash"][:8], reach["newest"][:8]
        assert shown.inner_text().endswith(" by links from {} to {}".format(*ends))
        assert "under the newest conditions" not in chart.inner_text()


def test_a_cell_that_was_not_asked_for_is_not_said_to_be_unchanged(browser: "Browser", site: Path) -> None:
    own = [session for session in data(site, f"links/{RECORDED}")["sessions"] if "vector_add/c" in session["unjudged"]]
    with opened(browser, site, view("history", cell=NOT_ASKED)) as page:
        told = page.locator(f"section.links [data-key='{NOT_ASKED}']").inner_text()
    assert told == (
        f"{len({session['at'] for session in own})} commits that were asked may have changed the launch of "
        f"{NOT_ASKED}, which was not measured: CPU cells were not asked for."
    )


def test_an_op_of_which_no_launch_changed_is_told_on_status(browser: "Browser", site: Path) -> None:
    with opened(browser, site, "status") as page:
        for machine, leads in ((RECORDED, 1), (ALONE, 0)):  # without a full run there is no ladder
            row = page.locator(f"article[data-machine='{machine}'] tr", has_text="vector_add GPU")
            (reach,) = (each for each in data(site, "events")["links"] if each["machine"] == machine)
            assert row.locator("td").all_inner_texts()[1:] == ["no launch changed"] * len(reach["since"])
            assert row.locator("a").count() == leads
        page.locator(f"article[data-machine='{RECORDED}'] tr a", has_text="matmul GPU").click()
        page.locator("h1", has_text="matmul").wait_for()


def test_how_ops_compare_with_earlier_commits_is_seen_without_scrolling(browser: "Browser", site: Path) -> None:
    for size in (WIDE, NARROW):
        with opened(browser, site, "status", size) as page:
            tables = page.locator("table.since")
            assert tables.count()
            hidden = "all => all.map(each => each.parentElement.scrollWidth - each.parentElement.clientWidth)"
            assert tables.evaluate_all(hidden) == [0] * tables.count()


def test_a_machine_without_a_full_run_has_a_card_its_events_and_pages_of_its_commits(
    browser: "Browser", site: Path
) -> None:
    assert [machine["name"] for machine in data(site, "site")["machines"]] == [RECORDED]
    found = linked_changes(site, ALONE)
    assert len(found) == len(linked_changes(site))
    with opened(browser, site, "status") as page:
        card = page.locator(f"article[data-machine='{ALONE}']")
        assert "regression" in card.locator(".verdict-line.bad").inner_text()
        assert HOSTILE in card.inner_text()  # why launches were not measured
        (reach,) = (each for each in data(site, "events")["links"] if each["machine"] == ALONE)
        since = {each["name"]: each["ops"] for each in reach["since"]}
        shown = card.locator("[data-since='first']").evaluate_all("all => all.map(each => Number(each.dataset.change))")
        assert shown == pytest.approx([math.expm1(each[0]) for _, each in sorted(since["first"].items()) if each[2]])
        assert shown
    # By op, the cells whose newest launch links connect with an earlier one, and those where they do not.
    counts: dict[str, list[int]] = {}
    for key, cell in data(site, f"links/{ALONE}")["cells"].items():
        is_apart = cell["launches"][-1]["piece"] == len(cell["launches"]) - 1
        counts.setdefault(f"{key.partition('/')[0]} gpu", [0, 0])[is_apart] += 1
    assert {op: told[2:] for op, told in since["first"].items()} == counts
    assert len(counts) >= 2
    with opened(browser, site, f"commit?hash={COMMIT}") as page:
        text = page.locator(f"section[data-machine='{ALONE}']").inner_text()
        assert f"matmul/{HOSTILE}_32x64" in text
    with opened(browser, site, "regressions") as page:
        assert f"matmul/{HOSTILE}_32x64" in page.locator("main").inner_text()


def test_a_history_of_links_alone_has_all_its_pages(browser: "Browser", site: Path, tmp_path: Path) -> None:
    """No machine has a full run: what links tell is shown, and pages of absolute figures say what is lacking."""
    copy = tmp_path / "html"
    shutil.copytree(site, copy, ignore=shutil.ignore_patterns("asv"))
    told = json.loads((copy / "data" / "site.json").read_text())
    (copy / "data" / "site.json").write_text(json.dumps(told | {"machines": []}))
    write_scripts(copy / "data")
    cells = {name: data(site, f"links/{name}")["cells"] for name in (ALONE, RECORDED)}
    hostile = CHANGED.replace("pipelined", HOSTILE)
    for name, shown in {
        "status": "Links only",
        "regressions": "confirmed in",
        "history": "By links",
        view("history", cell=CHANGED, machine=RECORDED): CHANGED,
        view("history", cell=hostile, machine=ALONE): hostile,
        view("devices", machine=ALONE): "GPUs that measured links",
        f"commit?hash={COMMIT}": "By links",
    }.items():
        for size in (WIDE, NARROW):
            with opened(browser, copy, name, size, fresh=True) as page:
                assert page.locator("main .error").count() == 0, name
                text = page.locator("main").inner_text()
                assert shown in text
                assert not re.search(r"\b(undefined|NaN|null|\[object)|0\.0000", text)  # seconds have their unit
                assert not page.evaluate("window.pwned")
                assert "machine" not in page.locator("#footer").inner_text()
                assert fits(page)
    with opened(browser, copy, view("history", cell=CHANGED, machine=RECORDED)) as page:
        dates = page.locator("table[aria-label^='Links of'] tbody tr td:nth-child(6)").all_inner_texts()
        assert dates == sorted(dates, reverse=True)
        assert len(dates) == len(cells[RECORDED][CHANGED]["links"])


def test_links_that_are_not_all_measured_and_decided_are_not_green(
    browser: "Browser", site: Path, tmp_path: Path
) -> None:
    """The same site without any event: what is not asked, not measured and not decided still counts."""
    copy = tmp_path / "html"
    shutil.copytree(site, copy, ignore=shutil.ignore_patterns("asv"))
    events = json.loads((copy / "data" / "events.json").read_text()) | {"events": []}
    whole: dict[str, Any] = {"missing": [], "later": 0, "undecided": 0, "unjudged": [], "failed": [], "gone": []}
    whole["compared"] = True
    cases: tuple[dict[str, Any], ...] = (
        {},
        {"undecided": 2},
        {"missing": [{"at": 1, "hash": "a" * 40}]},
        {"later": 1},
        {"unjudged": [["why", 1]]},
        {"gone": [{"cell": CHANGED, "at": 1, "hash": "c" * 40}]},
        {"compared": False},
    )
    failed = {"cell": CHANGED, "why": "WrongOutput: all of it", "at": 10**6, "hash": "b" * 40}
    for number, case in enumerate((*cases, {"failed": [failed]})):
        own = tmp_path / str(number)
        shutil.copytree(copy, own)
        reaches = [each | whole | case for each in events["links"]]
        (own / "data" / "events.json").write_text(json.dumps(events | {"links": reaches}))
        write_scripts(own / "data")
        with opened(browser, own, "status") as page:
            tone = "bad" if "failed" in case else "warn" if case else "good"
            line = page.locator(f"article[data-machine='{ALONE}'] .verdict-line")
            assert line.get_attribute("class") == f"verdict-line {tone}", case
            if tone == "bad":
                for machine in (ALONE, RECORDED):
                    card = page.locator(f"article[data-machine='{machine}']").inner_text()
                    assert "1 launch fails since bbbbbbbb" in card
                    assert "WrongOutput: all of it" in card


def test_a_link_across_a_gap_is_told_as_one(browser: "Browser", site: Path, tmp_path: Path) -> None:
    """The page of a commit names the one with which it was compared; the line of History goes on behind the gap."""
    copy = tmp_path / "html"
    shutil.copytree(site, copy, ignore=shutil.ignore_patterns("asv"))
    told = data(site, f"links/{RECORDED}")
    at = next(int(at) for at, commit in told["commits"].items() if commit["hash"].startswith(COMMIT))
    number, step = next(
        (n, each) for n, each in enumerate(told["sessions"]) if (each["at"], each["kind"]) == (at, "step")
    )
    older = max(each["from"] for each in told["sessions"] if each["from"] < step["from"])
    told["sessions"].append(step | {"from": older, "gpu": "another one"})
    key, cell = next(
        (key, cell) for key, cell in told["cells"].items()
        if [link[0] for link in cell["links"] if told["sessions"][link[0]]["at"] == at] == [number]
    )  # fmt: skip
    changed = sum(
        any(each["at"] == at and "step" in each for each in own["launches"]) for own in told["cells"].values()
    )
    for link in cell["links"]:
        link[0] = len(told["sessions"]) - 1 if link[0] == number else link[0]
    launches = cell["launches"]
    index = next(index for index, launch in enumerate(launches) if launch["at"] == at)
    assert launches[index]["piece"] == launches[index - 1]["piece"]
    launches.insert(
        index, launches[index] | {"at": step["from"], "piece": -1, "word": "cannot tell", "why": "it failed"}
    )
    (copy / "data" / "links" / f"{RECORDED}.json").write_text(json.dumps(told))
    write_scripts(copy / "data")
    for size in (WIDE, NARROW):
        with opened(browser, copy, f"commit?hash={COMMIT}", size=size) as page:
            section = page.locator(f"section[data-machine='{RECORDED}']")
            parent, across = section.locator("h3:text('By links') ~ p").all_inner_texts()[:2]
            assert f"its parent {told['commits'][str(step['from'])]['hash'][:8]} in turns" in parent
            assert f"{changed - 1} launches changed" in parent
            assert f"Compared with {told['commits'][str(older)]['hash'][:8]}, the last commit" in across
            assert "another one" in across
            assert "another one" not in parent
            assert "1 launch changed" in across
        for joined, whose in ((1, copy), (0, site)):
            with opened(browser, whose, view("history", cell=key, machine=RECORDED), size=size) as page:
                assert page.locator(".links .joined line").count() == joined


def test_devices_name_the_gpus_that_measured_links(browser: "Browser", site: Path) -> None:
    sessions = [links.parsed(path.read_text().splitlines()) for path in linked_files()]
    with opened(browser, site, "devices") as page:
        rows = page.locator("table[aria-label='GPUs that measured links'] tbody tr").all_inner_texts()
    assert len(rows) == len({session.gpu for session in sessions if session.changed})
    for gpu in {session.gpu for session in sessions if session.changed}:
        (row,) = (row for row in rows if gpu in row)
        assert str(sum(len(session.changed) for session in sessions if session.gpu == gpu)) in row


def test_the_documented_fields_are_those_that_are_written(site: Path) -> None:
    text = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"\n## Links\n(.*?)\n## ", text, re.DOTALL)
    tables = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)
    documented = [
        {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
        for table in tables
    ]
    told = data(site, f"links/{ALONE}")
    cells = told["cells"].values()
    assert {frozenset(cell) for cell in cells} == {frozenset({"launches", "links", "disagree"})}
    launches = [launch for cell in cells for launch in cell["launches"]]
    written = [data(site, "events")["links"], [told], told["sessions"], launches]
    assert [{name for entry in entries for name in entry} for entries in written] == documented


def test_the_event_of_a_link_shows_its_turns(browser: "Browser", site: Path) -> None:
    event, change = next(
        (event, change) for event, change in linked_changes(site, ALONE) if event["last"]["hash"].startswith(COMMIT)
    )
    told = next(each for each in data(site, f"causes/{event['id']}")["cells"] if each["change"] == change["id"])
    with opened(browser, site, view("event", id=change["id"])) as page:
        drawn = page.locator(".samples figure").first.locator("[data-value]")
        values = [float(each) for each in drawn.evaluate_all("all => all.map((each) => each.dataset.value)")]
        logs = [log for turn in told["turns"] for log in turn["logs"]]
        assert sorted(values) == pytest.approx(sorted(100 * math.expm1(log) for log in logs))
        assert len(values) >= 4
        assert all(turn["gpu"] in page.locator("main").inner_text() for turn in told["turns"])
        assert len({turn["gpu"] for turn in told["turns"]}) == len(told["turns"]) > 1
        assert page.locator("section.sass").inner_text().count("No SASS diff: ") == len(
            data(site, f"sass/{event['id']}")["kernels"]
        )
    with opened(browser, site, f"commit?hash={COMMIT}") as page:
        hrefs = page.locator("main ul.events a").evaluate_all("all => all.map((each) => each.hash)")
        of_commit = [each["id"] for each in data(site, "events")["events"] if each["last"]["hash"].startswith(COMMIT)]
        assert hrefs == [f"#/event?id={id}" for id in of_commit]
        assert len(of_commit) >= 2


def test_an_architecture_that_no_record_tells_is_said_to_be_assumed(
    browser: "Browser", site: Path, tmp_path: Path
) -> None:
    """What only links of a machine without a full run tell names no compute capability."""
    alone = tmp_path / "results" / ALONE
    alone.mkdir(parents=True)
    for path in linked_files():
        if path.name.startswith(COMMIT):
            shutil.copy(path, alone)
    shutil.copy(ROOT / "results" / "benchmarks.json", alone.parent)
    for place, is_assumed in ((site, False), (picture.publish_own(tmp_path, alone.parent).parent, True)):
        every = [data(place, f"causes/{event['id']}") for event in data(place, "events")["events"]]
        causes = next(each for each in every if each["kernels"])
        assert {kernel["assumed"] for kernel in causes["kernels"]} == {is_assumed}
        sass = data(place, f"sass/{causes['id']}")["kernels"]
        assert {kernel["assumed"] for kernel in sass} == {is_assumed}
        assert all(kernel["kernel"].endswith(" sm_90") for kernel in [*causes["kernels"], *sass])
        with opened(browser, place, f"event?id={causes['id']}") as page:
            page.locator("section.figures-moved").wait_for()
            words = page.locator("main").inner_text()
            assert words.count("Compiled for sm_90, which is assumed") == is_assumed * 2 * len(causes["kernels"])
