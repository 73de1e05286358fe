// Regressions: what changed by more than its noise, as one event for each commit, with what was measured again and what
// moved with it.
"use strict";

{
    const {element, link, text, table} = kernelwatch;
    const SHOWN = 6;  // series of an event; the others can be unfolded
    const KINDS = [
        ["regression", "Regressions", "What got worse by more than its noise, while the machine, its software and the harness stayed as they were. " +
            "Confirmed: both commits were measured again in turns and differ, or the figure is exact."],
        ["improvement", "Improvements", "What got better, found in the same way."],
        ["change", "Changes without a better direction", "Steps of figures of which neither direction is better, such as a track_* that does not set higher_is_better."],
        ["disturbed", "Disturbed runs", "Steps that measuring both commits again, in turns, did not show: something disturbed the run."],
        ["environment", "Changes of the environment", "Steps that no commit caused: the GPU, the driver, packages or the harness changed " +
            "at the same time, or the binary did not change at all."],
    ];

    // Of a project without a description, asv's statistics are all that is known.
    const kinds_of = (site) => (site.described ? KINDS : [
        ["regression", "Regressions", "What got worse by more than its noise, which is taken from asv\u2019s samples and from how far neighboring commits differ."],
        ...KINDS.filter(([kind]) => kind === "improvement" || kind === "change")]);

    const MEANT = {  // docs/pages.md
        "confirmed": "Both commits were measured again in turns and differ, or the figure is exact.",
        "refuted": "Both commits were measured again in turns and do not differ: the run was disturbed.",
        "not decided": "Both commits were measured again, and noise left it open; the next run tries again.",
        "not tried": "Both commits were not measured again yet; the command bench does so on the machine that measured them.",
    };

    const kind_of = (event) => (event.verdict === "refuted" ? "disturbed" : event.kind);
    const place_of = (change) => change.place.machine || "";

    // The parameters of a series as asv files them are Python literals.
    const plain = (value) => String(value).replace(/^'(.*)'$/, "$1");

    function series_name(series) {
        const values = Object.values(series.params).map(plain);
        return series.benchmark + (values.length ? " (" + values.join(", ") + ")" : "");
    }

    // What a change is about, short: its cell, or the figure's name with its parameters.
    function subject_of(change) {
        return change.cell || series_name(change).replace(/\.track_/, ".");
    }

    function value_text(change, value, figures) {
        const {unit} = figures[change.benchmark] || {};
        if (value === null || value === undefined) return "n/a";
        if (!kernelwatch.described && !change.exact) return kernelwatch.values.say(value, unit);
        if (change.exact) return text.exact(value);  // its unit stands with the name of the series
        return unit === "seconds" ? text.time(value) : text.digits(value, 4) + (unit ? " " + unit : "");
    }

    function interval_text([low, high], digits) {
        return low === null || low === undefined ? "" : text.change(low, digits) + " to " + text.change(high, digits);
    }

    // What measuring both commits again in turns said.
    function verdict_text(verdict) {
        if (verdict.change === null) return verdict.word + (verdict.why ? ": " + verdict.why : "");
        return verdict.word + ": " + text.change(verdict.change, 2) + " (" + interval_text([verdict.low, verdict.high], 2) + ") in " +
            text.plural(verdict.turns, "turn") + (verdict.why ? ", " + verdict.why : "");
    }

    function commit_link(hash, all) {
        const at = all.at.get(hash);
        return at === undefined ? element("span", {class: "hash"}, text.hash(hash))
            : link(text.hash(hash), "commit", {hash: text.hash(hash)}, {class: "hash"});
    }

    function series_link(change, all) {
        const machine = place_of(change);
        if (!kernelwatch.described) {
            const series = kernelwatch.values.of(all.events.series, change);
            return series && series.file ? kernelwatch.values.link(series, kernelwatch.values.name(change)) : kernelwatch.values.name(change);
        }
        if (change.cell) return link(subject_of(change), "history", {cell: change.cell, machine});
        const rung = change.params.rung && plain(change.params.rung);
        const known = rung && (change.op || change.benchmark.split(".")[1]);
        const op = known && kernelwatch.op_of_suite(known);
        return op ? link(subject_of(change), "rung", {op, rung, machine}) : subject_of(change);
    }

    function change_row(event, change, all) {
        const notes = change.exact ? [(all.site.figures[change.benchmark] || {}).unit].filter(Boolean) : [];
        if (!event.gradual && (change.from !== event.before || change.to !== event.last.hash)) {
            notes.push("after " + text.hash(change.from) + ", by " + text.hash(change.to));
        }
        if (change.undone) notes.push("since undone");
        if (change.verdict) notes.push(verdict_text(change.verdict));
        notes.push(...change.limits);
        return [
            [series_link(change, all), notes.map((note) => element("div", {class: "quiet small"}, note))],
            element("strong", {}, text.change(change.change, 2)),
            change.exact ? "exact" : interval_text(change.interval, 2) || "n/a",
            value_text(change, change.before, all.site.figures),
            value_text(change, change.after, all.site.figures),
            value_text(change, change.now, all.site.figures),
            change.smallest === 0 ? "any" : text.percent(change.smallest, 2),
        ];
    }

    const COLUMNS = [
        {name: "series"}, {name: "change", number: true},
        {name: "95 % interval", number: true, title: "of the change, from the processes and commits on both sides"},
        {name: "before", number: true}, {name: "after", number: true}, {name: "now", number: true},
        {name: "detectable, history", number: true, title: "the smallest step that the history of this series would show"},
    ];

    // The history of an event's largest change, small. Nothing if its series cannot be found.
    async function trend(event, all) {
        if (!event.configured) return null;  // the histories are those of the branch
        if (!all.site.described) {
            const series = kernelwatch.values.of(all.events.series, event.changes[0]);
            const points = series ? await kernelwatch.values.points(series) : [];
            return points.length ? kernelwatch.sparkline(points.map((point, index) => [index, point.value]), subject_of(event.changes[0]) + " at " + text.plural(points.length, "commit")) : null;
        }
        const change = event.changes.find((each) => each.cell);
        if (!change) return null;
        try {
            const machine = await kernelwatch.machine(place_of(change));
            const found = (await machine.history(change.cell.split(" ")[0], all.at.get(change.to)))[change.cell];
            const points = found.at.map((at, index) => [index, found.s[index]]).filter((point) => point[1] !== null && point[1] !== undefined);
            return kernelwatch.sparkline(points, subject_of(change) + " at " + text.plural(points.length, "commit"));
        } catch (error) {
            return null;  // a machine or cell that these pages do not have
        }
    }

    // The exact figures of the same rungs that changed at the same commit: the likely reason for a change of time.
    async function causes(event, all) {
        const rungs = new Map(event.changes.filter((change) => all.cells[change.cell]).map((change) => [change.cell.split(" ").slice(0, 2).join(" "), change]));
        const told = [];
        for (const [name, change] of rungs) {
            try {
                const machine = await kernelwatch.machine(place_of(change));
                const found = await kernelwatch.exact.causes(machine, all.at.get(change.to), all.cells[change.cell]);
                told.push(kernelwatch.exact.told(found, all.site, rungs.size > 1 ? name + ": " : undefined));
            } catch (error) {
                continue;  // a machine that these pages do not have
            }
        }
        const words = told.filter(Boolean);
        return words.length ? element("p", {class: "small causes"}, rungs.size > 1 ? "Exact figures that changed with it. " : "", words) : null;
    }

    // An event as Markdown, for an issue or a pull request.
    function markdown(event, all) {
        const cell = (value) => String(value).replaceAll("|", "\\|");
        const lines = event.changes.slice(0, 20).map((change) => "| " + [
            subject_of(change), text.change(change.change, 2), change.exact ? "exact" : interval_text(change.interval, 2) || "n/a",
            value_text(change, change.before, all.site.figures), value_text(change, change.after, all.site.figures),
        ].map(cell).join(" | ") + " |");
        return "**" + kind_of(event) + "**" + (all.site.described ? " (" + event.verdict + ")" : "") + " at " + text.hash(event.last.hash) + ": " + event.last.subject + "\n\n" +
            "| series | change | 95 % interval | before | after |\n| --- | ---: | ---: | ---: | ---: |\n" + lines.join("\n") + "\n" +
            (event.changes.length > 20 ? "\n... and " + (event.changes.length - 20) + " more series\n" : "");
    }

    async function box(event, all) {
        const environment = event.kind === "environment";
        const title = environment ? event.why.charAt(0).toUpperCase() + event.why.slice(1) : event.last.subject;
        const about = [environment ? "seen at " : "", commit_link(event.last.hash, all), " by " + event.last.author + ", " + text.date(event.last.date)];
        if (event.gradual) about.push("; many small changes since ", commit_link(event.first.hash, all));
        else if (event.commits > 1) {
            about.push("; or one of the " + text.plural(event.commits - 1, "unmeasured commit") + " before it, after ", commit_link(event.before, all));
        }
        if (environment) about.push(": " + event.last.subject);
        if (!event.configured) about.push("; on " + event.branch + ", which is not a configured branch");
        if (all.site.commit_url) about.push(" \u00b7 ", element("a", {href: all.site.commit_url + event.last.hash}, "diff"));
        const rows = event.changes.map((change) => change_row(event, change, all));
        const machines = [...new Set(event.changes.map(place_of))];
        const files = event.last.files.map(([, path]) => path);
        return element("article", {class: "card event " + kind_of(event), "data-commit": event.last.hash, "data-kind": kind_of(event)},
            element("div", {class: "event-head"},
                element("div", {},
                    element("h3", {}, kernelwatch.event.link(title, event.id), environment || !all.site.described ? null : element("span", {class: "verdict " + event.verdict.replaceAll(" ", "-"), title: MEANT[event.verdict]}, event.verdict)),
                    element("p", {class: "quiet small"}, about, environment || !files.length ? "" : " \u00b7 " + files.slice(0, 3).join(", ") + (files.length > 3 ? " and " + (files.length - 3) + " more files" : ""), all.site.machines.length > 1 ? " \u00b7 " + machines.join(", ") : "")),
                await trend(event, all)),
            table(COLUMNS, rows.slice(0, SHOWN), {"aria-label": "Changes at " + text.hash(event.last.hash)}),
            rows.length > SHOWN ? element("details", {}, element("summary", {}, (rows.length - SHOWN) + " more series"),
                table(COLUMNS, rows.slice(SHOWN), {"aria-label": "More changes at " + text.hash(event.last.hash)})) : null,
            environment ? null : await causes(event, all), environment ? null : kernelwatch.copy("Copy as Markdown", markdown(event, all)));
    }

    kernelwatch.told = {COLUMNS, MEANT, change_row, commit_link, kind_of, markdown, series_link, subject_of, verdict_text};  // for the page of an event

    // What the page speaks of, for each machine: "NVIDIA H200, 13 commits up to 47de068d of 2026-11-20, 363 cells, 0 failed".
    function scope(all) {
        const linked = all.events.links.map((reach) => element("p", {class: "quiet small"}, "Links on " + reach.machine + ": " + kernelwatch.links.words(reach)));
        return [...linked, ...all.site.machines.map((machine) => {
            const commit = all.commits[machine.newest], known = kernelwatch.evidence(all.events, machine.name), suites = kernelwatch.failures(all.events, machine.name, commit.hash);
            return element("p", {class: "quiet small"},
                kernelwatch.device_name(machine) + ", " + text.plural(machine.commits, "commit") + " up to ",
                commit_link(commit.hash, all), " of " + text.date(commit.date) + ", " +
                (all.site.described ? text.plural(machine.cells, "cell") + ", " + machine.failed.length + " failed" : "") +
                (suites.length ? (all.site.described ? ", " : "") + text.plural(suites.length, all.site.described ? "suite" : "benchmark") + " failed" + (all.site.described ? " as a whole: " : ": ") + suites.map((told) => told.suite + " (" + told.reason + ")").join(", ") : "") +
                (all.site.described || suites.length ? "; " : "") + "judged: " + known.judged + " of " + text.plural(known.series, "series", "series") + (known.unjudged.length ? " (" + kernelwatch.unjudged_words(known) + ")" : ""));
        })];
    }

    function chosen(events, parameters) {
        const words = (parameters.get("q") || "").toLowerCase().split(/\s+/).filter(Boolean);
        const machine = parameters.get("machine"), verdict = parameters.get("verdict"), op = parameters.get("op");
        return events.filter((event) => {
            const said = [event.last.subject, event.last.hash, event.last.author, event.why, ...event.changes.map(subject_of)].join(" ").toLowerCase();
            return (!machine || event.changes.some((change) => place_of(change) === machine)) && (!verdict || event.verdict === verdict) &&
                (!op || event.changes.some((change) => change.cell.startsWith(op + "/"))) && words.every((word) => said.includes(word));
        });
    }

    function turns(all) {
        const rows = all.events.turns.map((turn) => [turn.why, [commit_link(turn.before, all), " .. ", commit_link(turn.commit, all)], String(turn.series)]);
        return rows.length ? [
            element("p", {class: "quiet small"}, "What changed between measurements, with or without a visible step. No commit is blamed for a step " +
                "across such a change: only measuring both commits again together can decide."),
            table([{name: "what"}, {name: "between"}, {name: "series", number: true}], rows, {"aria-label": "Changes of the environment"}),
        ] : null;
    }

    function judged(all) {
        const rows = all.events.series.map((series) => [[series_link(series, all), series.configured ? "" : element("div", {class: "quiet small"}, "on " + series.place.branch + ", not a configured branch")], String(series.commits),
            series.smallest === 0 ? "any" : text.percent(series.smallest, 2)]);
        const list = element("div");
        return element("section", {},
            element("h2", {}, "Judged series"),
            element("p", {class: "quiet small"}, "Each judged series with its minimum detectable change; n/a if the series is too short since the environment last changed."),
            element("details", {ontoggle: (event) => {  // thousands of rows, which few readers want
                if (event.target.open && !list.firstChild) {
                    list.append(table([{name: "series"}, {name: "commits", number: true}, {name: "detectable, history", number: true}], rows, {"aria-label": "Judged series"}));
                }
            }}, element("summary", {}, text.plural(rows.length, "series", "series")), list));
    }

    kernelwatch.view("regressions", "Regressions", async function (main, parameters) {
        const common = await kernelwatch.common();
        const machines = [...common.site.machines.map((each) => each.name), ...kernelwatch.links.alone(common.site, common.events).map((each) => each.machine)];
        const all = {...common, at: new Map(Object.entries(common.commits).map(([at, commit]) => [commit.hash, Number(at)]))};
        if (all.site.described) await kernelwatch.machine();
        const set = (name) => (value) => kernelwatch.go("regressions", {...Object.fromEntries(parameters), [name]: value});
        const controls = element("div", {class: "controls"},
            machines.length > 1 ? kernelwatch.choice("machine", [["", "all"], ...machines], parameters.get("machine") || "", set("machine")) : null,
            all.site.described ? kernelwatch.choice("op", [["", "all"], ...all.site.ops.map((op) => op.name)], parameters.get("op") || "", set("op")) : null,
            all.site.described ? kernelwatch.choice("verdict", [["", "all"], "confirmed", "not decided", "not tried", "refuted"], parameters.get("verdict") || "", set("verdict")) : null,
            element("label", {}, "words ", element("input", {type: "search", value: parameters.get("q") || "",
                onchange: (event) => set("q")(event.target.value)})));
        const events = chosen(all.events.events, parameters);
        main.append(element("h1", {}, "Regressions"), ...scope(all), controls);
        for (const [kind, heading, explained] of kinds_of(all.site)) {
            const own = events.filter((event) => kind_of(event) === kind);
            if (kind === "change" && all.site.described && !own.length) continue;
            const section = element("section", {class: kind}, element("h2", {}, heading + " (" + own.length + ")"),
                element("p", {class: "quiet small"}, explained));
            section.append(...(own.length ? await Promise.all(own.map((event) => box(event, all)))
                : [element("p", {}, events.length === all.events.events.length ? "None." : "None with these filters.")]));
            if (kind === "environment") section.append(...[turns(all) || []].flat());
            main.append(section);
        }
        main.append(judged(all));
    });
}
