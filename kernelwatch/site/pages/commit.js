// A commit: what it changed, on which machines it was measured, and what moved there.
"use strict";

{
    const {element, text, link, table} = kernelwatch;
    const LETTERS = {A: "added", M: "changed", D: "deleted", T: "type changed"};
    const ROWS = 60;

    // The commit that the address names, by position or hash; the newest measured one by default.
    function named(parameters, commits, site) {
        const hash = parameters.get("hash") || "";
        if (hash) {
            const found = Object.keys(commits).filter((at) => commits[at].hash.startsWith(hash.toLowerCase()));
            if (found.length > 1) throw new Error("several commits begin with " + hash);
            if (!found.length) throw new Error("no measured or linked commit begins with " + hash);
            return Number(found[0]);
        }
        const at = parameters.get("at") || (site.machines.length ? String(site.machines[0].newest) : "");
        if (!(at in commits)) throw new Error("the commit at position " + at + " of the branch was neither measured nor linked");
        return Number(at);
    }

    // A table whose rows beyond the first ones can be unfolded.
    function long_table(columns, rows, properties) {
        if (rows.length <= ROWS) return table(columns, rows, properties);
        return [table(columns, rows.slice(0, ROWS), properties),
            element("details", {}, element("summary", {}, text.plural(rows.length - ROWS, "more row")), table(columns, rows.slice(ROWS), properties))];
    }

    function change_item({event, change, at}, own, common, machine) {
        const sign = event.kind === "environment" ? "\u25c7" : kernelwatch.arrow(change.size);
        const figure = change.exact ? kernelwatch.figure_name(change.benchmark) + " (" + Object.values(change.params).map((value) => value.replace(/^'|'$/g, "")).join(", ") + ")" : change.cell;
        const interval = kernelwatch.interval(change), reason = kernelwatch.reason(change);
        return element("li", {"data-kind": event.kind, "data-cell": change.cell, "data-change": change.size, "data-id": change.id, "data-state": change.state},
            element("b", {class: kernelwatch.tone(event.kind, change)}, sign + " " + kernelwatch.size(change)), interval ? " (" + interval + ")" : "", ", " + (event.kind === "environment" ? "" : event.kind + ", ") + kernelwatch.words(change) + ": ",
            change.cell in common.cells ? link(figure, "history", {cell: change.cell, machine: machine.name}) : figure,
            at === own ? "" : [" (", kernelwatch.event.link("its event", change.id), ")"], at === own ? "" : at > own ? ", seen at " + text.hash(change.to) : "", reason ? " (" + reason + ")" : "", event.why ? ". " + event.why[0].toUpperCase() + event.why.slice(1) + "." : "");
    }

    // What moved at a commit on a machine, against the measured commit before.
    async function measured(main, summary, at, common) {
        const machine = await kernelwatch.machine(summary.name);
        const {commits} = common, known = machine.details.commits;
        const section = element("section", {"data-machine": summary.name}, element("h2", {}, kernelwatch.device_name(summary)), element("p", {class: "quiet"}, summary.name));
        main.append(section);
        const name = summary.name;
        const changes = kernelwatch.changes(common.events, commits, name).filter((found) => found.at === at);
        const unmeasured_cause = kernelwatch.changes(common.events, commits, name).filter((found) => found.from < at && found.at > at);
        const previous = known[known.indexOf(at) - 1];
        const is_linked = await kernelwatch.links.of_commit(section, name, at, common);
        if (is_linked && changes.length && !known.includes(at)) section.append(element("h3", {}, "Events"), element("ul", {class: "happened"}, changes.map((each) => change_item(each, at, common, summary))));
        if (!known.includes(at)) {
            const next = known.find((each) => each > at);
            section.append(element("p", {}, (is_linked ? "No full run measured it on this machine. " : "It was not measured on this machine. "),
                next === undefined ? ["The newest commit that was is ", link(text.hash(commits[known[known.length - 1]].hash), "commit", {hash: text.hash(commits[known[known.length - 1]].hash)}, {class: "hash"}), "."]
                    : ["The next one that was is ", link(text.hash(commits[next].hash), "commit", {hash: text.hash(commits[next].hash)}, {class: "hash"}), "."]),
                unmeasured_cause.length ? [element("p", {}, "It is one of the commits that may have caused:"), element("ul", {class: "happened"}, unmeasured_cause.map((each) => change_item(each, at, common, summary)))] : "");
            return;
        }
        const own = await machine.load("at/" + at), before = previous === undefined ? null : await machine.load("at/" + previous);
        const timed = Object.keys(own.cells).filter((key) => own.cells[key].s);
        const failed = Object.keys(own.cells).filter((key) => own.cells[key].state === "failed");
        const ops = [...new Set(timed.map((key) => common.cells[key].op))];
        const dates = Object.values(own.facts).map((facts) => facts.measured_at).filter(Boolean).sort();
        section.append(element("p", {}, text.plural(timed.length, "cell") + " timed" + (dates.length ? " on " + dates[dates.length - 1].slice(0, 10) : "") + (failed.length ? ", " + failed.length + " failed" : "") + ". Ladders at this commit: ",
            ops.flatMap((op, index) => [index ? ", " : "", link(op, "ladder", {op, machine: name, commit: text.hash(commits[at].hash)})]), "."));
        if (changes.length) section.append(element("h3", {}, "Events"), element("ul", {class: "happened"}, changes.map((each) => change_item(each, at, common, summary))));
        else section.append(element("p", {}, "No event begins at this commit."));
        const suites = kernelwatch.failures(common.events, name, commits[at].hash);
        if (suites.length) section.append(element("h3", {}, "Failed suites"), kernelwatch.failures_table(suites));
        if (failed.length) {
            section.append(element("h3", {}, "Failed"), table([{name: "Cell"}, {name: "Reason"}], failed.map((key) => [link(key, "history", {cell: key, machine: name}), own.cells[key].reason || "no reason is recorded"]), {"aria-label": "Failed cells"}));
        }
        if (!before) {
            section.append(element("p", {}, "It is the first commit measured here, so there is nothing to compare it with."));
            return;
        }
        await compared(section, {machine, name, at, previous, own, before, timed, changes}, common);
        await exact_changes(section, machine, at, common);
    }

    async function compared(section, {machine, name, at, previous, own, before, timed, changes}, common) {
        const {commits} = common;
        const both = timed.filter((key) => (before.cells[key] || {}).s);
        const sizes = new Map(changes.filter(({event, change, from}) => change.cell && from === previous && event.kind !== "environment" && change.state !== "refuted").map(({change}) => [change.cell, change.size]));
        const judged = both.filter((key) => own.cells[key].detectable && before.cells[key].detectable);
        const moved = judged.map((key) => {
            const [fresh, old] = [own.cells[key], before.cells[key]], event = sizes.get(key);
            const change = event === undefined ? fresh.s / old.s - 1 : event;  // an event has one size on all pages
            return {key, fresh, old, change, event: event !== undefined, detectable: Math.max(fresh.detectable, old.detectable)};
        }).filter((each) => each.event || Math.abs(each.change) > each.detectable).sort((a, b) => Math.abs(b.change) - Math.abs(a.change));
        const between = at - previous - 1;
        const turns = [...new Set(both.map((key) => common.cells[key].op + " " + common.cells[key].device))].flatMap((group) => kernelwatch.turns(machine.details, group).filter((turn) => turn.at === at).map((turn) => ({group, ...turn})));
        section.append(element("h3", {}, "Cells that moved"),
            element("p", {}, "Against ", link(text.hash(commits[previous].hash), "commit", {hash: text.hash(commits[previous].hash)}, {class: "hash"}), " (" + text.date(commits[previous].date) + "), the commit measured before"
                + (between ? "; " + text.plural(between, "commit") + " between them " + (between === 1 ? "was" : "were") + " not measured" : "") + ": ",
            element("b", {}, moved.length + " of " + text.plural(judged.length, "cell")), " moved by more than the minimum detectable change of the two runs, or have an event. ",
            link("Both ladders side by side", "ladder", {machine: name, commit: text.hash(commits[at].hash), with: text.hash(commits[previous].hash)}), "."),
            element("p", {class: "quiet small"}, "The minimum detectable change follows from the spread between the processes of a run. It does not know what else differs from run to run: events do, which judge the whole history. A cell with an event has the size of the event, others the change between the two runs."
                + (both.length > judged.length ? " " + text.plural(both.length - judged.length, "cell") + " had too few processes to say." : "")
                + (timed.length > both.length ? " " + text.plural(timed.length - both.length, "cell") + " " + (timed.length - both.length === 1 ? "was" : "were") + " not timed at the commit before." : "")));
        for (const turn of turns) {
            const keys = both.filter((key) => common.cells[key].op + " " + common.cells[key].device === turn.group);
            section.append(element("p", {class: "warn"}, "\u25c6 The conditions of " + kernelwatch.group_name(turn.group) + " changed between the two: " + turn.why.join(", ") + ". " + await kernelwatch.links.across(name, common.events, keys, previous, at)));
        }
        if (!moved.length) return;
        const interval = (cell) => {
            const digits = text.significant(cell.s, cell.low, cell.high);
            return [element("span", {}, text.time(cell.s, digits)), cell.low === undefined ? "" : element("div", {class: "quiet small"}, text.bounds(cell.low, cell.high, digits + 1))];
        };
        section.append(long_table([{name: "Cell"}, {name: "Change of time", number: true}, {name: "Before", number: true, title: "median and its 95 % interval"},
            {name: "After", number: true, title: "median and its 95 % interval"}, {name: "Detectable, two runs", number: true, title: "minimum detectable change"}, {name: "Limits met"}],
        moved.map(({key, fresh, old, change, event, detectable}) => [link(key, "history", {cell: key, machine: name}),
            element("span", {class: change > 0 ? "bad" : "good", "data-key": key, "data-change": change}, kernelwatch.arrow(change) + " " + text.change(change, 2) + (change > 0 ? " slower" : " faster") + (event ? ", event" : "")),
            interval(old), interval(fresh), text.percent(detectable, 2), (fresh.limits || []).join(", ")]), {"aria-label": "Cells that moved on " + name}));
    }

    // Exact figures that changed at a commit: any difference counts.
    async function exact_changes(section, machine, at, common) {
        const {changed, first} = await kernelwatch.exact.changed_at(machine, at);
        section.append(element("h3", {}, "Exact figures that changed"));
        const count = Object.keys(machine.details.exact).length;
        if (!count) section.append(element("p", {}, "No exact figures are recorded on this machine."));
        else if (!changed.length) section.append(element("p", {}, "None."));
        if (first) section.append(element("p", {class: "quiet"}, text.plural(first, "exact figure") + " " + (first === 1 ? "is" : "are") + " recorded for the first time here."));
        if (!changed.length) return;
        section.append(long_table([{name: "Rung"}, {name: "Figure"}, {name: "Where"}, {name: "Before", number: true}, {name: "After", number: true}, {name: "Unit"}],
            changed.map((each) => {
                const {unit, higher_is_better: better} = common.site.figures[each.benchmark] || {};
                const rose = each.after > each.before, tone = each.why || better === null || better === undefined ? "" : rose === better ? "good" : "bad";
                return [link(each.op + "/" + each.rung, "rung", {op: each.op, rung: each.rung, machine: machine.summary.name}), kernelwatch.figure_name(each.benchmark), each.place, text.exact(each.before),
                    element("span", {class: tone, "data-benchmark": each.benchmark, "data-place": each.place, "data-rung": each.rung, "data-value": each.after}, (rose ? "\u25b2 " : "\u25bc ") + text.exact(each.after) + (tone ? (tone === "good" ? " better" : " worse") : ""), each.why ? element("div", {class: "small quiet", "data-why": each.why}, "\u25c6 " + each.why + ", no commit is to blame") : ""), unit || ""];
            }), {"aria-label": "Exact figures that changed on " + machine.summary.name}));
    }

    // The files of a commit, with the lines that were added and removed.
    function files_of(files) {
        const counted = (added, removed) => (added === null ? "binary" : [element("span", {class: "good"}, "+" + added), " ", element("span", {class: "bad"}, "\u2212" + removed)]);
        const listed = files.map(([letter, path, added, removed]) => element("li", {}, element("span", {class: "quiet letter", title: LETTERS[letter] || letter}, LETTERS[letter] || letter), " ",
            element("code", {}, path), " ", element("span", {class: "small lines", "data-path": path, "data-added": added, "data-removed": removed}, counted(added, removed))));
        const sum = (index) => d3.sum(files, (file) => file[index]);
        return element("details", {class: "files", open: files.length <= 12}, element("summary", {}, files.length
            ? text.plural(files.length, "file") + " changed, " + text.plural(sum(2), "line") + " added, " + sum(3) + " removed" : "No file changed (git lists none for a merge)"), element("ul", {}, listed));
    }

    // What a commit with an event changed of the files on which kernels depend.
    kernelwatch.diff_of = async function (commit, site) {
        const {whole, lines, left_out} = await kernelwatch.load("diffs/" + commit.hash);
        const command = "git show --first-parent -m " + commit.hash;  // of a merge, what it brought to its branch
        if (!lines) return element("section", {}, element("p", {}, "The repository from which these pages were made lacks its files."));
        const where = whole ? "" : " on which a kernel depends";
        const kind = (line) => (/^(diff|index|---|\+\+\+|new file|deleted file|old mode|new mode)/.test(line) ? "quiet" : line.startsWith("+") ? "good" : line.startsWith("-") ? "bad" : line.startsWith("@@") ? "quiet" : null);
        const rest = element("p", {class: "small"}, left_out ? text.plural(left_out, "more line") + (whole ? "" : " and files on which no kernel depends") + ": " : "All of it: ", element("code", {}, command), " ", kernelwatch.copy("Copy", command),
            site.commit_url ? [" or ", element("a", {href: site.commit_url + commit.hash, rel: "noreferrer"}, "the page of its host")] : null);
        if (!lines.length) return element("section", {}, element("p", {}, "It changed nothing" + where + "."), rest);
        return element("section", {}, element("details", {class: "diff", open: lines.length <= 120}, element("summary", {}, "What it changed" + where + ", " + text.plural(lines.length, "line")),
            element("pre", {tabindex: 0, role: "region", "aria-label": "Diff" + where}, lines.map((line) => element("span", {class: kind(line)}, line + "\n")))), rest);
    };

    kernelwatch.view("commit", async (main, parameters) => {
        const common = await kernelwatch.common();
        const {site, commits} = common;
        const at = named(parameters, commits, site);
        const commit = commits[at];
        const all = Object.keys(commits).map(Number).sort((a, b) => a - b), index = all.indexOf(at);
        const step = (other, words) => (other === undefined ? null : link(words, "commit", {hash: text.hash(commits[other].hash)}, {title: commits[other].subject}));
        main.append(
            element("h1", {}, commit.subject),
            element("p", {class: "quiet"}, site.commit_url ? element("a", {href: site.commit_url + commit.hash, class: "hash", rel: "noreferrer"}, commit.hash) : element("span", {class: "hash wrap"}, commit.hash),
                " by " + commit.author + ", " + text.date(commit.date) + ". " + (at === site.head ? "The newest" : "Number " + (at + 1)) + " of " + (site.head + 1) + " commits on the branch " + site.branch + "."),
            element("p", {class: "steps"}, step(all[index - 1], "\u2190 older measured commit"), step(all[index + 1], all[index + 1] === site.head && !site.machines.some((each) => each.newest === site.head) ? "newest commit, not measured \u2192" : "newer measured commit \u2192")));
        main.append(kernelwatch.event.list(common.events.events, commit.hash) || "", files_of((await kernelwatch.load("files/" + Math.floor(at / site.block)))[at]));
        if (common.events.events.some((event) => event.last.hash === commit.hash && event.kind !== "environment")) main.append(await kernelwatch.diff_of(commit, site));
        if (!site.described) await kernelwatch.values.measured(main, at, common);
        else for (const summary of site.machines) await measured(main, summary, at, common);
        for (const reach of kernelwatch.links.alone(site, common.events)) {
            const section = element("section", {"data-machine": reach.machine}, element("h2", {}, reach.machine));
            if (await kernelwatch.links.of_commit(section, reach.machine, at, common)) main.append(section);
        }
    });
}
