// The data files (docs/data.md), and questions that several pages ask of them.
"use strict";

{
    const loaded = new Map();

    // A data file, by its name without ".json". It is loaded as a script, which browsers allow from file:// as well.
    kernelwatch.load = function (name) {
        if (!loaded.has(name)) {
            loaded.set(name, new Promise((resolve, reject) => {
                const script = document.createElement("script");
                script.onload = () => resolve(JSON.parse(script.json));
                script.onerror = () => {
                    loaded.delete(name);
                    reject(new Error("the file data/" + name + ".json.js cannot be read"));
                };
                script.src = "data/" + name.split("/").map(encodeURIComponent).join("/") + ".json.js";
                document.head.append(script);
                script.remove();
            }));
        }
        return loaded.get(name);
    };

    // What most pages need: {site, commits, cells, events}; `events` has the judged series as well.
    kernelwatch.common = async function () {
        const [site, commits, cells, events, series] = await Promise.all(["site", "commits", "cells", "events", "series"].map(kernelwatch.load));
        const every = series.series.map(({place, level, ...each}) => ({...each, place: series.places[place], since: series.levels[level][0], until: series.levels[level][1]}));
        return {site, commits, cells, events: {...events, series: every}};
    };

    // Columns of a cell's history from several blocks, the oldest first, as one; `limits` and `failed` are by index.
    function joined(blocks) {
        const found = {}, count = blocks.map((block) => block.at.length).reduce((sum, each) => sum + each, 0);
        let start = 0;
        for (const block of blocks) {
            for (const [name, values] of Object.entries(block)) {
                if (Array.isArray(values)) {
                    found[name] = found[name] || Array.from({length: count}, () => null);
                    values.forEach((value, index) => { found[name][start + index] = value; });
                } else {
                    found[name] = found[name] || {};
                    for (const [index, value] of Object.entries(values)) found[name][start + Number(index)] = value;
                }
            }
            start += block.at.length;
        }
        return found;
    }

    // The number of the block of commits that a file of a history holds.
    kernelwatch.block_of = (name) => Number(name.split("/").pop());

    // The machine that the address names, by default the one with the newest commit: {summary, details, load, history,
    // recent, states}. `history(rung, at)`: the columns of each cell of a rung ("op/rung"); with a position `at`, those of
    // the commits around it only. `recent(rung)`: those of its newest commits, up to twice `block`. `states()`: of the
    // machine at each commit.
    kernelwatch.machine = async function (name) {
        const {machines, block} = await kernelwatch.load("site");
        if (!machines.length) throw new Error("no full run is recorded, and this page shows its figures: measure a commit (the command bench), then publish");
        const summary = name ? machines.find((machine) => machine.name === name) : machines[0];
        if (!summary) throw new Error("there is no machine " + name + "; there are " + machines.map((each) => each.name).join(", "));
        const load = (file) => kernelwatch.load(summary.folder + "/" + file);
        const details = await load("machine");
        const columns_of = async function (names) {
            const cells = new Map();
            for (const part of await Promise.all(names.map(load))) {
                for (const [key, columns] of Object.entries(part.cells)) cells.set(key, [...(cells.get(key) || []), columns]);
            }
            return Object.fromEntries([...cells].map(([key, blocks]) => [key, blocks.length > 1 ? joined(blocks) : blocks[0]]));
        };
        const files = (rung) => details.history[rung] || [];
        const history = (rung, at) => columns_of(files(rung).filter((name) => at === undefined || Math.abs(kernelwatch.block_of(name) - Math.floor(at / block)) <= 1));
        const recent = (rung) => columns_of(files(rung).slice(-2));
        const states = async () => (await Promise.all(details.states.map(load))).flat();
        return {summary, details, load, history, recent, states};
    };

    // A machine's device in words: the GPU if it has one.
    kernelwatch.device_name = (machine) => machine.gpu || machine.cpu || machine.name;

    // The work of a cell: operations if it computes, else the compulsory bytes; null if it is not known.
    kernelwatch.work = (cell) => cell.flops || cell.bytes;

    // Operations or bytes per second of a cell that takes so many seconds.
    kernelwatch.rate = (cell, seconds) => (kernelwatch.work(cell) && seconds ? kernelwatch.work(cell) / seconds : null);

    // The key of a cell.
    kernelwatch.key = (op, rung, type, shape, cache) => op + "/" + rung + " " + type + " " + shape + " " + cache;

    // The op whose suite has this name ("VectorAdd", "VectorAddMix"), "" if there is none. It needs data/site.
    kernelwatch.op_of_suite = function (suite) {
        const plain = suite.replace(/Mix$/, "").toLowerCase();
        return kernelwatch.ops.find((op) => op.replaceAll("_", "") === plain) || "";
    };

    // The value of an exact figure at a commit: [commit since which it holds, value], or null. `run`: [[commit, value], ...].
    kernelwatch.value_at = function (run, commit) {
        let found = null;
        for (const entry of run || []) if (entry[0] <= commit) found = entry;
        return found;
    };

    // The commit of a machine that an address names, by its position or by the beginning of its hash; the newest one by
    // default.
    kernelwatch.commit_at = function (machine, commits, name) {
        const known = machine.details.commits;
        if (!name) return known[known.length - 1];
        const found = known.find((at) => String(at) === name) ?? known.find((at) => commits[at].hash.startsWith(name));
        if (found === undefined) throw new Error("the commit " + name + " was not measured on " + machine.summary.name);
        return found;
    };

    // A choice among a machine's commits, the newest one first. `none`: the text of an entry for no commit, if there is one.
    kernelwatch.commit_choice = function (label, machine, commits, value, onchange, none) {
        const options = machine.details.commits.toReversed().map((at) => {
            const {hash, date, subject} = commits[at];
            return [kernelwatch.text.hash(hash), kernelwatch.text.hash(hash) + " " + kernelwatch.text.date(date) + " " + subject];
        });
        return kernelwatch.choice(label, none ? [["", none], ...options] : options, value in commits ? kernelwatch.text.hash(commits[value].hash) : "", onchange);
    };

    // A link to a commit: its hash, date and subject.
    kernelwatch.commit_link = function (at, commits) {
        const {hash, date, subject} = commits[at];
        return kernelwatch.element("span", {},
            kernelwatch.link(kernelwatch.text.hash(hash), "commit", {hash: kernelwatch.text.hash(hash)}, {class: "hash"}),
            " (" + kernelwatch.text.date(date) + ", " + subject + ")");
    };

    // The source of a rung at a commit: a link if the repository's host is known, else its path. `words`: less than the path.
    kernelwatch.source_link = function (site, commit, path, words = path) {
        const {element} = kernelwatch;
        return element("code", {title: path}, site.source_url ? element("a", {href: site.source_url + commit.hash + "/" + path}, words) : words);
    };

    // Positions of commits by their hash.
    kernelwatch.positions = (commits) => new Map(Object.entries(commits).map(([at, commit]) => [commit.hash, Number(at)]));

    // --- how an event or a change stands: as published, so that every page says the same (docs/data.md) --------------

    // Its state in words. A project without a description measures nothing again, so new and confirmed say nothing there.
    kernelwatch.words = ({state, words, decision}) => (kernelwatch.described || decision || !["new", "confirmed"].includes(state) ? words : "");

    kernelwatch.size = ({size}) => kernelwatch.text.change(size, 2);

    // The interval of its size; "" if it is not known.
    kernelwatch.interval = ({interval: [low, high]}) => (low === null || high === null ? "" : kernelwatch.text.change(low, 2) + " to " + kernelwatch.text.change(high, 2));

    // Its color: a regression is bad while it is open. `kind`: of the event.
    kernelwatch.tone = (kind, {state, open}) => (open ? "bad" : kind === "improvement" && !["refuted", "undone"].includes(state) ? "good" : "");

    // The change that stands for an event on a machine: the largest of time, if there is one.
    kernelwatch.largest = function (event, machine) {
        const own = event.changes.filter((change) => kernelwatch.is_of(change.place, machine));
        return own.find((change) => change.open && !change.exact) || own.find((change) => change.open) || own.find((change) => !change.exact) || own[0];
    };

    // That the decisions cannot be read, if so.
    kernelwatch.damaged = ({damaged}) => (damaged ? kernelwatch.element("p", {class: "warn", role: "alert"}, damaged + ". Until it is mended, no regression counts as accepted.") : "");

    // The files of results that cannot be read; null if there are none.
    kernelwatch.unread = ({unread}) => (unread.length ? kernelwatch.element("div", {class: "warn", role: "alert", "data-unread": unread.length}, "! " +
        kernelwatch.text.plural(unread.length, "file") + " of the results cannot be read. What is in there is not shown and not judged:",
    kernelwatch.element("ul", {class: "small"}, unread.slice(0, 5).map((words) => kernelwatch.element("li", {}, words)), unread.length > 5 ? kernelwatch.element("li", {}, "and " + (unread.length - 5) + " more") : "")) : null);

    // What was recorded and is not described any more, so that no page has its history; null if there is nothing.
    kernelwatch.retired = function ({retired = []}) {
        if (!retired.length) return null;
        const {element, text} = kernelwatch, slower = retired.filter((each) => each.change !== null);
        const say = ({name, hash, change, changed_at: at}) => element("li", {"data-retired": name}, element("b", {}, name), ", last recorded at " + text.hash(hash) + (change === null ? "" : ", " + text.change(change, 2) + " slower since " + text.hash(at) + ", as turns confirmed"));
        return element("details", {class: "small retired", open: slower.length > 0}, element("summary", {class: slower.length ? "warn" : "quiet"}, "No longer described, and on no other page: " + text.plural(retired.length, "name")), element("ul", {}, [...slower, ...retired.filter((each) => each.change === null)].map(say)));
    };

    // Who accepted a regression, and why; "" if nobody did. `brief`: without who, which `words` says.
    kernelwatch.reason = ({decision}, brief) => (!decision ? "" : decision.kind === "expected" ? decision.reason : (brief ? "" : decision.by.replace(/ <[^<>]*>$/, "") + ", ") + decision.at.slice(0, 10) + ": " + decision.reason);

    // What figures with changes of the conditions between them do not share is not joined: the number of the stretch to
    // which each position belongs.
    kernelwatch.stretch = (turns, at) => turns.filter((turn) => turn.at <= at).length;

    // The changes of the events that happened on a machine: [{event, change, at, from}], the oldest first. `at`, `from`:
    // positions of the commit that shows the change and of the measured commit before it; undefined if not published.
    kernelwatch.changes = function (events, commits, machine) {
        const positions = kernelwatch.positions(commits);
        return events.events.flatMap((event) => event.changes.map((change) => (
            {event, change, at: positions.get(change.to), from: positions.get(change.from)})))
            .filter(({change}) => kernelwatch.is_of(change.place, machine))
            .sort((a, b) => (a.at ?? -1) - (b.at ?? -1));
    };

    // The suites that failed as a whole on a machine: [{commit, suite, reason, log, series}]. `hash`: at this commit only.
    kernelwatch.failures = (events, machine, hash) => events.failures.filter((told) => kernelwatch.is_of(told, machine) && (!hash || told.commit === hash));

    // The suites that failed as a whole, in a table.
    kernelwatch.failures_table = (failures) => kernelwatch.table([{name: "suite"}, {name: "why"}, {name: "series", number: true}, {name: "whole output"}],
        failures.map((told) => [told.suite, told.reason, String(told.series), told.log ? kernelwatch.element("code", {}, told.log) : "not kept"]), {"aria-label": "Failed suites"});

    // What the judged series of a machine say of its newest commit on a branch, over its environments: {series, judged,
    // unjudged: [[why, series], ...]}. `branch`: by default the configured ones.
    kernelwatch.evidence = function (events, machine, branch) {
        const wanted = branch === undefined ? events.lines.filter((line) => line.configured).map((line) => line.name) : [branch];
        const own = events.evidence.filter((each) => kernelwatch.is_of(each, machine) && wanted.includes(each.branch));
        const why = d3.rollup(own.flatMap((each) => each.unjudged), (each) => d3.sum(each, ([, count]) => count), ([words]) => words);
        return {series: d3.sum(own, (each) => each.series), judged: d3.sum(own, (each) => each.judged), unjudged: [...why].sort((a, b) => b[1] - a[1])};
    };

    // Why series are not judged, in words: "40 have one commit under the newest conditions, ...".
    kernelwatch.unjudged_words = ({unjudged}) => unjudged.map(([why, count]) => kernelwatch.text.plural(count, "series", "series") + ": " + why).join("; ");

    // Whether the place of a judged series is a machine, one of whose environments may have a longer name.
    kernelwatch.is_of = (place, machine) => place.machine === machine || machine.startsWith(place.machine + " (");

    // What differs between two sets of conditions, in words: ["driver 550.1 → 580.2", ...]. What one does not know is no
    // difference if older records lack it.
    kernelwatch.differences = function (before, after) {
        const words = {gpu: "GPU", nvml_uuid_sha256: "another GPU of the same model", nvml_driver: "driver", cpu: "CPU",
            cores: "cores", compiler: "compiler", machine: "another machine of the same name", harness: "harness version",
            emulator: "emulator version"};
        const say = (value) => (value === null || value === undefined ? "none" : Array.isArray(value) ? value.length : value);
        const found = [];
        const names = [...new Set([...Object.keys(before), ...Object.keys(after)])];
        for (const name of names.filter((name) => name !== "packages")) {
            if (JSON.stringify(before[name]) === JSON.stringify(after[name])) continue;
            if ((name === "machine" || name.startsWith("import ")) && !(name in before && name in after)) continue;
            if (name === "nvml_uuid_sha256" && before.gpu !== after.gpu) continue;
            if (name === "nvml_uuid_sha256" || name === "machine") found.push(words[name]);
            else found.push((words[name] || name) + " " + say(before[name]) + " \u2192 " + say(after[name]));
        }
        const [old, fresh] = [before.packages || {}, after.packages || {}];
        for (const name of [...new Set([...Object.keys(old), ...Object.keys(fresh)])].sort()) {
            if (old[name] !== fresh[name]) found.push(name + " " + say(old[name]) + " \u2192 " + say(fresh[name]));
        }
        return found;
    };

    // Where the conditions of a group ("transpose gpu") changed: [{at, why}], the oldest first.
    kernelwatch.turns = function (details, group) {
        const runs = details.turns[group] || [];
        return runs.slice(1).map(([at, known], index) => ({at, why: kernelwatch.differences(runs[index][1], known)}))
            .filter((turn) => turn.why.length);
    };

    // A group in words: "transpose GPU", "transpose, counted".
    kernelwatch.group_name = function (group) {
        const [op, kind] = group.split(" ");
        return op + ({gpu: " GPU", cpu: " CPU", streamed: " GPU, operands from the host", several: " on several GPUs", access: ", counted accesses", static: ", compiled"}[kind] || " " + kind);
    };

    // The name of an exact figure in words: "static.Transpose.track_spill_bytes" is "spill bytes".
    kernelwatch.figure_name = (benchmark) => benchmark.split(".").pop().replace(/^track_/, "").replace(/_/g, " ");
}
