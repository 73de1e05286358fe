// Links: how each changed launch compares with the one before it, on whatever GPU measured both.
"use strict";

{
    const {element, text, link} = kernelwatch;
    const links = (kernelwatch.links = {});
    const WORDS = {worse: "slower", better: "faster", "no change": "no change", "cannot tell": "not decided", "full runs": "as full runs tell"};

    // Whether a session measured links: full runs of one GPU join what no link joins.
    const is_measured = (session) => session.linked && session.kind !== "full runs";

    // How far the links of a machine reach along a branch (docs/data.md), by default the first one; undefined if there are none.
    links.reach = (events, machine, branch = events.lines[0].name) => events.links.find((each) => each.branch === branch && kernelwatch.is_of(each, machine));

    links.ALONE = "Links only: no full run was recorded on this machine, so it has no absolute figures.";

    // The reach of machines that have links and no full run.
    links.alone = (site, events) => events.links.filter((each) => each.branch === events.lines[0].name && !site.machines.some((machine) => kernelwatch.is_of(each, machine.name)));

    // The names of all machines, those with links alone last, and the reach of the machine of that name (by default the
    // first) if it has links alone.
    links.machines = function (site, events, name) {
        const alone = links.alone(site, events), names = [...site.machines.map((each) => each.name), ...alone.map((each) => each.machine)];
        return {names, alone: alone.find((each) => each.machine === (name || names[0]))};
    };

    // What is linked: launches; of a project without a description asv's benchmarks, all of which are measured.
    const changed = (count) => kernelwatch.described ? text.plural(count, "changed launch", "changed launches") : text.plural(count, "benchmark");

    // What speaks against "every changed launch was measured", in words. `brief`: without the reasons.
    links.gaps = function (reach, brief) {
        const found = reach.missing.length ? [text.plural(reach.missing.length, "commit") + " between them " + (reach.missing.length === 1 ? "was" : "were") + " not asked"] : [];
        if (reach.later) found.push(text.plural(reach.later, "commit") + " after them " + (reach.later === 1 ? "was" : "were") + " not asked");
        if (reach.undecided) found.push(changed(reach.undecided) + " not decided");
        if (reach.gone.length) found.push((kernelwatch.described ? text.plural(reach.gone.length, "launch", "launches") : text.plural(reach.gone.length, "benchmark")) +
            " gone" + (brief ? "" : ": " + reach.gone.slice(0, 3).map((each) => each.cell + " since " + text.hash(each.hash)).join(", ")));
        if (!reach.compared) found.push("nothing could be compared");
        // Of those that failed, the pages of their commits say why.
        const kind = ([why]) => (why.startsWith("failed") ? " failed" : why.startsWith("repaired") ? " mended what had failed before" : brief ? " not measured" : " not measured: " + why);
        return [...found, ...[...d3.rollup(reach.unjudged, (all) => d3.sum(all, ([, count]) => count), kind)].map(([words, count]) => changed(count) + words)];
    };

    const reached = (reach) => text.plural(reach.asked, "commit") + " asked from " + text.hash(reach.first) + " to " + text.hash(reach.newest) + "; " +
        (kernelwatch.described ? text.plural(reach.changing, "commit") + " changed launches: " : "") + text.plural(reach.links, "link") + " on " + text.plural(reach.gpus.length, kernelwatch.described ? "GPU" : "device");

    // The reach in a sentence, without the reasons, and with them as a list.
    links.words = (reach) => [reached(reach), ...links.gaps(reach, true)].join("; ");
    links.listed = function (reach) {
        const gaps = links.gaps(reach);
        return [reached(reach), gaps.length ? element("ul", {class: "small gaps"}, gaps.map((words) => element("li", {}, words))) : null];
    };

    const SINCE = {first: "the first linked launches", release: "the last release", week: "a week before", commit: "the commit before"};

    // How each op compares with earlier commits, as links tell; null if there is nothing to tell. `machine`: with the
    // figures of the ladders to which the ops lead, if it has any.
    links.compared = function (reach, machine) {
        const ops = [...new Set([...reach.since.flatMap(({ops}) => Object.keys(ops)), ...reach.still])].sort();
        if (!ops.length || !reach.since.length) return null;
        const name_of = function (each) {
            const name = each.replace(/ gpu$/, " GPU").replace(/ cpu$/, " CPU"), [op, device] = each.split(" ");
            return machine && machine.trend[each] ? link(name, "ladder", {op, device, machine: machine.name}) : name;
        };
        return kernelwatch.table([{name: "op"}, ...reach.since.map(({name, hash}) => ({name: "since " + SINCE[name] + (name === "first" ? "" : " " + text.hash(hash)), number: true, title: "geometric mean of the time of the cells whose launch changed, with its 95 % interval"}))],
            ops.map((op) => [name_of(op), ...reach.since.map(({name, ops: own}) => {
                if (!own[op]) return "no launch changed";
                const [log, half, cells, apart] = own[op];
                return [log === null ? "" : element("b", {"data-since": name, "data-change": Math.expm1(log)}, text.change(Math.expm1(log), 2)), log === null ? "" : element("div", {class: "quiet small"}, interval([log, half]) + ", " + text.plural(cells, "cell")),
                    apart ? element("div", {class: "quiet small"}, text.plural(apart, "cell") + " that nothing links") : ""];
            })]), {class: "since", "aria-label": "Each op by links on " + reach.machine});
    };

    // The commits that may have changed the launch of a cell, and of which no session measured it: {at, why}.
    function unmeasured(told, key) {
        const why = (session) => session.unjudged[key] || session.unjudged[key.split(" ")[0]];
        return d3.groups(told.sessions.filter((session) => session.kind === "step"), (session) => session.at)
            .filter(([, own]) => own.every(why)).map(([at, own]) => ({at, why: why(own[0])}));
    }

    // Whether sessions ask for a cell, or asked for it: not for lines to compare with, nor for cells of several GPUs or from the host.
    function is_asked(key, {cells, site}) {
        const cell = cells[key];
        return !cell || ["gpu", "cpu"].includes(cell.device) && !site.ops.some((op) => op.name === cell.op && op.lines.includes(cell.rung));
    }

    // Whether links tell how the launches of a cell at two commits compare, as a function of the cell and their positions.
    links.joining = async function (machine, events) {
        const reach = links.reach(events, machine), told = reach && await kernelwatch.load("links/" + reach.machine), common = await kernelwatch.common();
        const ends = told ? d3.extent(told.sessions.filter((session) => session.kind === "step").flatMap((session) => [session.from, session.at])) : [];
        return function (key, from, to) {
            if (!told || from < ends[0] || to > ends[1] || !is_asked(key, common)) return false;
            if (!told.cells[key]) return ![...reach.missing, ...unmeasured(told, key)].some(({at}) => from < at && at <= to);
            const {launches} = told.cells[key], piece = (at) => (d3.greatest(launches.filter((launch) => launch.at <= at), (launch) => launch.at) || launches[0]).piece;
            return piece(from) === piece(to);
        };
    };

    // What to say of full runs at two commits whose conditions differ: what links compare between them. `keys`: the cells of both.
    links.across = async function (machine, events, keys, from, to) {
        const joins = await links.joining(machine, events), joined = keys.filter((key) => joins(key, from, to)).length;
        return joined ? "Full runs blame no commit across it; links compare these commits" + (joined < keys.length ? " in " + joined + " of " + text.plural(keys.length, "cell") : "") + "."
            : "No commit can be blamed for a step across this change.";
    };

    // How the newest linked launch of a cell compares with the first one that links connect with it, as a function of the
    // cell: the relative change, and the hashes of the first one's commit and of the newest one that was asked. Nothing if
    // links say nothing of it.
    links.since = async function (machine, events) {
        const reach = links.reach(events, machine), told = reach && await kernelwatch.load("links/" + reach.machine);
        return function (key) {
            const launches = told && told.cells[key] ? told.cells[key].launches : [], newest = launches.at(-1), own = launches.filter((launch) => launch.piece === newest.piece);
            return own.length > 1 ? {change: Math.expm1(newest.log), from: told.commits[own[0].at].hash, to: reach.newest} : undefined;
        };
    };

    // --- the picture -----------------------------------------------------------------------------------------------

    // A relative change with its 95 % interval, of [logarithm, half-width].
    const interval = ([log, half]) => text.change(Math.expm1(log - half), 2) + " to " + text.change(Math.expm1(log + half), 2);

    const verdict_of = (word) => element("span", {class: {worse: "bad", better: "good"}[word] || ""}, WORDS[word]);

    const hash_link = (at, commits) => link(text.hash(commits[at].hash), "commit", {hash: text.hash(commits[at].hash)}, {class: "hash"});

    // The launches of a cell as stretches of an index: 100 is the first launch of a piece. `alone`: nothing links it.
    function stretches(cell, places, end) {
        const count = d3.rollup(cell.launches, (each) => each.length, (launch) => launch.piece);
        return cell.launches.map((launch, index) => ({
            ...launch, alone: count.get(launch.piece) === 1, x1: places.get(launch.at), x2: index + 1 < cell.launches.length ? places.get(cell.launches[index + 1].at) : end,
            value: 100 * Math.exp(launch.log), low: 100 * Math.exp(launch.log - launch.half), high: 100 * Math.exp(launch.log + launch.half),
        }));
    }

    function picture(main, into, drawn, told, ats) {
        const small = (main.clientWidth || parseFloat(main.style.width) || 960) < 640, linked = told.sessions.filter(is_measured), gpus = [...new Set(linked.map((session) => session.gpu))];
        const measured = linked.map((session) => ({...session, x: ats.indexOf(session.at)}));
        const values = drawn.flatMap(({parts}) => parts.filter((part) => !part.alone).flatMap((part) => [part.low, part.high]));
        const [low, high] = kernelwatch.domain(values, 0.02), floor = low - 0.12 * (high - low);
        const alt = drawn.map(({key, parts}) => key + ": index " + text.digits(parts[parts.length - 1].value) + " after " + text.plural(parts.length - 1, "changed launch", "changed launches")).join("; ");
        const paired = (parts) => [...d3.group(parts, (part) => part.piece).values()].flatMap((own) => d3.pairs(own));
        const marks = drawn.map(({parts, color}) => ({parts: parts.filter((part) => !part.alone), lonely: parts.filter((part) => part.alone && part.why), color})).flatMap(({parts, lonely, color}) => [
            Plot.rect(parts, {x1: "x1", x2: "x2", y1: "low", y2: "high", fill: color, fillOpacity: 0.18}),
            Plot.ruleY(parts, {x1: "x1", x2: "x2", y: "value", stroke: color, strokeWidth: 2}),
            // Where the launch failed between them, say, and a link joins both sides.
            Plot.ruleY(paired(parts).filter(([a, b]) => a.x2 < b.x1), {x1: ([a]) => a.x2, x2: ([, b]) => b.x1, y: ([a]) => a.value, stroke: color, strokeWidth: 2, strokeDasharray: "2 4", className: "joined"}),
            Plot.link(paired(parts), {x1: ([, b]) => b.x1, x2: ([, b]) => b.x1, y1: ([a]) => a.value, y2: ([, b]) => b.value, stroke: color, strokeWidth: 1}),
            Plot.text(lonely, {x: "x1", y: () => floor + 0.1 * (high - low), text: () => "\u00d7", fill: color, fontSize: 15, title: (part) => "no link: " + part.why}),
            Plot.dot(parts.filter((part) => part.word), {x: "x1", y: "value", r: 4, fill: (part) => ({worse: "var(--bad)", better: "var(--good)"}[part.word] || "var(--page)"), stroke: color, strokeWidth: 1.5,
                title: (part) => part.why ? "no link: " + part.why : WORDS[part.word] + (part.step ? ", " + text.change(Math.expm1(part.step[0]), 2) + " (" + interval(part.step) + ")" : "") + ", index " + text.digits(part.value, 5)}),
        ]);
        const ticks = d3.range(ats.length).filter((index) => index % Math.max(1, Math.ceil(ats.length / (small ? 4 : 9))) === 0);
        into.append(kernelwatch.plot(main, {
            height: small ? 260 : 320, marginLeft: 58, marginBottom: 42,
            x: {type: "linear", domain: [-0.5, ats.length - 0.5], label: null, axis: null}, y: {type: "linear", domain: [floor, high], label: "time, the first launch = 100", labelArrow: "none", grid: true},
            marks: [...marks, Plot.ruleX(measured, {x: "x", y1: floor, y2: floor + 0.05 * (high - low), stroke: (session) => kernelwatch.colors[gpus.indexOf(session.gpu) % 8], strokeWidth: (session) => (gpus.indexOf(session.gpu) < 8 ? 3 : 1), title: (session) => session.gpu + ", driver " + session.driver + ", " + session.measured.slice(0, 10)}),
                Plot.axisX(ticks, {label: small ? "commits" : "commits that were asked, evenly spaced", labelArrow: "none", tickFormat: (index) => text.hash(told.commits[ats[index]].hash)})],
        }, alt));
        into.append(element("p", {class: "quiet small"}, "The line is each launch's time by its links, with its 95 % interval; it breaks where nothing links two launches, and is dotted where a link leads over launches that failed or were gone. A dot is a changed launch: red slower, green faster, hollow neither; \u00d7 is one that nothing links with another. Ticks below: a session that measured links, colored by GPU" + (gpus.length > 8 ? " (thin ones: the colors once more)" : "") + ": ",
            gpus.map((gpu, index) => [index ? ", " : "", element("span", {style: "color:" + kernelwatch.colors[index % 8], "aria-hidden": "true"}, (index < 8 ? "\u25ac" : "\u2500") + "\u00a0"), gpu]), "."));
    }

    // --- the table -------------------------------------------------------------------------------------------------

    function table(key, cell, told) {
        const rows = d3.sort(cell.links, ([number]) => -told.sessions[number].at).map(([number, , , log, half, turns, word]) => {
            const session = told.sessions[number], commit = told.commits[session.at];
            const tone = (session.kind !== "full runs" && {worse: "bad", better: "good"}[word]) || "";
            return [hash_link(session.at, told.commits), element("b", {class: tone}, text.change(Math.expm1(log), 2)), interval([log, half]),
                session.kind === "full runs" ? "full runs here and at " + text.hash(told.commits[session.from].hash)
                    : WORDS[word] + (session.kind === "anchor" ? ", from the anchor " + text.hash(told.commits[session.from].hash) : ""),
                element("span", {class: "subject"}, commit.subject), text.date(commit.date), String(turns), session.gpu + (cell.disagree.includes(number) ? " (disagrees with the others)" : "")];
        });
        return kernelwatch.table([{name: "Commit"}, {name: "Time", number: true, title: "relative change of the seconds"}, {name: "95 % interval", number: true},
            {name: "Verdict"}, {name: "Subject"}, {name: "Date"}, {name: "Turns", number: true}, {name: "GPU"}], rows, {"aria-label": "Links of " + key});
    }

    // What other environments did to cells of a machine: each was measured in turns with another one, on one commit.
    function of_environments(cells, machine, events) {
        const own = events.events.filter((event) => event.kind === "environment" && !event.commits).flatMap((event) => event.changes.filter((change) => kernelwatch.is_of({machine}, change.place.machine) && cells.some(({key}) => key === change.cell)).map((change) => ({event, change})));
        return own.length ? element("ul", {class: "happened"}, own.map(({event, change}) => element("li", {"data-kind": "environment", "data-change": change.size}, element("b", {}, "\u25c7 " + kernelwatch.size(change)),
            " (" + kernelwatch.interval(change) + "), " + (cells.length > 1 ? change.cell + ", " : "") + "by another environment: ", kernelwatch.event.link(event.why, change.id), ", both measured in turns at ", link(text.hash(change.to), "commit", {hash: text.hash(change.to)}, {class: "hash"}), "."))) : null;
    }

    // --- the section of a history ----------------------------------------------------------------------------------

    // The history of a machine that has links and no full run. `machines`: all names; `asked`: cells, by default the one
    // whose launches changed most. Cells of one rung are drawn together if none was asked for.
    links.history = async function (main, reach, machines, asked, events) {
        const {cells} = await kernelwatch.load("links/" + reach.machine), known = Object.keys(cells).sort();
        const size = (key) => d3.max(cells[key].launches, (launch) => Math.abs(launch.step ? launch.step[0] : 0)), rung = (key) => key.split(" ")[0];
        const most = d3.greatest(known, size), keys = asked.length ? asked : known.filter((key) => rung(key) === rung(most));
        const go = (changes) => kernelwatch.go("history", {machine: reach.machine, ...changes});
        main.append(element("h1", {}, keys.length === 1 ? keys[0] : known.length ? "History of " + rung(most) : "History"),
            element("p", {class: "quiet"}, reach.machine + " \u00b7 " + links.ALONE),
            element("div", {class: "controls"}, known.length ? kernelwatch.choice("cell", [["", "those of " + rung(most)], ...known.map((key) => [key, key])], asked.length === 1 ? asked[0] : "", (cell) => go({cell})) : "",
                machines.length > 1 ? kernelwatch.choice("machine", machines, reach.machine, (machine) => go({machine})) : ""));
        await links.section(main, keys.map((key, index) => ({key, color: kernelwatch.colors[index % 8]})), reach.machine, events);
    };

    // The links of some cells of a machine: [{key, color}]. Nothing if the machine has none.
    links.section = async function (main, cells, machine, events) {
        const reach = links.reach(events, machine);
        if (!reach) return;
        const told = await kernelwatch.load("links/" + reach.machine);
        const ats = [...new Set(told.sessions.flatMap((session) => [session.from, session.at]))].sort(d3.ascending);
        const places = new Map(ats.map((at, index) => [at, index]));
        const drawn = cells.filter(({key}) => told.cells[key]).map(({key, color}) => ({key, color, parts: stretches(told.cells[key], places, ats.length - 1)}));
        const common = await kernelwatch.common(), still = cells.filter(({key}) => !told.cells[key]);
        const section = element("section", {class: "links"}, element("h2", {}, "By links"), element("p", {class: "quiet small"},
            "A changed launch and the one before it are measured in turns on one GPU, so this line crosses GPUs, drivers and versions of the harness. " + links.words(reach) + "."));
        main.append(section);
        if (drawn.length) picture(main, section, drawn, told, ats);
        section.append(of_environments(cells, machine, events) || "");
        for (const {key} of still) {
            const left = unmeasured(told, key), commits = text.plural(left.length, "commit that was asked", "commits that were asked");
            section.append(element("p", {"data-key": key}, !is_asked(key, common) ? "There are no links of " + key + "." : left.length ? commits + " may have changed the launch of " + key + ", which was not measured: " + [...new Set(left.map(({why}) => why))].join("; ") + "."
                : "No commit that was asked changed the launch of " + key + "."));
        }
        for (const {key, color} of drawn) {
            if (drawn.length > 1) section.append(element("h3", {}, element("span", {style: "color:" + color, "aria-hidden": "true"}, "\u25ac\u00a0"), key));
            section.append(table(key, told.cells[key], told));
        }
        section.append(element("p", {class: "small"}, link("Which GPUs measured them", "devices", {machine})));
    };

    // --- the section of a commit -----------------------------------------------------------------------------------

    // What the links of a machine say of a commit; whether they say anything.
    links.of_commit = async function (section, machine, at, common) {
        const reach = links.reach(common.events, machine);
        const told = reach && await kernelwatch.load("links/" + reach.machine), own = told ? told.sessions.filter((session) => session.at === at && session.kind === "step") : [];
        if (!own.length) return false;
        const rows = Object.entries(told.cells).flatMap(([key, cell]) => cell.launches.filter((launch) => launch.at === at && launch.step).map((launch) => ({key, ...launch})))
            .sort((a, b) => Math.abs(b.step[0]) - Math.abs(a.step[0]));
        const reasons = [...new Map(own.flatMap((session) => Object.entries(session.unjudged))).entries()].filter(([name]) => !rows.some(({key}) => key === name || key.startsWith(name + " ")));
        const gpus = (sessions) => [...new Set(sessions.map((session) => session.gpu).filter(Boolean))].join(", "), same = (sessions) => text.plural(d3.max(sessions, (session) => session.same), "launch", "launches") + " the same";
        const across = d3.groups(own.filter((session) => session.from !== at - 1), (session) => session.from), parent = own.filter((session) => session.from === at - 1);
        // The commit with which the launch of a cell was compared here: the newest that links compare it with.
        const from_of = (key) => d3.max(told.cells[key].links.map(([number]) => told.sessions[number]).filter((session) => session.at === at && session.kind === "step"), (session) => session.from);
        const counts = d3.rollup(rows, (some) => some.length, ({key}) => from_of(key)), changed_words = (from) => element("b", {}, kernelwatch.described ? text.plural(counts.get(from) || 0, "launch", "launches") + " changed" : text.plural(counts.get(from) || 0, "benchmark"));
        section.append(element("h3", {}, "By links"), parent.length ? element("p", {}, "Compared with its parent ", hash_link(at - 1, told.commits), " in turns, on " + gpus(parent) + ": ", changed_words(at - 1),
            kernelwatch.described ? ", " + same(parent) : "", (reasons.length ? ", " + reasons.length + " not measured" : "") + ".") : "",
            ...across.map(([from, sessions]) => element("p", {"data-across": from}, "Compared with ", hash_link(from, told.commits), ", the last commit before it that had what failed or was gone since, on " + gpus(sessions) + ": ", changed_words(from),
            kernelwatch.described ? ", " + same(sessions) : "", ".")));
        if (rows.length) {
            section.append(kernelwatch.table([{name: kernelwatch.described ? "Cell" : "Benchmark"}, {name: kernelwatch.described ? "Time" : "Value", number: true, title: "relative change, by all links"}, {name: "95 % interval", number: true}, {name: "Verdict"}],
                rows.map(({key, step, word}) => [key in common.cells || kernelwatch.described && links.alone(common.site, common.events).includes(reach) ? link(key, "history", {cell: key, machine}) : key, element("b", {"data-key": key, "data-change": Math.expm1(step[0])}, text.change(Math.expm1(step[0]), 2)), interval(step), verdict_of(word)]),
                {"aria-label": "Links of the commit on " + machine}));
        }
        if (reasons.length) section.append(element("details", {}, element("summary", {}, "Not measured"), element("ul", {class: "small"}, reasons.map(([name, why]) => element("li", {}, element("b", {}, name), ": " + why)))));
        return true;
    };

    // --- the section of a device -----------------------------------------------------------------------------------

    // Which GPUs measured links, when, how much their controls moved, and which of them disagree with the others.
    links.devices = async function (main, machine, events) {
        const reach = links.reach(events, machine);
        if (!reach) return;
        const told = await kernelwatch.load("links/" + reach.machine), measured = told.sessions.map((session, number) => ({...session, number})).filter(is_measured);
        const apart = d3.rollup(Object.entries(told.cells).flatMap(([key, cell]) => cell.disagree.map((number) => ({key, gpu: told.sessions[number].gpu}))), (each) => each.map(({key}) => key), ({gpu}) => gpu);
        const rows = d3.groups(measured, (session) => session.gpu).map(([gpu, sessions]) => {
            const controls = sessions.filter((session) => session.controls.length), worst = d3.greatest(controls, (session) => Math.abs(session.controls[2]));
            const days = d3.extent(sessions, (session) => session.measured.slice(0, 10)), cells = [...new Set(apart.get(gpu) || [])];
            return [gpu, [...new Set(days)].join(" to "), [...new Set(sessions.map((session) => session.driver).filter(Boolean))].join(", "), String(sessions.length), String(d3.sum(sessions, (session) => session.linked)),
                worst ? [element("span", {"data-control": worst.controls[2]}, text.change(Math.expm1(worst.controls[2]), 2)), element("div", {class: "quiet small"}, worst.controls[1])] : "none was measured",
                cells.length ? element("span", {class: "bad"}, text.plural(cells.length, "cell") + ": " + cells.slice(0, 2).join(", ") + (cells.length > 2 ? ", ..." : "")) : "no"];
        });
        main.append(element("h2", {}, "GPUs that measured links"), element("p", {class: "quiet small"}, "A link compares a commit with its parent on one GPU. Its controls are launches that both sides share: how far the worst of them moved shows how quiet the GPU was."),
            rows.length ? kernelwatch.table([{name: "GPU"}, {name: "When"}, {name: "Driver"}, {name: "Sessions", number: true}, {name: "Links", number: true}, {name: "Worst control", number: true}, {name: "Disagrees with the others"}], rows, {"aria-label": "GPUs that measured links"})
                : element("p", {}, "None: no session measured a launch."));
    };
}
