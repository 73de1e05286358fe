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
        ["accepted", "Accepted regressions", "Someone said that these are all right, or their commits did. They come back if they get worse."],
        ["disturbed", "Disturbed runs", "Steps that measuring both commits again, in turns, did not show: something disturbed the run."],
        ["environment", "Changes of the environment and of the instruments", "Steps that no commit caused: the GPU, the driver, packages, the harness or the emulator changed " +
            "at the same time, or the binary did not change at all."],
    ];

    // Of a project without a description, asv's statistics are all that is known.
    const kinds_of = (site) => (site.described ? KINDS : [
        ["regression", "Regressions", "What got worse by more than its noise, which is taken from asv\u2019s samples and from how far neighboring commits differ."],
        ...KINDS.filter(([kind]) => ["improvement", "change", "accepted"].includes(kind))]);

    const MEANT = {  // docs/pages.md
        "new": "No comparison of both commits in turns has decided it yet; the command bench makes one on the machine that measured them.",
        "confirmed": "Both commits were measured again in turns and differ.",
        "refuted": "Both commits were measured again in turns and do not differ: the run was disturbed.",
        "accepted": "A decision in results/decisions.toml or the commit itself says that it is all right.",
        "fixed": "A later commit brought the level back.",
        "undone": "A later commit took it back.",
    };

    // Whether an event is a sum of links, none of which shows a change alone.
    const is_sum = (event) => event.gradual && event.changes.every((change) => change.linked);

    const meaning = (event) => (event.state === "confirmed" && is_sum(event) ? "Each link between these commits was measured in turns. None is surely a change alone; their sum is." :
        event.state === "confirmed" && event.changes.some((change) => change.exact) ? "An exact figure moved, which needs no confirmation." : MEANT[event.state]);

    const kind_of = (event) => (event.state === "refuted" ? "disturbed" : event.state === "accepted" ? "accepted" : event.kind);
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
        const {unit, judged} = figures[change.benchmark] || {};
        if (value === null || value === undefined) return "n/a";
        if ((!kernelwatch.described || judged === "value") && !change.exact) return kernelwatch.values.say(value, unit);
        if (change.exact) return text.exact(value);  // its unit stands with the name of the series
        return unit === "seconds" || change.linked ? text.time(value) : text.digits(value, 4) + (unit ? " " + unit : "");
    }


    // What measuring both commits again in turns said. Of what they confirmed, the size is that of the change.
    function verdict_text(verdict) {
        if (verdict.change === null) return verdict.word + (verdict.why ? ": " + verdict.why : "");
        if (verdict.word === "confirmed") return "confirmed in " + text.plural(verdict.turns, "turn") + (verdict.why ? ", " + verdict.why : "");
        return verdict.word + ": " + text.change(verdict.change, 2) + " (" + kernelwatch.interval({interval: [verdict.low, verdict.high]}) + ") in " +
            text.plural(verdict.turns, "turn") + (verdict.why ? ", " + verdict.why : "");
    }

    function commit_link(hash, all) {
        const at = all.at.get(hash);
        return at === undefined ? element("span", {class: "hash"}, text.hash(hash))
            : link(text.hash(hash), "commit", {hash: text.hash(hash)}, {class: "hash"});
    }

    function series_link(change, all) {
        const machine = place_of(change);
        const series = kernelwatch.values.of(all.events.series, change);
        if (series && series.file) return kernelwatch.values.link(series, kernelwatch.values.name(change));
        if (!kernelwatch.described) return kernelwatch.values.name(change);
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
        if (change.words !== event.words && !(change.verdict && change.words === change.verdict.word)) notes.push(kernelwatch.words(change));
        if (change.verdict) notes.push(verdict_text(change.verdict));
        notes.push(...change.limits);
        return [
            [series_link(change, all), notes.filter(Boolean).map((note) => element("div", {class: "quiet small"}, note)), kernelwatch.happenings.tests(change)],
            element("strong", {"data-change": change.id, "data-state": change.state, "data-size": change.size}, kernelwatch.size(change)),
            change.exact ? "exact" : kernelwatch.interval(change) || "n/a",
            value_text(change, change.before, all.site.figures),
            value_text(change, change.after, all.site.figures),
            value_text(change, change.now, all.site.figures),
            change.smallest === 0 ? "any" : text.percent(change.smallest, 2),
        ];
    }

    const COLUMNS = [
        {name: "series"}, {name: "change", number: true, title: "as the turns measured it that confirmed it, else as the series did"},
        {name: "95 % interval", number: true, title: "of the change"},
        {name: "before", number: true}, {name: "after", number: true}, {name: "now", number: true},
        {name: "detectable, history", number: true, title: "the smallest step that the history of this series would show"},
    ];

    // The history of an event's largest change, small. Nothing if its series cannot be found.
    async function trend(event, all) {
        if (!event.configured) return null;  // the histories are those of the branch
        const change = event.changes.find((each) => each.cell), series = kernelwatch.values.of(all.events.series, event.changes[0]);
        if (!all.site.described || !change && series && series.file) {
            const points = series ? await kernelwatch.values.points(series) : [];
            return points.length ? kernelwatch.sparkline(points.map((point, index) => [index, point.value]), subject_of(event.changes[0]) + " at " + text.plural(points.length, "commit")) : null;
        }
        if (!change) return null;
        try {
            const machine = await kernelwatch.machine(place_of(change));
            const found = (await machine.history(change.cell.split(" ")[0], all.at.get(change.to)))[change.cell];
            const cell = all.cells[change.cell], turns = cell ? kernelwatch.turns(machine.details, cell.op + " " + cell.device) : [];
            const points = found.at.map((at, index) => [index, found.s[index], kernelwatch.stretch(turns, at)]).filter((point) => point[1] !== null && point[1] !== undefined);
            if (new Set(points.map((point) => point[2])).size === points.length) return null;  // none compares with another
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
            subject_of(change), kernelwatch.size(change), change.exact ? "exact" : kernelwatch.interval(change) || "n/a", kernelwatch.words(change),
            value_text(change, change.before, all.site.figures), value_text(change, change.after, all.site.figures),
        ].map(cell).join(" | ") + " |");
        const words = kernelwatch.words(event), reason = kernelwatch.reason(event);
        return "**" + event.kind + "**" + (words ? " (" + words + ")" : "") + " of " + kernelwatch.size(event) + " at " + text.hash(event.last.hash) + ": " + event.last.subject + "\n\n" + (reason ? reason + "\n\n" : "") +
            "| series | change | 95 % interval | state | before | after |\n| --- | ---: | ---: | --- | ---: | ---: |\n" + lines.join("\n") + "\n" +
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
        if (event.open && all.site.described) about.push(" \u00b7 event ", element("span", {class: "hash", title: "its id, such as for the command accept"}, event.id));
        if (all.site.commit_url) about.push(" \u00b7 ", element("a", {href: all.site.commit_url + event.last.hash}, "diff"));
        const rows = event.changes.map((change) => change_row(event, change, all));
        const machines = [...new Set(event.changes.map(place_of))];
        const files = event.last.files.map(([, path]) => path);
        const words = environment ? "" : kernelwatch.words(event), reason = kernelwatch.reason(event);
        return element("article", {class: "card event " + kind_of(event) + (event.open ? " open" : ""), "data-commit": event.last.hash, "data-kind": kind_of(event), "data-event": event.id, "data-state": event.state},
            element("div", {class: "event-head"},
                element("div", {},
                    element("h3", {}, kernelwatch.event.link(title, event.id), words ? element("span", {class: "verdict " + event.state, title: meaning(event)}, words) : null),
                    reason ? element("p", {class: "small reason"}, reason) : null,
                    element("p", {class: "quiet small"}, about, environment || !files.length ? "" : " \u00b7 " + files.slice(0, 3).join(", ") + (files.length > 3 ? " and " + (files.length - 3) + " more files" : ""), all.site.machines.length > 1 ? " \u00b7 " + machines.join(", ") : "")),
                await trend(event, all)),
            table(COLUMNS, rows.slice(0, SHOWN), {"aria-label": "Changes at " + text.hash(event.last.hash)}),
            rows.length > SHOWN ? element("details", {}, element("summary", {}, (rows.length - SHOWN) + " more series"),
                table(COLUMNS, rows.slice(SHOWN), {"aria-label": "More changes at " + text.hash(event.last.hash)})) : null,
            environment ? null : await causes(event, all), environment ? null : kernelwatch.copy("Copy as Markdown", markdown(event, all)));
    }

    kernelwatch.told = {COLUMNS, change_row, commit_link, is_sum, kind_of, markdown, meaning, series_link, subject_of, verdict_text};  // for the page of an event

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
        const machine = parameters.get("machine"), state = parameters.get("state"), op = parameters.get("op");
        return events.filter((event) => {
            const said = [event.last.subject, event.last.hash, event.last.author, event.why, ...event.changes.map(subject_of)].join(" ").toLowerCase();
            return (!machine || event.changes.some((change) => place_of(change) === machine)) && (!state || event.state === state) &&
                (!op || event.changes.some((change) => change.rung.startsWith(op + "/"))) && words.every((word) => said.includes(word));
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

    const TONES = {came: "", larger: "bad", smaller: "warn", missing: "warn", open: "quiet", unreadable: "warn"};

    // What commits announced, and what came of it.
    function expected(all) {
        const rows = all.events.expected.toReversed().map((each) => [
            [element("b", {}, each.text), element("div", {class: "quiet small"}, each.author)], commit_link(each.at, all),
            element("span", {class: TONES[each.state], "data-expected": each.state}, each.words)]);
        return !rows.length ? "" : element("section", {}, element("h2", {}, "Expected changes"),
            element("p", {class: "quiet small"}, "What commits announced with the trailer Perf-Expected, the newest first."),
            table([{name: "expected"}, {name: "commit"}, {name: "what came"}], rows, {"aria-label": "Expected changes"}));
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

    kernelwatch.view("regressions", async function (main, parameters) {
        const common = await kernelwatch.common();
        const machines = kernelwatch.links.machines(common.site, common.events).names;
        const all = {...common, at: new Map(Object.entries(common.commits).map(([at, commit]) => [commit.hash, Number(at)]))};
        if (all.site.described && !machines.length && !all.events.evidence.length) await kernelwatch.machine();  // which says what to do
        const set = (name) => (value) => kernelwatch.go("regressions", {...Object.fromEntries(parameters), [name]: value});
        const controls = element("div", {class: "controls"},
            machines.length > 1 ? kernelwatch.choice("machine", [["", "all"], ...machines], parameters.get("machine") || "", set("machine")) : null,
            all.site.described ? kernelwatch.choice("op", [["", "all"], ...all.site.ops.map((op) => op.name)], parameters.get("op") || "", set("op")) : null,
            all.site.described ? kernelwatch.choice("state", [["", "all"], ...Object.keys(MEANT)], parameters.get("state") || "", set("state")) : null,
            element("label", {}, "words ", element("input", {type: "search", value: parameters.get("q") || "",
                onchange: (event) => set("q")(event.target.value)})));
        const events = chosen(all.events.events, parameters);
        main.append(element("h1", {}, "Regressions"), kernelwatch.damaged(all.events), ...[kernelwatch.unread(all.events), kernelwatch.retired(all.events)].filter(Boolean), ...scope(all), controls);
        for (const [kind, heading, explained] of kinds_of(all.site)) {
            const own = events.filter((event) => kind_of(event) === kind);
            if ((kind === "accepted" || kind === "change" && all.site.described) && !own.length) continue;
            const section = element("section", {class: kind}, element("h2", {}, heading + " (" + own.length + ")"),
                element("p", {class: "quiet small"}, explained));
            section.append(...(own.length ? await Promise.all(own.map((event) => box(event, all)))
                : [element("p", {}, events.length === all.events.events.length ? "None." : "None with these filters.")]));
            if (kind === "environment") section.append(...[turns(all) || []].flat());
            main.append(section);
        }
        main.append(expected(all), judged(all));
    });
}
