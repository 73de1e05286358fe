"""The tables of docs/research/detection.md."""

from typing import Any

from kernelwatch.report.markdown import table
from lab import ablation
from lab.histories import NONE, OTHERS, SINGLES, TITLES


def share(value: float | None) -> str:
    """A share in percent without its unit; "" for None."""
    return "" if value is None else f"{100 * value:.0f}"


def found_table(result: dict[str, Any]) -> str:
    """Single steps: the share found in the whole history, a row for each noise and detector."""
    rows = []
    for noise, changes in result["trials"].items():
        for name in result["detectors"]:
            figures = [changes[change][name] for change in SINGLES]
            false_flags = changes[NONE][name]["false_per_1000"]
            rows.append([f"{noise}: {name}", *(share(figure["found"]) for figure in figures), f"{false_flags:.2f}"])
    return table(["noise: detector", *SINGLES, "false flags in 1000 commits"], rows)


def soon_table(result: dict[str, Any]) -> str:
    """Single steps: the share flagged within two commits, and the share of the found ones on the right commit."""
    rows = []
    for noise, changes in result["trials"].items():
        for name in result["detectors"]:
            figures = [changes[change][name] for change in SINGLES]
            cells = [f"{share(figure['within_2'])} / {share(figure['exact']) or '-'}" for figure in figures]
            rows.append([f"{noise}: {name}", *cells])
    return table(["noise: detector", *SINGLES], rows)


def stairs_table(result: dict[str, Any]) -> str:
    """Gradual changes and staircases: the share found in the whole history; false flags there in 1000 commits."""
    rows = []
    for noise, changes in result["trials"].items():
        for name in result["detectors"]:
            figures = [changes[change][name] for change in OTHERS]
            false_flags = sum(figure["false_per_1000"] for figure in figures) / len(figures)
            rows.append([f"{noise}: {name}", *(share(figure["found"]) for figure in figures), f"{false_flags:.2f}"])
    names = [TITLES.get(name, name) for name in OTHERS]
    return table(["noise: detector", *names, "false flags in 1000 commits"], rows)


def goal_text(result: dict[str, Any]) -> str:
    """The whole suite without any change, and 1 % steps in the quiet cells."""
    suite, goal = result["suite"], result["goal"]
    rows = [
        ["the A/A record", result["record"]],
        ["cells of the whole suite", str(suite["cells"])],
        ["commits of it without any change, published one by one", str(suite["commits"])],
        ["false flags on any of these days", str(len(suite["false_flags"]))],
        ["the same of another seed", str(len(suite["false_flags_of_next_seed"]))],
        ["cells whose A/A runs differ by at most 0.2 %", str(goal["cells"])],
        ["steps of 1 % in them", str(goal["steps"])],
        ["flagged with the first commit after the step's own", str(goal["after_1"])],
        ["flagged with the second at the latest", str(goal["after_2"])],
        ["the first flag on the right commit", str(goal["first"])],
        ["the same where it is known that the binary changed there", str(goal["named"])],
        ["one flag in the whole history, on the right commit", str(goal["whole"])],
    ]
    for noise, figures in result["past"].items():
        rows += [
            [f"{noise}, then quiet: steps of 1 %", str(figures["steps"])],
            [f"{noise}: flagged with the second commit after the step's own at the latest", str(figures["after_2"])],
            [f"{noise}: false flags in the whole histories", str(figures["false"])],
        ]
    return table(["this project's detector, the GPU's own noise", "figure"], rows)


def confirmed_text(result: dict[str, Any]) -> str:
    """Disturbed runs, each event measured again; and sessions that shift all cells."""
    again, shifted = result["confirmed"], result["together"]
    rows = [
        ["disturbed runs: commits of a quiet cell, published one by one", str(again["commits"])],
        ["events that are no step", str(again["events"])],
        ["those that measuring again confirmed", str(again["false"])],
        ["steps of 1 %", str(again["steps"])],
        ["flagged with the second commit after the step's own at the latest", str(again["after_2"])],
        ["flagged at all", str(again["flagged"])],
        ["confirmed", str(again["confirmed"])],
        ["sessions: commits of a suite", str(shifted["commits"])],
        ["sessions that shifted all its cells", str(shifted["sessions"])],
        ["events of the environment", str(shifted["moves"])],
        ["changes that were blamed on a commit wrongly", str(shifted["false"])],
        ["the same without looking at cells whose binary is the same", str(shifted["false_alone"])],
        ["steps of 1 %", str(shifted["steps"])],
        ["found", str(shifted["found"])],
        ["found without looking at cells whose binary is the same", str(shifted["found_alone"])],
    ]
    return table(["this project's detector", "figure"], rows)


def ablation_table(result: dict[str, Any]) -> str:
    """The detector without each of its tests."""
    rows = []
    for name, kinds in result["ablation"].items():
        cells = [name, ablation.REASONS.get(name, "")]
        for kind in ("measured", "worse"):
            figures = kinds[kind]
            cells += [
                f"{figures['false']} in {figures['commits']}",
                f"{figures['found']} / {figures['soon']} of {figures['steps']}",
                f"{figures['grown']} of {figures['growths']}",
            ]
        rows.append(cells)
    titles = ["false flags in commits", "steps found / soon", "growths found"]
    return table(["left out", "why it is there", *titles, *(f"worse noise: {title}" for title in titles)], rows)


def cost_table(result: dict[str, Any]) -> str:
    """CPU seconds of a long series of each noise."""
    rows = [
        [noise, *(f"{seconds[name]:.3f}" for name in ("whole", "more", "asv"))]
        for noise, seconds in result["cost"]["seconds"].items()
    ]
    names = ["this project's, from the beginning", "this project's, one commit more", "asv's"]
    return table([f"{result['cost']['commits']} commits, CPU seconds: noise", *names], rows)


def labeled_text(result: dict[str, Any]) -> str:
    """The public series: a table of the labeled changes and of each detector's flags."""
    parts = []
    for name, entry in result["labeled"].items():
        title = f"**{name}** ({entry['source']}): the first points after a change"
        rows = [["told of", ", ".join(map(str, entry["changes"]))]]
        rows += [[detector, ", ".join(map(str, flags)) or "none"] for detector, flags in entry["flags"].items()]
        parts.append(f"{title}\n\n{table(['detector', 'flags'], rows)}")
    return "\n\n".join(parts)


BLOCKS = {
    "goal": goal_text,
    "confirmed": confirmed_text,
    "found": found_table,
    "soon": soon_table,
    "stairs": stairs_table,
    "ablation": ablation_table,
    "cost": cost_table,
    "labeled": labeled_text,
}
