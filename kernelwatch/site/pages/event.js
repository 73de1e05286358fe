// An event: what happened, in a sentence for each of two readers, and what shows it: samples, source, SASS, exact figures.
"use strict";

{
    const {element, text, link, table} = kernelwatch;
    const event_page = (kernelwatch.event = {});
    const TITLES = {regression: "Regression", accepted: "Accepted regression", improvement: "Improvement", change: "Change", environment: "Change of the environment", disturbed: "Disturbed run"};
    const LARGEST = 5;  // links of a gradual change that are listed
    const CLASSES = ["global", "shared", "fma", "tensor", "control", "other"];
    const MARKS = {"-": ["bad", "\u2212"], "+": ["good", "+"], "<": ["quiet", "\u2190"], ">": ["quiet", "\u2192"], " ": ["", " "], "=": ["", "="], ".": ["quiet", "\u22ef"]};

    // The address of an event, by the id of it or of one of its changes.
    event_page.link = (words, id, properties) => link(words, "event", {id}, properties);

    // The event that an id names, the newest one by default: {event, change}.
    function found(events, id) {
        if (!id && events.length) return {event: events[0], change: events[0].changes[0]};
        for (const event of events) {
            const change = event.changes.find((each) => each.id === id);
            if (change) return {event, change};
        }
        return null;
    }

    function unknown(main, id, {site, commits}) {
        const hash = text.hash(id), is_known = hash.length === 8 && Object.values(commits).some((commit) => commit.hash.startsWith(hash));
        main.append(element("h1", {}, "No such event"),
            element("p", {}, id ? ["These pages have no event ", element("code", {}, id), "."] : "These pages have no event."),
            element("p", {}, "What may have happened:"),
            element("ul", {},
                element("li", {}, "These pages were made of other results than those in which it was found: other files in results/, another machine, or a range of commits."),
                element("li", {}, "The commit was measured again, or more commits followed, and the step is no longer one: a disturbed run vanishes so."),
                element("li", {}, "The repository from which the pages were made lacks the commit: a shallow clone does" + (site.shallow ? ", and this one is shallow (git fetch --unshallow)" : "") + ", and so does one whose history was rewritten."),
                element("li", {}, "The benchmark, its parameters or the machine have another name now.")),
            element("p", {}, is_known ? [link("The commit " + hash, "commit", {hash}), " \u00b7 "] : "", link("All events", "regressions")));
    }

    // --- the samples -----------------------------------------------------------------------------------------------

    const scale_of = (seconds) => [["s", 1], ["ms", 1e-3], ["\u00b5s", 1e-6], ["ns", 1e-9]].find(([, scale]) => seconds >= scale) || ["ns", 1e-9];

    // A row of dots for each side, with the median of each as a tick.
    function strips(main, rows, axis, alt, caption) {
        const points = rows.flatMap((row) => row.values.map((value, index) => ({row: row.name, value, index, side: row.side})));
        if (!points.length) return null;
        const medians = rows.filter((row) => row.values.length).map((row) => ({row: row.name, value: d3.median(row.values)}));
        const [low, high] = d3.extent(points, (point) => point.value), room = (high - low || Math.abs(high) * 0.01) * 0.08;
        const drawn = kernelwatch.plot(main, {
            height: 46 + 34 * rows.length, marginLeft: 8.2 * d3.max(rows, (row) => row.name.length) + 12, marginRight: 18, marginTop: 10, marginBottom: 34,
            x: {domain: [axis.zero ? Math.min(0, low) - room : low - room, axis.zero ? Math.max(0, high) + room : high + room], label: axis.label, labelArrow: "none", ticks: 6, grid: true, nice: false},
            y: {type: "band", domain: rows.map((row) => row.name), label: null, tickSize: 0, padding: 0.25},
            marks: [
                axis.zero ? Plot.ruleX([0], {stroke: "var(--quiet)"}) : null,
                Plot.dot(points, {x: "value", y: "row", r: 4.5, fill: (point) => (point.side ? "var(--accent)" : "none"), fillOpacity: 0.55, stroke: (point) => (point.side ? "var(--accent)" : "var(--ink)"), strokeWidth: 1.3, className: "sample"}),
                Plot.tickX(medians, {x: "value", y: "row", stroke: "var(--ink)", strokeWidth: 2}),
            ],
        }, alt, caption);
        return kernelwatch.marked(drawn, ".sample circle", points, (point) => ({row: point.row, value: point.value}));
    }

    function sides_picture(main, cell) {
        const seconds = cell.sides.flatMap((side) => side.seconds);
        if (!seconds.length) return element("p", {class: "quiet"}, "The processes of these commits are not recorded on " + cell.machine + ".");
        const [unit, scale] = scale_of(d3.min(seconds));
        const rows = cell.sides.map((side, at) => ({name: (at ? "after " : "before ") + text.hash(side.commit), side: at, values: side.seconds.map((value) => value / scale)}));
        const said = rows.map((row) => row.name + ": " + row.values.map((value) => text.digits(value, 5)).join(", ") + " " + unit).join("; ");
        return strips(main, rows, {label: "time of a launch (" + unit + ")"}, cell.cell + ", each process. " + said,
            cell.sides.map((side, at) => text.plural(side.seconds.length, "process", "processes") + (at ? " after" : " before")).join(", ") + ", each a dot; the tick is their median.");
    }

    // Both commits in turns: `rows` of [name, logarithms of the ratios]; `said`: of them, in words.
    function turns_picture(main, cell, rows, said) {
        const values = rows.map(([name, logs]) => ({name, side: 1, values: logs.map((log) => 100 * Math.expm1(log))}));
        return strips(main, values, {label: "time after over time before, in each turn (%)", zero: true}, cell.cell + ", each turn: " + said, "Both commits in turns, each turn a dot: " + said + ".");
    }

    const links_picture = (main, cell) => turns_picture(main, cell, cell.turns.map((turn, at) => ["session " + (at + 1), turn.logs]),
        cell.turns.map((turn) => text.plural(turn.logs.length, "turn") + " on " + turn.gpu + ", " + text.time(turn.seconds[0]) + " \u2192 " + text.time(turn.seconds[1])).join("; "));

    // The links of a gradual change, each of which is small: their sum, a dot for each, and those that are the largest.
    function sum_picture(main, cell, change, all) {
        const sum = text.plural(change.links, "link") + " on " + text.plural(change.gpus.length, kernelwatch.described ? "GPU" : "device"), percent = (turn) => 100 * Math.expm1(turn.log);
        const said = kernelwatch.size(change) + " (" + kernelwatch.interval(change) + ") from " + text.hash(change.from) + " to " + text.hash(change.to);
        const largest = d3.sort(cell.turns, (turn) => -Math.abs(turn.log)).slice(0, LARGEST);
        return [element("p", {"data-links": change.links, "data-gpus": change.gpus.length}, "The sum of ", element("b", {}, sum), " is ", element("b", {}, said), "."),
            strips(main, [{name: "each link", side: 1, values: cell.turns.map(percent)}], {label: "time after over time before, by each link (%)", zero: true}, cell.cell + ", each link: " + said, "Each link a dot. None of them is surely a change alone."),
            element("details", {class: "small"}, element("summary", {}, "The largest of them"), element("ul", {}, largest.map((turn) => element("li", {}, kernelwatch.told.commit_link(turn.to, all), " " + text.change(Math.expm1(turn.log), 2) + ", " + turn.gpu))))];
    }

    function samples(main, event, causes, all) {
        const is_sum = kernelwatch.told.is_sum(event), section = element("section", {class: "samples"}, element("h2", {}, is_sum ? "Links between these commits" : "Samples of both sides"));
        for (const cell of causes.cells) {
            const change = event.changes.find((each) => each.id === cell.change);
            section.append(element("h3", {}, kernelwatch.told.series_link(change, all)), ...(is_sum ? sum_picture(main, cell, change, all) : [cell.turns.length ? links_picture(main, cell) : sides_picture(main, cell)]));
            const verdict = change.verdict && !change.linked ? kernelwatch.told.verdict_text(change.verdict) : "";
            if (cell.confirmed.length) section.append(turns_picture(main, cell, [["measured again", cell.confirmed]], verdict));
            else if (verdict) section.append(element("p", {class: "small"}, "Measured again in turns: " + verdict + "."));
        }
        if (!causes.cells.length) {
            section.append(element("p", {}, event.changes.every((change) => change.exact) ? "None: exact figures have no samples, any difference counts."
                : "None: of this project no figures of single processes are kept."));
        }
        if (causes.cells_left_out) section.append(element("p", {class: "quiet"}, text.plural(causes.cells_left_out, "more cell") + " moved; the table of all changes has them."));
        return section;
    }

    const clocks_text = (clocks) => (clocks.length ? [...new Set(d3.extent(clocks).map((clock) => text.digits(clock, 4)))].join(" \u2013 ") + " MHz" : "n/a");

    // A row for each GPU and driver that measured links of a gradual change.
    const sum_rows = (cell) => d3.groups(cell.turns, (turn) => turn.gpu + ", " + turn.driver).map(([, own]) => [cell.cell, text.plural(own.length, "link"), own[0].gpu, own[0].driver || "n/a",
        clocks_text(own.flatMap((turn) => turn.clocks_mhz).filter((clock) => clock !== null)), "n/a", "none", [...new Set(d3.extent(own, (turn) => turn.measured.slice(0, 10)))].join(" \u2013 ")]);

    // Which GPUs, clocks and caches: a row for each side of each cell.
    function conditions(event, causes) {
        const is_sum = kernelwatch.told.is_sum(event);
        const rows = causes.cells.flatMap((cell) => [
            ...cell.sides.filter((side) => side.seconds.length).map((side, at) => [cell.cell, (at ? "after " : "before ") + text.hash(side.commit), [side.gpu || side.cpu || "n/a", side.uuid ? element("div", {class: "quiet small"}, side.uuid) : ""], side.nvml_driver || "n/a",
                clocks_text(side.clocks_mhz),
                [side.temperature_c === null ? "" : text.digits(side.temperature_c, 2) + " \u00b0C", side.power_w === null ? "" : text.digits(side.power_w, 3) + " W"].filter(Boolean).join(", ") || "n/a",
                [...side.limits, ...side.notes].join(", ") || "none", (side.measured_at || "").slice(0, 10) || "n/a"]),
            ...(is_sum ? sum_rows(cell) : cell.turns.map((turn) => [cell.cell, text.hash(turn.from) + " \u2192 " + text.hash(turn.to), turn.gpu, turn.driver || "n/a",
                turn.clocks_mhz.map((clock) => (clock === null ? "n/a" : text.digits(clock, 4))).join(" \u2192 ") + " MHz", "n/a", "none", turn.measured.slice(0, 10)]))]);
        if (!rows.length) return null;
        const caches = [...new Set(causes.cells.map((cell) => cell.cell.split(" ").pop()))];
        return element("section", {}, element("h2", {}, "GPUs and clocks"),
            element("p", {class: "small"}, "Operands: " + caches.map((cache) => ({cold: "cold, from memory", hot: "hot, in the last-level cache"}[cache] || cache)).join("; ") + "."),
            table([{name: "Cell"}, {name: "Side"}, {name: "Device"}, {name: "Driver"}, {name: "SM clock"}, {name: "State"}, {name: "Limits and notes"}, {name: "Measured"}], rows, {"aria-label": "GPUs and clocks"}));
    }

    // --- the exact figures -----------------------------------------------------------------------------------------

    function tone(figure) {
        if (!figure.better) return ["", ""];
        const good = (figure.after < figure.before) === (figure.better === "lower");
        return good ? ["good", " better"] : ["bad", " worse"];
    }

    // That nobody knows for which architecture a kernel was measured, and which one stands in; null if it is known.
    function assumed(kernel) {
        if (!kernel.assumed) return null;
        return element("p", {class: "quiet small"}, "Compiled for " + kernel.kernel.split(" ").pop() + ", which is assumed: no record says on which architecture this was measured.");
    }

    function figures_of(kernel) {
        const section = element("section", {"data-kernel": kernel.kernel}, element("h3", {}, kernel.kernel), assumed(kernel));
        const launch = Object.entries(kernel.launch).filter(([, [before, after]]) => String(before) !== String(after));
        const rows = [...kernel.moved.map((figure) => {
            const [kind, word] = tone(figure), rose = figure.after > figure.before;
            return [figure.name, figure.where, text.exact(figure.before), element("span", {class: kind, "data-figure": figure.name, "data-before": figure.before, "data-after": figure.after}, (rose ? "\u25b2 " : "\u25bc ") + text.exact(figure.after) + word), figure.unit];
        }), ...launch.map(([name, [before, after]]) => [name + (name === "grid" ? " at " + text.shape(kernel.shape) : ""), "launch", before.join(" \u00d7 "), after.join(" \u00d7 "), ""])];
        if (rows.length) section.append(table([{name: "Figure"}, {name: "How"}, {name: "Before", number: true}, {name: "After", number: true}, {name: "Unit"}], rows, {"aria-label": "Exact figures of " + kernel.kernel + " that moved"}));
        else section.append(element("p", {}, kernel.same.length ? "None moved: " + text.plural(kernel.same.length, "exact figure") + " are the same on both sides." : "None is known on both sides" + (kernel.why ? ": " + kernel.why : "") + "."));
        if (kernel.lines.length) {
            section.append(element("h4", {}, "By source line of " + kernel.source), table([{name: "Line", number: true}, {name: "Access"}, {name: "Requests", number: true}, {name: "Cost", number: true, title: "sectors of global memory, passes through the banks of shared memory"}, {name: "Source"}],
                kernel.lines.slice(0, 12).map((line) => [line.before && line.after && line.before !== line.after ? line.before + " \u2192 " + line.after : String(line.after || line.before || "n/a"), line.kind.replace("_", " "),
                    line.requests[0] === line.requests[1] ? String(line.requests[0]) : line.requests.join(" \u2192 "), element("b", {"data-line": line.after || line.before}, line.cost.join(" \u2192 ")), element("code", {}, line.text || "in a header")]), {"aria-label": "Lines of " + kernel.kernel + " whose accesses moved"}));
        }
        if (kernel.moved.length && kernel.same.length) {
            section.append(element("details", {}, element("summary", {}, text.plural(kernel.same.length, "figure") + " did not move"),
                element("p", {class: "small"}, kernel.same.map((figure) => figure.name + " " + text.exact(figure.before)).join(" \u00b7 "))));
        }
        const how = {recorded: "recorded with the results", looked: "computed when these pages were made"};
        const origin = Object.entries(kernel.origin).map(([what, whence]) => (what === "counted" ? "counted on the emulator" + (kernel.counted_at ? " at " + text.shape(kernel.counted_at) : "") : "compiled") + ": " + how[whence]).join("; ");
        const why = [origin, kernel.no_lines ? "No accesses by line: " + kernel.no_lines : ""].filter(Boolean).join(". ");
        if (why) section.append(element("p", {class: "quiet small"}, why[0].toUpperCase() + why.slice(1) + "."));
        return section;
    }

    // --- the SASS --------------------------------------------------------------------------------------------------

    const pair = ([before, after]) => (before === after ? String(before) : before + " \u2192 " + after);

    function sass_of(kernel) {
        const section = element("section", {"data-sass": kernel.kernel}, element("h3", {}, kernel.kernel), assumed(kernel));
        if (kernel.why) {
            section.append(element("p", {}, "No SASS diff: " + kernel.why + "."));
            return section;
        }
        const moves = [[kernel.removed, "removed"], [kernel.added, "added"], [kernel.moved, "only moved"], [kernel.renamed, "with other registers or addresses"]].filter(([count]) => count).map(([count, words]) => count + " " + words);
        section.append(element("p", {}, kernel.same ? "The code is the same on both sides, bit by bit." : [element("b", {}, pair(kernel.instructions) + " instructions"), kernel.opcodes.NOP ? ", NOPs not counted" : "", moves.length ? ": " + moves.join(", ") + ". " : ". ", "Loops: " + pair(kernel.loops) + ". ",
            kernel.removed + kernel.added + kernel.moved + kernel.renamed ? "" : "Only what nvdisasm does not print differs: how long instructions wait, and for what."]));
        if (kernel.same) return section;
        const changed = Object.entries(kernel.opcodes);
        section.append(element("p", {class: "small classes"}, "By class: " + CLASSES.filter((name) => kernel.classes[name].some(Boolean)).map((name) => name + " " + pair(kernel.classes[name])).join(" \u00b7 ") + "."));
        if (changed.length) {
            section.append(element("ul", {class: "opcodes", "aria-label": "Opcodes whose number changed"}, changed.slice(0, 16).map(([name, counts]) => element("li", {"data-opcode": name, "data-before": counts[0], "data-after": counts[1]}, element("code", {}, name), " ", element("b", {}, pair(counts)))),
                changed.length > 16 ? element("li", {}, changed.length - 16 + " more") : null));
        }
        if (!kernel.aligned) section.append(element("p", {}, "The kernel is too long for a diff."));
        if (kernel.rows.length) {
            section.append(element("details", {class: "diff", open: kernel.rows.length <= 60}, element("summary", {}, "Diff of the SASS, " + text.plural(kernel.rows.length + kernel.left_out, "row")),
                element("p", {class: "quiet small"}, kernel.rows[0][0] === "=" ? "Nothing differs but registers, predicates and addresses, in these instructions." : "\u2212 removed, + added, \u2190 and \u2192 moved from and to here. Registers, predicates and addresses are not compared."),
                element("pre", {tabindex: 0, role: "region", "aria-label": "Diff of the SASS of " + kernel.kernel}, kernel.rows.map(([mark, address, words]) => element("span", {class: MARKS[mark][0] || null}, MARKS[mark][1] + " " + address.padStart(4) + "  " + words + "\n"))),
                kernel.left_out ? element("p", {class: "small"}, text.plural(kernel.left_out, "more row")) : null));
        }
        return section;
    }

    // --- to take along ---------------------------------------------------------------------------------------------

    function markdown(event, causes, all) {
        const moved = causes.kernels.flatMap((kernel) => kernel.moved.map((figure) => "- " + kernel.kernel + (kernel.assumed ? " (an assumed architecture)" : "") + ": " + figure.name + " " + text.exact(figure.before) + " \u2192 " + text.exact(figure.after) + " " + figure.unit));
        const command = causes.command ? "\nRepeat it:\n\n```\n" + causes.command + "\n```\n" : "";
        return causes.manager + "\n\n" + causes.engineer + "\n\n" + kernelwatch.told.markdown(event, all) + (moved.length ? "\n" + moved.join("\n") + "\n" : "") + command;
    }

    // The events of a commit, without one of them; null if there are none.
    event_page.list = function (events, hash, without) {
        const own = events.filter((event) => event !== without && event.last.hash === hash);
        return own.length ? element("ul", {class: "events"}, own.map((event) => element("li", {}, event_page.link(TITLES[kernelwatch.told.kind_of(event)] + ": " + text.plural(event.changes.length, "series", "series"), event.id), ", " + (event.commits ? "" : event.why + ", ") + kernelwatch.told.subject_of(event.changes[0]) + " " + text.change(event.changes[0].change, 2)))) : null;
    };

    kernelwatch.view("event", async (main, parameters) => {
        const common = await kernelwatch.common();
        const all = {...common, at: kernelwatch.positions(common.commits)}, id = parameters.get("id") || "";
        const named = found(common.events.events, id);
        if (!named) return unknown(main, id, common);
        const {event} = named, {told} = kernelwatch;
        const [causes, sass] = await Promise.all([kernelwatch.load("causes/" + event.id), kernelwatch.load("sass/" + event.id)]);
        const kind = told.kind_of(event), environment = event.kind === "environment", machines = [...new Set(event.changes.map((change) => change.place.machine).filter(Boolean))];
        const words = environment ? "" : kernelwatch.words(event), reason = kernelwatch.reason(event), {decision} = event;
        main.append(
            element("h1", {}, TITLES[kind] + (event.gradual ? " by many small changes, up to: " : ": ") + (event.commits ? event.last.subject : event.why)),
            element("p", {class: "lead", "data-for": "manager"}, causes.manager),
            element("p", {class: "lead", "data-for": "engineer"}, causes.engineer),
            element("p", {class: "quiet " + kind}, words ? [element("span", {class: "verdict first " + event.state, title: told.meaning(event)}, words), " "] : "", told.commit_link(event.last.hash, all), " by " + event.last.author + ", " + text.date(event.last.date),
                event.gradual ? ["; many small changes since ", told.commit_link(event.first.hash, all)] : event.commits > 1 ? ["; or one of the " + text.plural(event.commits - 1, "unmeasured commit") + " before it, after ", told.commit_link(event.before, all)] : "",
                machines.length ? " \u00b7 " + machines.join(", ") : "", event.configured ? "" : " \u00b7 on " + event.branch + ", which is not a configured branch"),
            samples(main, event, causes, all));
        if (!environment) {
            main.append(element("section", {}, element("h2", {}, "Source"), event.gradual ? element("p", {}, "No single commit is to blame. What all of them changed: ", element("code", {class: "wrap"}, "git diff " + text.hash(event.before) + " " + text.hash(event.last.hash)))
                : await kernelwatch.diff_of(event.last, common.site)));
        }
        main.append(element("section", {class: "sass"}, element("h2", {}, "SASS"), sass.kernels.length ? sass.kernels.map(sass_of) : element("p", {}, "No SASS diff: " + sass.why + ".")),
            element("section", {class: "figures-moved"}, element("h2", {}, "Exact figures that moved"), causes.kernels.length ? causes.kernels.map(figures_of) : element("p", {}, "None is known: " + causes.why + ".")),
            element("section", {}, element("h2", {}, event.gradual ? "All that moved up to this commit" : "All that moved at this commit"), table(told.COLUMNS, event.changes.map((change) => told.change_row(event, change, all)), {"aria-label": "Changes of the event"}), event_page.list(all.events.events, event.last.hash, event) || ""));
        const where = conditions(event, causes);
        if (where) main.append(where);
        main.append(element("section", {class: "state"}, element("h2", {}, "State"),
            element("p", {"data-event": event.id, "data-state": event.state, "data-size": event.size},
                environment ? "No commit is to blame." : [words ? words[0].toUpperCase() + words.slice(1) + ". " : "", words ? told.meaning(event) : "", reason ? " " + reason + "." : ""].join("") || "Nothing is known."),
            decision && decision.missed ? element("p", {}, decision.missed) : null),
        element("section", {class: "take"}, element("h2", {}, "Take it along"),
            element("p", {class: "controls"}, kernelwatch.copy("Copy as Markdown", markdown(event, causes, all)), kernelwatch.copy("Copy as JSON", JSON.stringify({schema: "kernelwatch/event", version: all.events.version, ...event, causes}, null, 1)), causes.command ? kernelwatch.copy("Copy the command that repeats it", causes.command) : null),
            causes.command ? element("p", {class: "small"}, element("code", {class: "wrap"}, causes.command)) : null, element("p", {class: "small"}, link("All events", "regressions"))));
    });
}
