// The history of one cell or several: time or rate by commit, what was found there, and the exact figures of the rung
// below on the same axis, so that a step and its cause stand together.
"use strict";

{
    const {element, text, link, choice, table} = kernelwatch;
    const PARTS = ["op", "rung", "type", "shape", "cache"];
    const DOTS = 240;  // more points than these have no dots of their own
    const ROWS = 200;  // of the table, at first

    const digits_of = (point) => text.significant(point.s, point.low, point.high);

    // A change with enough digits that it does not read as nothing.
    const change_text = (change) => text.change(change, Math.abs(change) < 0.001 ? 3 : undefined);

    // --- which cells ---------------------------------------------------------------------------------------------

    // What each part of a cell can be, given the parts before it, and the cell that is nearest to what is wanted.
    function nearest(cells, site, details, wanted) {
        let left = Object.values(cells).filter((cell) => cell.op + "/" + cell.rung in details.history);
        const options = {}, found = {};
        for (const part of PARTS) {
            const op = site.ops.find((each) => each.name === found.op);
            const values = [...new Set(left.map((cell) => cell[part]))];
            if (part === "rung" && op) {
                const order = [...op.order.gpu, ...op.order.cpu];
                values.sort((a, b) => order.indexOf(a) - order.indexOf(b));
            }
            const usual = {shape: op && op.element_shape, cache: "cold", type: op && op.types[0]}[part];
            options[part] = values;
            found[part] = values.includes(wanted[part]) ? wanted[part] : values.includes(usual) ? usual : values[0];
            left = left.filter((cell) => cell[part] === found[part]);
        }
        return {options, found, key: left.length ? kernelwatch.key(...PARTS.map((part) => found[part])) : ""};
    }

    // Short names that tell cells apart: the parts in which they differ.
    function short_names(keys, cells) {
        const differ = PARTS.filter((part) => new Set(keys.map((key) => cells[key][part])).size > 1);
        return keys.map((key) => differ.map((part) => cells[key][part]).join(" ") || cells[key].rung);
    }

    // --- what was recorded -----------------------------------------------------------------------------------------

    // A cell's own series on a machine. `turns`: lines do not cross them, since figures on their two sides do not compare.
    async function series_of(key, machine, common, turns) {
        const cell = common.cells[key];
        const columns = (await machine.history(cell.op + "/" + cell.rung))[key];
        const column = (name, index) => (columns[name] ? columns[name][index] : null);
        const points = columns ? columns.at.map((at, index) => ({
            at, s: column("s", index), low: column("low", index), high: column("high", index),
            clock: column("clock_mhz", index), temperature: column("temperature_c", index), power: column("power_w", index),
            launch: column("launch_s", index), limits: (columns.limits || {})[index] || [], failed: (columns.failed || {})[index] || "",
            stretch: turns.filter((turn) => turn.at <= at).length,
        })) : [];
        const judged = common.events.series.find((each) => each.cell === key && kernelwatch.is_of(each.place, machine.summary.name));
        return {key, cell, points, judged: Boolean(judged), smallest: judged ? judged.smallest : undefined, turns,
            changes: kernelwatch.changes(common.events, common.commits, machine.summary.name).filter(({change, at}) => change.cell === key && at !== undefined)};
    }

    // --- how it is drawn -------------------------------------------------------------------------------------------

    // Where many points share a pixel: for each column of them the median, the extremes, and the ends of the intervals.
    function thinned(points, columns) {
        if (points.length <= 2 * columns) return points.map((point) => ({...point, v1: point.value, v2: point.value}));
        const found = [], size = points.length / columns;
        for (let start = 0; start < points.length; start += size) {
            const part = points.slice(Math.floor(start), Math.floor(start + size)), known = part.filter((point) => point.value !== null);
            if (!part.length) continue;
            const [v1, v2] = d3.extent(known, (point) => point.value);
            found.push({x: part[part.length >> 1].x, stretch: part[part.length - 1].stretch, value: known.length ? d3.median(known, (point) => point.value) : null,
                v1, v2, y1: d3.min(known, (point) => point.y1), y2: d3.max(known, (point) => point.y2)});
        }
        return found;
    }

    // Rows for labels beside their lines, 0 next to the picture: no line crosses the label of another. `labels`: [{px, width,
    // flipped}], by px; a flipped one stands left of its line. Returns how many rows there are.
    function rows_of(labels) {
        for (let index = labels.length - 1; index >= 0; index--) {
            const own = labels[index];
            const crossed = labels.slice(index + 1).filter((other) => (other.flipped ? other.px - other.width : other.px) < own.px + (own.flipped ? 0 : own.width) + 8);
            own.row = crossed.length ? 1 + d3.max(crossed, (other) => other.row) : 0;
        }
        return labels.length ? 1 + d3.max(labels, (label) => label.row) : 0;
    }

    const width_of = (words) => 6.6 * words.length + 4;

    function verdict_words(event, change) {
        if (event.kind === "environment") return "the environment changed, no commit is to blame";
        if (change.exact) return "exact";
        const word = change.verdict ? change.verdict.word : "not tried";
        return {"not tried": "not measured again yet", "not decided": "measured again, not decided"}[word] || word;
    }

    // --- the table -------------------------------------------------------------------------------------------------

    function values_table(series, how, common, named) {
        const columns = [{name: "Commit"}, {name: "Date"}, {name: "Subject"},
            {name: how.noun, number: true, title: "median over processes"}, {name: "95 % interval", number: true},
            {name: "Change", number: true, title: "since the measured commit before"},
            {name: "SM clock", number: true}, {name: "Temperature", number: true}, {name: "Power", number: true}, {name: "Limits"}];
        const points = series.points, before = [];  // before: the last time known before each commit
        for (let index = 0, last = null; index < points.length; index++) {
            before.push(last);
            last = points[index].s ? points[index] : last;
        }
        const row = (index) => {
            const point = points[index], commit = common.commits[point.at];
            const last = before[index];
            const digits = digits_of(point);
            return [
                link(text.hash(commit.hash), "commit", {at: point.at}, {class: "hash"}), text.date(commit.date),
                element("span", {class: "subject"}, commit.subject),
                point.s ? element("span", {"data-at": point.at, "data-s": point.s}, how.say(point.s, digits)) : element("span", {class: "bad"}, "failed"),
                point.s ? how.interval(point, digits) : "",
                point.s && last ? change_text(how.raw(point.s) / how.raw(last.s) - 1) : "",
                point.clock ? text.digits(point.clock, 4) + " MHz" : "", point.temperature ? text.digits(point.temperature, 3) + " \u00b0C" : "",
                point.power ? text.digits(point.power, 3) + " W" : "", point.failed || point.limits.join(", "),
            ];
        };
        const used = (from, until) => d3.range(from, until).map((index) => row(points.length - 1 - index));
        const details = element("details", {class: "values", ontoggle: () => {
            if (!details.open || details.querySelector("table")) return;
            const rows = used(0, Math.min(ROWS, points.length));
            const drawn = table(columns, rows, {"aria-label": "Values of " + series.key});
            details.append(drawn);
            if (points.length > ROWS) {
                const more = element("button", {type: "button", onclick: () => {
                    const rest = table(columns, used(ROWS, points.length));
                    drawn.querySelector("tbody").append(...rest.querySelectorAll("tbody tr"));
                    more.remove();
                }}, "Show " + text.plural(points.length - ROWS, "older commit"));
                details.append(more);
            }
        }}, element("summary", {}, "Values of " + (named || series.key) + ", " + text.plural(points.length, "commit") + ", newest first"));
        return details;
    }

    // --- exact figures ---------------------------------------------------------------------------------------------

    // The exact figures of a rung that belong to a cell: those of its element type, and compiled ones only for the
    // machine's own architecture. [{benchmark, place, run, group}]
    function figures_of(exact, cell, architecture) {
        const found = [];
        for (const [benchmark, rungs] of Object.entries((exact || {series: {}}).series)) {
            for (const [place, run] of Object.entries(rungs[cell.rung] || {})) {
                const [first, second] = place.split(" ");
                const typed = second !== undefined;
                if (typed && first !== cell.type) continue;
                if (/^sm_/.test(second || first) && (second || first) !== architecture) continue;
                found.push({benchmark, place, run, group: cell.op + " " + (/^static\./.test(benchmark) ? "static" : "access")});
            }
        }
        return found;
    }

    const figure_title = (figure) => {
        const name = kernelwatch.figure_name(figure.benchmark);
        return name === "class" ? figure.place + " instructions" : name;
    };

    // The unit of a figure beside its name: "load sectors 4 per request".
    function unit_of(name, unit) {
        const each = unit.match(/^(\w+)\/(\w+)$/);
        if (each && name.endsWith(each[1])) return " per " + each[2];
        if (name.endsWith(unit)) return "";
        return unit.startsWith("x ") ? (name.endsWith("ideal") ? "\u00d7" : " \u00d7 " + unit.slice(2)) : " " + unit;
    }

    // Steps of an exact figure over commits: [{at, value}], where it changed, and at both ends.
    function steps_of(run, first, last) {
        const start = kernelwatch.value_at(run, first);
        return [...(start ? [{at: first, value: start[1]}] : []),
            ...run.filter(([at]) => at > first && at <= last).map(([at, value]) => ({at, value}))];
    }

    function exact_part(into, main, cell, exact, architecture, how, common) {
        const figures = figures_of(exact, cell, architecture);
        const heading = element("h3", {}, "Exact figures of ", link(cell.op + "/" + cell.rung, "rung", {op: cell.op, rung: cell.rung, machine: how.machine}));
        if (!figures.length) {
            into.append(heading, element("p", {class: "quiet"}, cell.device === "cpu" ? "None: this rung runs on the CPU, and only GPU kernels are taken apart and counted."
                : "None is recorded on this machine for " + cell.type + "."));
            return;
        }
        const [first, last] = [how.shown[0], how.shown[how.shown.length - 1]];
        const constant = new Map(), changed = [];
        for (const figure of figures) {
            const steps = steps_of(figure.run, first, last), known = steps.filter((step) => step.value !== null);
            if (!known.length) continue;
            if (new Set(known.map((step) => step.value)).size > 1) changed.push({...figure, steps});
            else {
                const compiled = figure.group.endsWith("static");
                const place = compiled ? "compiled" + (architecture ? " for " + architecture : "") : "counted on the emulator at " + figure.place.split(" ").slice(1).join(" ");
                const name = figure_title(figure), unit = (common.site.figures[figure.benchmark] || {}).unit || "";
                if (!constant.has(place)) constant.set(place, {since: known[0].at, words: []});
                constant.get(place).words.push(element("span", {class: "figure", "data-benchmark": figure.benchmark, "data-place": figure.place, "data-value": known[0].value},
                    name + " ", element("b", {}, text.exact(known[0].value)), unit_of(name, unit)));
            }
        }
        into.append(heading);
        if (!changed.length) into.append(element("p", {class: "quiet"}, "None of them changed between these commits."));
        for (const figure of changed) into.append(step_chart(main, figure, how, common));
        const count = d3.sum([...constant.values()], (each) => each.words.length);
        const unchanged = how.several && count ? element("details", {}, element("summary", {}, text.plural(count, "figure") + " did not change")) : into;
        if (unchanged !== into) into.append(unchanged);
        for (const [place, {since, words}] of constant) {
            unchanged.append(element("p", {class: "constant"}, element("span", {class: "quiet"}, "Unchanged, " + place + (since > first ? ", first recorded at " + text.hash(common.commits[since].hash) : "") + ": "),
                words.flatMap((word, index) => (index ? [" \u00b7 ", word] : [word]))));
        }
    }

    function step_chart(main, figure, how, common) {
        const known = figure.steps.map((step) => ({...step, x: how.place(step.at)}));
        const line = [...known, {at: how.shown[how.shown.length - 1], value: known[known.length - 1].value, x: how.place(how.shown[how.shown.length - 1])}];
        const unit = (common.site.figures[figure.benchmark] || {}).unit || "";
        const values = line.map((step) => step.value).filter((value) => value !== null);
        const [low, high] = d3.extent(values), room = (high - low || 1) * 0.25;
        const name = figure_title(figure), title = name + (name.endsWith(unit) ? "" : ", " + unit) + ", " + figure.place;
        const drawn = kernelwatch.plot(main, {
            height: 64, marginLeft: how.left, marginRight: how.right, marginTop: 8, marginBottom: 8,
            x: {...how.x, axis: null}, y: {axis: null, domain: [low - room, high + room]},
            marks: [
                Plot.ruleX(how.events, {x: "x", stroke: "var(--rule)"}),
                Plot.axisY([...new Set(values)].slice(0, 4), {label: null, tickSize: 3}),
                Plot.lineY(line, {x: "x", y: "value", curve: "step-after", stroke: "var(--ink)", strokeWidth: 1.5}),
                Plot.dot(known, {x: "x", y: "value", r: 3, fill: "var(--ink)", className: "step"}),
            ],
        }, title + ": " + known.filter((step) => step.value !== null).map((step) => text.hash(common.commits[step.at].hash) + " " + step.value).join(", "));
        kernelwatch.marked(drawn, ".step circle", known, (step) => ({benchmark: figure.benchmark, place: figure.place, at: step.at, value: step.value}));
        drawn.prepend(element("div", {class: "small"}, title));
        return drawn;
    }

    // --- the view --------------------------------------------------------------------------------------------------

    kernelwatch.view("history", "History", async (main, parameters) => {
        const machine = await kernelwatch.machine(parameters.get("machine"));
        const common = await kernelwatch.common();
        const {site, cells, commits} = common;
        const asked = parameters.getAll("cell");
        const unknown = asked.filter((key) => !(key in cells));
        if (unknown.length) throw new Error("no cell " + unknown[0] + " is recorded");
        const wanted = asked.length ? cells[asked[asked.length - 1]] : Object.fromEntries(parameters);
        const picked = nearest(cells, site, machine.details, wanted);
        const keys = asked.length ? [...new Set(asked)] : picked.key ? [picked.key] : [];
        const state = {cell: keys, machine: parameters.get("machine"), y: parameters.get("y"), to: parameters.get("to"),
            x: parameters.get("x"), rate: parameters.get("rate"), last: parameters.get("last")};
        const go = (changes) => kernelwatch.go("history", {...state, ...changes});
        if (!keys.length) throw new Error("no timed cell is recorded on " + machine.summary.name);

        // The series, and what of them is shown.
        const groups = [...new Set(keys.map((key) => cells[key].op + " " + cells[key].device))];
        const turns_of = new Map(groups.map((group) => [group, kernelwatch.turns(machine.details, group)]));
        const all = await Promise.all(keys.map((key) => series_of(key, machine, common, turns_of.get(cells[key].op + " " + cells[key].device))));
        const names = short_names(keys, cells);
        all.forEach((series, index) => Object.assign(series, {name: names[index], color: kernelwatch.colors[index % 8], symbol: kernelwatch.symbols[index % 8]}));
        const recorded = all.filter((series) => series.points.length);
        const ats = recorded.flatMap((series) => [series.points[0].at, series.points[series.points.length - 1].at]);
        const newest = Number(parameters.get("last")) || 0;
        const within = machine.details.commits.filter((at) => at >= d3.min(ats) && at <= d3.max(ats));
        const shown = newest ? within.slice(-newest) : within;
        const drawn_series = recorded.map((series) => ({...series, points: series.points.filter((point) => point.at >= shown[0]),
            changes: series.changes.filter(({at}) => at >= shown[0]), turns: series.turns.filter(({at}) => at >= shown[0])}));

        // The heading and the choices.
        const units = new Set(keys.map((key) => (cells[key].flops ? "GFLOP/s" : "GB/s")));
        const as_rate = parameters.get("rate") === "1" && keys.every((key) => kernelwatch.work(cells[key]));
        const relative = parameters.get("y") ? parameters.get("y") === "relative" : keys.length > 1;
        const dated = parameters.get("x") === "dated";
        const to_newest = parameters.get("to") === "newest";
        main.append(element("h1", {}, keys.length === 1 ? keys[0] : "History of " + text.plural(keys.length, "cell")),
            element("p", {class: "quiet"}, [...new Set(keys.map((key) => (cells[key].device === "cpu" ? machine.summary.cpu || "CPU" : kernelwatch.device_name(machine.summary))))].join(", ") + " \u00b7 " + machine.summary.name + " \u00b7 "
                + (as_rate ? [...units].join(", ") : "time") + ", median over fresh processes with its 95 % interval"));
        const replace = (part) => (value) => {
            const chosen = nearest(cells, site, machine.details, {...picked.found, [part]: value});
            go({cell: [...keys.slice(0, -1), chosen.key]});
        };
        const range = [["", "all " + within.length], ...[30, 100, 300, 1000].filter((count) => count < within.length).map((count) => [count, "newest " + count])];
        main.append(
            element("div", {class: "controls", role: "group", "aria-label": "Cell"}, PARTS.map((part) => choice(part, picked.options[part], picked.found[part], replace(part))),
                keys.length < 8 && picked.options.rung.length + picked.options.shape.length > 2 ? element("button", {type: "button", onclick: () => {
                    const {rung, shape} = picked.options;  // another rung of the same size, or the same rung at another size
                    const others = [...rung.map((each) => ({...picked.found, rung: each})), ...shape.map((each) => ({...picked.found, shape: each}))]
                        .map((each) => nearest(cells, site, machine.details, each).key).filter((key) => !keys.includes(key));
                    if (others.length) go({cell: [...keys, others[0]]});
                }}, "Add a cell") : null),
            element("div", {class: "controls", role: "group", "aria-label": "Axes"},
                choice("show", [["", "time"], ["1", units.size === 1 ? [...units][0] : "rate"]], as_rate ? "1" : "", (rate) => go({rate})),
                choice("as", [["absolute", "absolute"], ["relative", "change in %"]], relative ? "relative" : "absolute", (y) => go({y})),
                relative ? choice("from", [["", "the first commit shown"], ["newest", "the newest commit"]], to_newest ? "newest" : "", (to) => go({to})) : null,
                choice("commits", range, newest || "", (last) => go({last})),
                choice("spaced", [["", "evenly"], ["dated", "by date"]], dated ? "dated" : "", (x) => go({x})),
                site.machines.length > 1 ? choice("machine", site.machines.map((each) => each.name), machine.summary.name, (name) => go({machine: name})) : null));
        for (const series of all.filter((each) => !each.points.length)) {
            main.append(element("p", {class: "warn"}, series.key + " was never timed on " + machine.summary.name + "."));
        }
        if (!recorded.length) return;

        // Values in the unit that is shown.
        const values = drawn_series.flatMap((series) => series.points.map((point) => point.s).filter(Boolean));
        const [unit, scale] = [["s", 1], ["ms", 1e-3], ["\u00b5s", 1e-6], ["ns", 1e-9]].find(([, each]) => d3.median(values) >= each) || ["ns", 1e-9];
        const rate_unit = units.size === 1 ? [...units][0] : "GB/s or GFLOP/s";
        const index_of = new Map(shown.map((at, index) => [at, index]));
        const position = (at) => (index_of.has(at) ? index_of.get(at) : d3.bisectLeft(shown, at));
        const place = (at) => (dated ? new Date(commits[at].date) : position(at));
        for (const series of drawn_series) {
            const raw = (seconds) => (as_rate ? kernelwatch.work(series.cell) / Math.max(0, seconds) : seconds);  // an interval of seconds may reach below 0
            const known = series.points.filter((point) => point.s);
            const reference = known.length ? raw((to_newest ? known[known.length - 1] : known[0]).s) : 1;
            const value = (seconds) => (seconds === null ? null : relative ? 100 * (raw(seconds) / reference - 1) : raw(seconds) / (as_rate ? 1e9 : scale));
            Object.assign(series, {raw, value, known, newest: known[known.length - 1]});
            for (const point of series.points) {
                point.x = place(point.at);
                point.value = value(point.s);
                [point.y1, point.y2] = point.low === null || point.high === null ? [point.value, point.value] : [value(point.low), value(point.high)].sort((a, b) => a - b);
            }
            // What would not be noticed: the minimum detectable change about the level since the last change.
            const since = d3.max(series.changes.map(({at}) => at)) || shown[0];
            const level = d3.median(series.points.filter((point) => point.s && point.at >= since), (point) => raw(point.s));
            const seconds = as_rate ? kernelwatch.work(series.cell) / level : level;
            series.unseen = series.smallest > 0 && level ? {since, level, low: value(seconds * (1 - series.smallest)), high: value(seconds * (1 + series.smallest))} : null;
        }
        const one = drawn_series.length === 1 ? drawn_series[0] : null;
        const points = drawn_series.flatMap((series) => series.points.map((point) => ({...point, series})));
        const known = points.filter((point) => point.value !== null);
        const said = (series) => ({
            noun: as_rate ? "Rate" : "Time", raw: series.raw,
            say: (seconds, digits) => (as_rate ? text.rate(series.raw(seconds), series.cell.flops ? "GFLOP/s" : "GB/s", digits) : text.time(seconds, digits)),
            interval: (point, digits) => (point.low === null ? "" : as_rate
                ? [point.high, point.low].map((seconds) => (seconds > 0 ? text.digits(series.raw(seconds) / 1e9, digits + 1) : "\u221e")).join(" \u2013 ") + " " + (series.cell.flops ? "GFLOP/s" : "GB/s")
                : text.bounds(point.low, point.high, digits + 1)),
        });

        // Marks for what was found, in rows above the picture.
        const width = Math.max(300, Math.min(main.clientWidth || parseFloat(main.style.width) || 960, 1280));
        const small = width < 600;
        const left = 62, right = one || small ? 34 : Math.min(240, d3.max(names, width_of) + 30);
        const happened = [
            ...drawn_series.flatMap((series) => series.changes.map(({event, change, at, from}) => ({kind: event.kind, series, event, change, at, from}))),
            ...[...turns_of].flatMap(([group, turns]) => turns.filter((turn) => turn.at >= shown[0] && turn.at <= shown[shown.length - 1])
                .map((turn) => ({kind: "turn", group, at: turn.at, why: turn.why}))),
        ].map((mark) => ({...mark, x: place(mark.at)})).sort((a, b) => a.at - b.at);
        const x = {type: dated ? "utc" : "linear", domain: d3.extent(shown, place)};
        if (+x.domain[0] === +x.domain[1]) x.domain = dated ? [-1, 1].map((days) => new Date(+x.domain[0] + days * 86400000)) : [-1, 1];
        const scale_x = (dated ? d3.scaleUtc : d3.scaleLinear)(x.domain, [left, width - right]);
        for (const mark of happened) {
            if (mark.kind === "turn") mark.label = "\u25c6 " + (small || mark.why[0].length > 40 ? "conditions" : mark.why[0] + (mark.why.length > 1 ? " and " + (mark.why.length - 1) + " more" : ""));
            else {
                mark.label = (mark.kind === "environment" ? "\u25c7 " : kernelwatch.arrow(mark.change.change) + " ") + (one || small ? "" : mark.series.name + " ") + text.change(mark.change.change)
                    + (small ? "" : mark.kind === "environment" ? " environment" : ", " + verdict_words(mark.event, mark.change));
            }
            mark.width = width_of(mark.label);
            mark.px = scale_x(mark.x);
            mark.flipped = mark.px + mark.width > width - 4;
        }
        const rows = rows_of(happened);
        const top = 24 + 17 * rows;

        // The picture.
        const middles = d3.extent(known, (point) => point.value), log = !relative && middles[1] > 5 * middles[0];
        const extent = [...known.flatMap((point) => [point.y1, point.value, point.y2]), ...(one && one.unseen ? [one.unseen.low, one.unseen.high] : [])].filter((end) => isFinite(end) && (!log || end > 0));
        const domain = relative ? kernelwatch.domain([0, ...extent], 0) : log ? [d3.min(extent) / 1.1, d3.max(extent) * 1.1] : kernelwatch.domain(extent, 0.01);
        for (const point of drawn_series.flatMap((series) => series.points)) {
            if (point.value === null) continue;
            if (!isFinite(point.y2)) point.y2 = domain[1];
            if (log && point.y1 <= 0) point.y1 = domain[0];
        }
        const many = known.length > DOTS;
        const every = Math.max(1, Math.ceil(shown.length / Math.max(2, Math.floor((width - left - right) / 92))));
        const ticks = shown.map((_, index) => index).filter((index) => (shown.length - 1 - index) % every === 0);
        const amount = relative ? "change of the " + (as_rate ? "rate" : "time") + " from the " + (to_newest ? "newest" : "first") + " commit (%)"
            : (as_rate ? rate_unit : "time (" + unit + ")") + (log ? ", logarithmic" : "");
        const powers = log ? d3.range(Math.floor(Math.log10(domain[0])), Math.ceil(Math.log10(domain[1])) + 1) : [];
        const levels = (powers.length > 4 ? [1] : [1, 2, 5]).flatMap((digit) => powers.map((power) => digit * 10 ** power)).filter((level) => level >= domain[0] && level <= domain[1]);
        const marks = [
            log ? Plot.axisY(levels, {label: null, tickFormat: (level) => level.toLocaleString("en-US")}) : null,
            Plot.gridY(...(log ? [levels] : []), {stroke: "var(--rule)", strokeOpacity: 0.6}),
            one && one.unseen ? Plot.rect([one.unseen], {x1: (band) => place(band.since), x2: x.domain[1], y1: "low", y2: "high", fill: "var(--quiet)", fillOpacity: 0.13, className: "unseen"}) : null,
            relative ? Plot.ruleY([0], {stroke: "var(--quiet)"}) : null,
            Plot.ruleX(happened, {x: "x", stroke: "var(--quiet)", strokeDasharray: (mark) => (mark.kind === "turn" ? "4 3" : null), strokeOpacity: 0.7}),
        ];
        for (const series of drawn_series) {
            const drawn = thinned(series.points, Math.round(width / 3));
            const sizes = d3.rollup(series.points, (each) => each.length, (point) => point.stretch);
            const alone = series.points.filter((point) => point.value !== null && sizes.get(point.stretch) === 1);  // no band shows their interval
            marks.push(
                Plot.areaY(drawn, {x: "x", y1: "y1", y2: "y2", z: "stretch", fill: series.color, fillOpacity: 0.22, className: "band", defined: (point) => point.value !== null}),
                many ? Plot.areaY(drawn, {x: "x", y1: "v1", y2: "v2", z: "stretch", fill: series.color, fillOpacity: 0.3, defined: (point) => point.value !== null}) : null,
                Plot.ruleX(many ? [] : alone, {x: "x", y1: "y1", y2: "y2", stroke: series.color, strokeWidth: 2}),
                Plot.lineY(drawn, {x: "x", y: "value", z: "stretch", stroke: series.color, strokeWidth: 1.6, className: "line"}),
            );
            if (!many) {
                marks.push(Plot.dot(series.points, {x: "x", y: "value", r: 3.6, symbol: series.symbol, stroke: series.color, strokeWidth: 1.5,
                    fill: (point) => (point.limits.length ? "var(--page)" : series.color), className: "point of" + keys.indexOf(series.key)}));
            }
        }
        const alt = keys.join(", ") + " over " + text.plural(shown.length, "commit") + " on " + machine.summary.name + ", "
            + drawn_series.map((series) => (series.newest ? "newest " + said(series).say(series.newest.s, digits_of(series.newest)) : "no time")).join(", ");
        const figure = kernelwatch.plot(main, {
            height: (small ? 250 : 330) + top, marginLeft: left, marginRight: right, marginTop: top + 14, marginBottom: 42,
            x: {...x, axis: null}, y: {type: log ? "log" : "linear", domain, label: null, ...(log ? {axis: null} : {})},
            marks: [...marks, dated ? Plot.axisX({label: "date of the commit", labelArrow: "none", ticks: small ? 4 : 8}) : Plot.axisX(ticks, {label: small ? "commits" : "commit, measured ones evenly spaced", labelArrow: "none", tickFormat: (index) => text.hash(commits[shown[index]].hash)})].filter(Boolean),
        }, alt);
        const svg = figure.querySelector("svg"), picture = d3.select(svg);
        for (const series of drawn_series) {
            if (many) continue;
            kernelwatch.marked(svg, ".point.of" + keys.indexOf(series.key) + " > *", series.points, (point) => ({key: series.key, at: point.at, value: point.s, low: point.low, high: point.high}));
        }
        const scale_y = svg.scale("y");
        picture.append("text").attr("class", "amount").attr("x", 4).attr("y", top).attr("text-anchor", "start").attr("fill", "var(--quiet)").text(amount);
        for (const point of points.filter((each) => each.failed).slice(-200)) {
            picture.append("text").attr("class", "failed bad").attr("x", scale_x(point.x)).attr("y", (small ? 250 : 330) + top - 46).attr("text-anchor", "middle")
                .attr("fill", "var(--bad)").attr("data-at", point.at).text("\u00d7").append("title").text("failed: " + point.failed);
        }
        for (const mark of happened) {
            const tone = mark.kind === "turn" || mark.kind === "environment" || (mark.event && mark.event.verdict === "refuted") ? "var(--quiet)"
                : mark.kind === "improvement" ? "var(--good)" : "var(--bad)";
            const label = picture.append("text").attr("class", "mark").attr("x", mark.px + (mark.flipped ? -5 : 5)).attr("y", top - 20 - 17 * mark.row)
                .attr("text-anchor", mark.flipped ? "end" : "start").attr("fill", tone).attr("data-at", mark.at)
                .attr("data-kind", mark.kind).attr("data-change", mark.change ? mark.change.change : null).text(mark.label);
            label.append("title").text(mark.kind === "turn" ? mark.why.join(", ") : mark.event.last.subject);
            picture.insert("path", "g").attr("d", "M" + mark.px + "," + (top - 32 - 17 * mark.row) + "V" + (top + 14)).attr("stroke", "var(--quiet)").attr("stroke-opacity", 0.7);
        }
        if (!one && !small) {  // names at the ends of the lines, apart from each other
            const ends = drawn_series.filter((series) => series.newest).map((series) => ({series, y: scale_y.apply(series.newest.value)})).sort((a, b) => a.y - b.y);
            ends.forEach((end, index) => { end.y = index ? Math.max(end.y, ends[index - 1].y + 15) : end.y; });
            const bottom = (small ? 250 : 330) + top - 42;
            for (let index = ends.length - 1; index >= 0; index--) ends[index].y = Math.min(ends[index].y, bottom - 15 * (ends.length - 1 - index));
            for (const {series, y} of ends) {
                picture.append("path").attr("transform", "translate(" + (width - right + 15) + "," + y + ")").attr("fill", series.color).attr("d", sign_of(series, 36));
                picture.append("text").attr("class", "end").attr("x", width - right + 24).attr("y", y + 4).attr("text-anchor", "start").attr("fill", "currentColor").text(series.name);
            }
        }
        const box = element("div", {class: "pointed", tabindex: 0, role: "group", "aria-label": "Commits of the picture: arrow keys go from commit to commit, Enter opens one"});
        box.append(figure);
        main.append(key_of(drawn_series, one, said, go, keys, common), box);
        point_out(box, svg, points.filter((point) => point.value !== null), (point) => scale_x(point.x), (point) => scale_y.apply(point.value),
            (point) => tip_of(point, said(point.series), common, one), (point) => kernelwatch.go("commit", {at: point.at}));
        const notes = [
            many && points.length > 2 * Math.round(width / 3) ? "Several commits share a pixel: the line is their median, the darker area their extremes, the lighter one the ends of their intervals." : null,
            many ? null : points.some((point) => point.limits.length) ? "A hollow symbol met a limit of the device; the table says which." : null,
            points.some((point) => point.failed) ? "\u00d7 marks a commit at which the cell failed." : null,
            one && one.unseen ? "The gray stripe is the minimum detectable change, \u00b1" + text.percent(one.smallest, 2) + " about the median since the last change: smaller steps are not told from noise." : null,
            one && one.judged && !one.unseen ? "The minimum detectable change is not known: too few commits were measured since the conditions last changed." : null,
            one && !one.judged ? "This cell is not judged, so no minimum detectable change is known." : null,
            shown.length === 1 ? "Only one commit is measured, " + text.hash(commits[shown[0]].hash) + " of " + text.date(commits[shown[0]].date) + "." : null,
        ].filter(Boolean);
        main.append(element("p", {class: "quiet small"}, notes.join(" ") + " ",
            one && one.key in machine.details.noise ? "Measuring one commit several times (A/A) gave this cell a coefficient of variation of " + text.percent(machine.details.noise[one.key], 3) + ". " : "",
            link("Can figures of this machine be trusted?", "devices", {machine: parameters.get("machine")})));
        if (shown.length > 1) main.append(happened_list(happened, common, said, one));

        // What explains a step: exact figures of the same rungs on the same axis.
        const how = {shown, several: !one, place, x, left, right, machine: parameters.get("machine"), events: happened.filter((mark) => mark.kind !== "turn")};
        const below = element("section", {class: "exact"}, element("h2", {}, "Exact figures"),
            element("p", {class: "quiet small"}, "They have no noise: registers and instructions as compiled, memory accesses as counted. One that changes where the time does is likely its cause."));
        main.append(below);
        const rungs = new Map(keys.map((key) => [cells[key].op + "/" + cells[key].rung + " " + cells[key].type, cells[key]]));
        const facts = (await machine.load("at/" + machine.summary.newest)).facts;
        for (const cell of rungs.values()) {
            const file = machine.details.exact[cell.op];
            const capability = (facts[cell.op + " gpu"] || {}).compute_capability;
            exact_part(below, main, cell, file ? await machine.load(file) : null, capability ? "sm_" + capability : "", how, common);
        }
        main.append(element("h2", {}, "Values"));
        for (const series of drawn_series) main.append(values_table(series, said(series), common, one ? "" : series.key));
    });

    const sign_of = (series, size) => d3.symbol(d3["symbol" + series.symbol[0].toUpperCase() + series.symbol.slice(1)], size)();

    // The cells of the picture: symbol, name, newest figure; each can be taken out.
    function key_of(drawn, one, said, go, keys, common) {
        return element("ul", {class: "cells"}, drawn.map((series) => {
            const sign = document.createElementNS("http://www.w3.org/2000/svg", "svg");
            sign.setAttribute("width", 14);
            sign.setAttribute("height", 14);
            sign.setAttribute("aria-hidden", "true");
            d3.select(sign).append("path").attr("transform", "translate(7,7)").attr("fill", series.color)
                .attr("d", sign_of(series, 60));
            const {newest} = series, how = said(series), digits = newest ? digits_of(newest) : 4;
            return element("li", {"data-key": series.key}, sign, " ", one ? element("span", {class: "quiet"}, "newest: ") : element("span", {}, series.key + ": "),
                newest ? [element("b", {}, how.say(newest.s, digits)), " (" + how.interval(newest, digits) + ") at ", link(text.hash(common.commits[newest.at].hash), "commit", {at: newest.at}, {class: "hash"})] : "no time",
                series.smallest && !one ? element("span", {class: "quiet"}, ", detectable " + text.percent(series.smallest, 2)) : null,
                one ? null : [" ", element("button", {type: "button", class: "remove", "aria-label": "Take out " + series.key, onclick: () => go({cell: keys.filter((key) => key !== series.key)})}, "\u00d7")]);
        }));
    }

    function tip_of(point, how, common, one) {
        const commit = common.commits[point.at], digits = digits_of(point);
        const facts = [point.clock ? "SM clock " + text.digits(point.clock, 4) + " MHz" : null, point.temperature ? text.digits(point.temperature, 3) + " \u00b0C" : null,
            point.power ? text.digits(point.power, 3) + " W" : null].filter(Boolean).join(" \u00b7 ");
        return [
            one ? null : element("div", {class: "small"}, point.series.key),
            element("div", {}, element("b", {}, how.say(point.s, digits)), " (" + how.interval(point, digits) + ")"),
            element("div", {}, element("span", {class: "hash"}, text.hash(commit.hash)), " " + text.date(commit.date)),
            element("div", {class: "subject"}, commit.subject),
            facts ? element("div", {class: "quiet small"}, facts) : null,
            point.limits.length ? element("div", {class: "warn small"}, "limit met: " + point.limits.join(", ")) : null,
        ];
    }

    // One handler for all points of a picture: the nearest is described in a box and can be opened.
    function point_out(box, svg, points, x, y, describe, open) {
        if (!points.length) return;
        const tip = element("div", {class: "tip", role: "status", hidden: true});
        box.append(tip);
        const ring = d3.select(svg).append("circle").attr("r", 7).attr("fill", "none").attr("stroke", "currentColor").attr("stroke-width", 2).attr("visibility", "hidden");
        const places = points.map((point) => [x(point), y(point)]);
        let active = -1;
        function show(index) {
            active = index;
            const [px, py] = places[index];
            ring.attr("cx", px).attr("cy", py).attr("visibility", "visible");
            tip.replaceChildren(...describe(points[index]).filter(Boolean));
            tip.dataset.at = points[index].at;
            tip.hidden = false;
            const room = box.clientWidth, wide = tip.offsetWidth, high = tip.offsetHeight;
            tip.style.left = Math.max(0, px + wide + 22 > room ? (px - wide - 16 >= 0 ? px - wide - 16 : Math.min(room - wide, Math.max(0, px - wide / 2))) : px + 16) + "px";
            const beside = px + wide + 22 <= room || px - wide - 16 >= 0;
            tip.style.top = Math.max(0, beside ? py - high / 2 : py + 16) + "px";
        }
        function hide() {
            tip.hidden = true;
            ring.attr("visibility", "hidden");
            active = -1;
        }
        function nearest_to(event) {
            const [px, py] = d3.pointer(event, svg);
            let best = -1, least = Infinity;
            for (let index = 0; index < places.length; index++) {
                const distance = Math.hypot(places[index][0] - px, 0.3 * (places[index][1] - py));
                if (distance < least) [best, least] = [index, distance];
            }
            return best;
        }
        let touched = -1;
        svg.addEventListener("pointerdown", (event) => { touched = event.pointerType === "mouse" ? -2 : active; });
        svg.addEventListener("pointermove", (event) => show(nearest_to(event)));
        box.addEventListener("pointerleave", hide);
        svg.addEventListener("click", (event) => {
            const index = nearest_to(event);
            if (touched === -2 || touched === index) open(points[index]);  // a finger points first, then opens
            else show(index);
        });
        box.addEventListener("blur", hide);
        box.addEventListener("keydown", (event) => {
            if (event.key === "Enter" && active >= 0) return open(points[active]);
            if (event.key === "Escape") return hide();
            const own = active < 0 ? points[points.length - 1].series : points[active].series;
            const same = points.map((_, index) => index).filter((index) => points[index].series === own);
            const at = same.indexOf(active);
            const others = [...new Set(points.map((point) => point.series))];
            const goal = {ArrowLeft: () => same[at < 0 ? same.length - 1 : Math.max(0, at - 1)], ArrowRight: () => same[at < 0 ? 0 : Math.min(same.length - 1, at + 1)],
                Home: () => same[0], End: () => same[same.length - 1],
                ArrowDown: () => other(1), ArrowUp: () => other(-1)}[event.key];
            function other(step) {
                const next = others[(others.indexOf(own) + step + others.length) % others.length];
                const theirs = points.map((_, index) => index).filter((index) => points[index].series === next);
                return active < 0 ? theirs[theirs.length - 1] : d3.least(theirs, (index) => Math.abs(points[index].at - points[active].at));
            }
            if (!goal) return undefined;
            event.preventDefault();
            show(goal());
            return undefined;
        });
    }

    // What was found at these commits, in words.
    function happened_list(happened, common, said, one) {
        if (!happened.length) return element("p", {}, "No change was found between these commits, and the conditions stayed the same.");
        const commit = (at) => [link(text.hash(common.commits[at].hash), "commit", {at}, {class: "hash"}), " " + text.date(common.commits[at].date) + ", ", element("span", {class: "subject"}, common.commits[at].subject)];
        return element("section", {}, element("h2", {}, "What happened"), element("ul", {class: "happened"}, [...happened].reverse().map((mark) => {
            if (mark.kind === "turn") {
                return element("li", {"data-kind": "turn", "data-at": mark.at}, element("b", {}, "\u25c6 Conditions of " + kernelwatch.group_name(mark.group) + " changed: "), mark.why.join(", "), ". Since ", commit(mark.at),
                    ". Figures on its two sides are not compared.");
            }
            const {event, change, series} = mark;
            const sign = kernelwatch.arrow(change.change), how = said(series);
            const better = change.change < 0;
            const tone = mark.kind === "environment" || event.verdict === "refuted" ? "" : better ? "good" : "bad";
            const measured = change.interval.every((each) => each !== null) ? " (" + change.interval.map((each) => text.change(each)).join(" to ") + ")" : "";
            const verdict = change.verdict && change.verdict.change !== null
                ? ": " + text.change(change.verdict.change) + " (" + text.percent(change.verdict.low, 2) + " to " + text.percent(change.verdict.high, 2) + ") in " + text.plural(change.verdict.turns, "turn") : "";
            return element("li", {"data-kind": mark.kind, "data-at": mark.at, "data-change": change.change},
                element("b", {class: tone}, (mark.kind === "environment" ? "\u25c7 " : sign + " ") + (better ? "faster" : "slower") + ", time " + text.change(change.change)), measured + ", " + (mark.kind === "environment" ? "" : mark.kind + ", "),
                element("b", {}, verdict_words(event, change)), verdict + ". ", element("span", {class: "quiet"}, (one ? "" : series.key + ": ") + how.say(change.before) + " \u2192 " + how.say(change.after) + ". "),
                event.why ? event.why[0].toUpperCase() + event.why.slice(1) + ". " : "", event.gradual ? "Many small changes since " + text.hash(event.first.hash) + ". " : event.commits > 1 && mark.kind !== "environment" ? text.plural(event.commits - 1, "commit") + " before it " + (event.commits > 2 ? "were" : "was") + " not measured and may be the cause. " : "",
                change.undone ? "It has been undone since. " : "", change.limits.length ? "Limits met: " + change.limits.join(", ") + ". " : "", "At ", commit(mark.at), ".");
        })), element("p", {class: "small"}, link("All events", "regressions")));
    }
}
