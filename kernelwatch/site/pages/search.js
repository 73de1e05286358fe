// Search: any rung, cell, commit, series or machine whose name has all the words.
"use strict";

{
    const {element, link, text} = kernelwatch;
    const SHOWN = 40;

    // Everything that can be found: {kind, name, node}. `name` is what the words are looked for in.
    function entries({site, commits, cells, events}) {
        const found = [];
        const add = (kind, name, view, parameters, more = "") => found.push({kind, name: name + " " + more, show: () => [link(name, view, parameters), more ? element("span", {class: "quiet"}, " " + more) : null]});
        for (const op of site.ops) {
            add("op", op.name, "ladder", {op: op.name});
            for (const rung of op.rungs) add("rung", op.name + "/" + rung.name, "rung", {op: op.name, rung: rung.name}, rung.idea);
        }
        for (const machine of site.machines) add("machine", machine.name, site.described ? "devices" : "regressions", {machine: machine.name}, site.described ? kernelwatch.device_name(machine) : "");
        for (const commit of Object.values(commits)) add("commit", text.hash(commit.hash), "commit", {hash: text.hash(commit.hash)}, commit.subject + ", " + commit.author + ", " + text.date(commit.date));
        for (const key of Object.keys(cells)) add("cell", key, "history", {cell: key});
        for (const series of events.series) {
            if (series.cell || !series.configured) continue;  // found as a cell, or on its branch
            if (!site.described || series.file) {
                const parts = site.machines.length > 1 ? series.place.machine : "";
                if (series.file) found.push({kind: "series", name: kernelwatch.values.name(series) + " " + parts, show: () => [kernelwatch.values.link(series), parts ? element("span", {class: "quiet"}, " " + parts) : null]});
                continue;
            }
            const name = series.benchmark + " (" + Object.values(series.params).map((value) => String(value).replaceAll("'", "")).join(", ") + ")";
            const rung = series.params.rung && series.params.rung.replaceAll("'", "");
            const op = kernelwatch.op_of_suite(series.benchmark.split(".")[1]);
            const {machine} = series.place, others = site.machines.length > 1 ? machine : "";
            add("series", name, rung && op ? "rung" : "regressions", rung && op ? {op, rung, machine} : {machine}, others);
        }
        return found;
    }

    kernelwatch.view("search", async function (main, parameters) {
        const asked = (parameters.get("q") || "").trim();
        const words = asked.toLowerCase().split(/\s+/).filter(Boolean);
        const all = await kernelwatch.common();
        const found = entries(all).filter(({name}) => words.every((word) => name.toLowerCase().includes(word)) ||
            (asked.length >= 4 && name.startsWith(asked.slice(0, 8)) && /^[0-9a-f]+$/.test(asked)));
        main.append(element("h1", {}, asked ? "Search for \u201c" + asked + "\u201d" : "Search"),
            element("p", {class: "quiet"}, words.length ? text.plural(found.length, "thing") + " found." : all.site.described ? "Type a rung, a cell, a commit or a series into the box above." : "Type a benchmark, a commit or a machine into the box above."));
        if (!words.length) return;
        for (const kind of ["op", "rung", "machine", "commit", "cell", "series"]) {
            const own = found.filter((each) => each.kind === kind);
            if (!own.length) continue;
            main.append(element("section", {}, element("h2", {}, {op: "Ops", rung: "Rungs", machine: "Machines", commit: "Commits", cell: "Cells", series: all.site.described ? "Other series" : "Series"}[kind] + " (" + own.length + ")"),
                element("ul", {class: "found", "data-kind": kind}, own.slice(0, SHOWN).map((each) => element("li", {}, each.show()))),
                own.length > SHOWN ? element("p", {class: "quiet small"}, "... and " + (own.length - SHOWN) + " more: add a word.") : null));
        }
    });
}
