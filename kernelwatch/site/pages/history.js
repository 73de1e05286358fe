// The history of one cell or several: time or rate by commit, what was found there, and the exact figures of the rung
// below on the same axis, so that a step and its cause stand together.
"use strict";

{
    const {element, text, link, choice, table, happenings} = kernelwatch;
    const {PARTS, nearest, eventful, short_names} = kernelwatch.choosing;
    const DOTS = 240;  // more points than these have no dots of their own
    const ROWS = 200;  // of the table, at first

    const digits_of = (point) => text.significant(point.s, point.low, point.high);

    // A change with enough digits that it does not read as nothing.
    const change_text = (change) => text.change(change, Math.abs(change) < 0.001 ? 3 : undefined);

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
        const judged = common.events.series.find((each) => each.cell === key && each.configured && kernelwatch.is_of(each.place, machine.summary.name));
        return {key, cell, points, judged: Boolean(judged), smallest: judged ? judged.smallest : undefined, since: judged && judged.since, until: judged && judged.until, turns,
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

    // --- the table -------------------------------------------------------------------------------------------------

    function values_table(series, how, common, named) {
        const columns = [{name: "Commit"}, {name: "Date"}, {name: "Subject"},
            {name: how.noun, number: true, title: "median over processes"}, {name: "95 % interval", number: true},
            {name: "Change", number: true, title: "since the measured commit before; bold where an event begins: of the time, as the event says"},
            {name: "SM clock", number: true}, {name: "Temperature", number: true}, {name: "Power", number: true}, {name: "Limits"}];
        const points = series.points, before = [];  // before: the last time known before each commit
        for (let index = 0, last = null; index < points.length; index++) {
            before.push(last);
            last = points[index].s ? points[index] : last;
        }
        const found = new Map(series.changes.filter(({event, change}) => event.kind !== "environment" && change.state !== "refuted").map(({change, at}) => [at, change]));
        const row = (index) => {
            const point = points[index], commit = common.commits[point.at], event = found.get(point.at);
            const last = before[index];
            const digits = digits_of(point);
            return [
                link(text.hash(commit.hash), "commit", {hash: text.hash(commit.hash)}, {class: "hash"}), text.date(commit.date),
                element("span", {class: "subject"}, commit.subject),
                point.s ? element("span", {"data-at": point.at, "data-s": point.s}, how.say(point.s, digits)) : element("span", {class: "bad"}, "failed"),
                point.s ? how.interval(point, digits) : "",
                event ? element("b", {title: "of the time, as the event says", "data-change": event.size}, kernelwatch.size(event)) : point.s && last && last.stretch === point.stretch ? change_text(how.raw(point.s) / how.raw(last.s) - 1) : "",
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

    // --- the view --------------------------------------------------------------------------------------------------

    kernelwatch.view("history", async (main, parameters) => {
        if (parameters.get("series") || !(await kernelwatch.load("site")).described) return kernelwatch.values.history(main, parameters);
        const common = await kernelwatch.common(), {names: named, alone} = kernelwatch.links.machines(common.site, common.events, parameters.get("machine"));
        if (alone) return kernelwatch.links.history(main, alone, named, parameters.getAll("cell"), common.events);
        const machine = await kernelwatch.machine(parameters.get("machine"));
        const {site, cells, commits} = common;
        const whole = PARTS.every((part) => !parameters.get(part)) && !parameters.has("cell") ? eventful(common, machine) : "";
        const asked = whole ? [whole] : parameters.getAll("cell");
        const unknown = asked.filter((key) => !(key in cells));
        if (unknown.length) throw new Error("no cell " + unknown[0] + " is recorded");
        const wanted = asked.length ? cells[asked[asked.length - 1]] : Object.fromEntries(parameters);
        const picked = nearest(cells, site, machine.details, wanted);
        const keys = asked.length ? [...new Set(asked)] : picked.key ? [picked.key] : [];
        const state = {cell: keys, machine: parameters.get("machine"), y: parameters.get("y"), to: parameters.get("to"),
            x: parameters.get("x"), rate: parameters.get("rate"), last: parameters.get("last")};
        const go = (changes) => kernelwatch.go("history", {...state, ...changes});
        const machines = named.length > 1 ? choice("machine", named, machine.summary.name, (name) => go({machine: name})) : null;
        if (!keys.length) {
            main.append(element("h1", {}, "History"), element("p", {}, "No time is recorded on " + machine.summary.name + "; ",
                link("the Regressions page", "regressions", {machine: machine.summary.name}), " shows what changed in the exact figures."),
                machines ? element("div", {class: "controls"}, machines) : null);
            return undefined;
        }

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
                machines));
        for (const series of all.filter((each) => !each.points.length)) {
            main.append(element("p", {class: "warn"}, series.key + " was never timed on " + machine.summary.name + "."));
        }
        if (!recorded.length) {
            await kernelwatch.links.section(main, all, machine.summary.name, common.events);
            return undefined;
        }

        // Values in the unit that is shown.
        const values = drawn_series.flatMap((series) => series.points.map((point) => point.s).filter(Boolean));
        const [unit, scale] = [["s", 1], ["ms", 1e-3], ["\u00b5s", 1e-6], ["ns", 1e-9]].find(([, each]) => d3.median(values) >= each) || ["ns", 1e-9];
        const rate_unit = units.size === 1 ? [...units][0] : "GB/s or GFLOP/s";
        const index_of = new Map(shown.map((at, index) => [at, index]));
        const position = (at) => (index_of.has(at) ? index_of.get(at) : d3.bisectLeft(shown, at));
        const positions = kernelwatch.positions(commits);
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
            // What would not be noticed: the minimum detectable change about the level that it was computed from.
            const [since, until] = [series.since, series.until].map((hash) => positions.get(hash));
            const seconds = d3.median(recorded.find((each) => each.key === series.key).points.filter((point) => point.s && point.at >= since && point.at <= until), (point) => point.s);
            series.unseen = series.smallest > 0 && seconds && until >= shown[0]
                ? {since: Math.max(since, shown[0]), until, low: value(seconds * (1 - series.smallest)), high: value(seconds * (1 + series.smallest))} : null;
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
        const left = 62, right = one || small ? 34 : Math.min(240, d3.max(names, happenings.width_of) + 30);
        // Whether links compare the commits on both sides of changed conditions, for each cell that was measured on both.
        const joins = await kernelwatch.links.joining(machine.summary.name, common.events);
        const is_joined = (group, at) => drawn_series.filter((series) => series.cell.op + " " + series.cell.device === group).every((series) => {
            const [from, to] = [series.known.findLast((point) => point.at < at), series.known.find((point) => point.at >= at)];
            return !from || !to || joins(series.key, from.at, to.at);
        });
        const happened = [
            ...drawn_series.flatMap((series) => series.changes.filter(({change, at}) => !change.linked || index_of.has(at)).map(({event, change, at, from}) => ({kind: event.kind, series, event, change, at, from}))),
            ...[...turns_of].flatMap(([group, turns]) => turns.filter((turn) => turn.at >= shown[0] && turn.at <= shown[shown.length - 1])
                .map((turn) => ({kind: "turn", group, at: turn.at, why: turn.why, joined: is_joined(group, turn.at)}))),
        ].map((mark) => ({...mark, x: place(mark.at)})).sort((a, b) => a.at - b.at);
        for (const mark of happened.filter((each) => each.change)) mark.causes = await kernelwatch.exact.causes(machine, mark.at, mark.series.cell);
        const x = {type: dated ? "utc" : "linear", domain: d3.extent(shown, place)};
        if (+x.domain[0] === +x.domain[1]) x.domain = dated ? [-1, 1].map((days) => new Date(+x.domain[0] + days * 86400000)) : [-1, 1];
        const scale_x = (dated ? d3.scaleUtc : d3.scaleLinear)(x.domain, [left, width - right]);
        for (const mark of happened) {
            if (mark.kind === "turn") mark.label = "\u25c6 " + (small || mark.why[0].length > 40 ? "conditions" : mark.why[0] + (mark.why.length > 1 ? " and " + (mark.why.length - 1) + " more" : ""));
            else {
                mark.label = (mark.kind === "environment" ? "\u25c7 " : kernelwatch.arrow(mark.change.size) + " ") + (one || small ? "" : mark.series.name + " ") + kernelwatch.size(mark.change)
                    + (small ? "" : mark.kind === "environment" ? " environment" : ", " + kernelwatch.words(mark.change));
            }
            mark.width = happenings.width_of(mark.label);
            mark.px = scale_x(mark.x);
            mark.flipped = mark.px + mark.width > width - 4;
        }
        const rows = happenings.rows_of(happened);
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
            one && one.unseen ? Plot.rect([one.unseen], {x1: (band) => place(band.since), x2: (band) => place(band.until), y1: "low", y2: "high", fill: "var(--quiet)", fillOpacity: 0.13, className: "unseen"}) : null,
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
            const tone = mark.change && kernelwatch.tone(mark.kind, mark.change) ? "var(--" + kernelwatch.tone(mark.kind, mark.change) + ")" : "var(--quiet)";
            const label = picture.append("text").attr("class", "mark").attr("x", mark.px + (mark.flipped ? -5 : 5)).attr("y", top - 20 - 17 * mark.row)
                .attr("text-anchor", mark.flipped ? "end" : "start").attr("fill", tone).attr("data-at", mark.at)
                .attr("data-kind", mark.kind).attr("data-change", mark.change ? mark.change.size : null).attr("data-state", mark.change ? mark.change.state : null).text(mark.label);
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
        // Full runs of which no two compare say nothing of a change: what links say comes first.
        const lonely = drawn_series.every((series) => new Set(series.known.map((point) => point.stretch)).size === series.known.length);
        const is_linked = Boolean(kernelwatch.links.reach(common.events, machine.summary.name));
        if (is_linked && lonely) {
            await kernelwatch.links.section(main, drawn_series, machine.summary.name, common.events);
            main.append(element("h2", {}, "By full runs"), element("p", {class: "quiet small"}, "Each of these was measured under other conditions, such as on another GPU, so nothing joins them."));
        }
        const box = element("div", {class: "pointed", tabindex: 0, role: "group", "aria-label": "Commits of the picture: arrow keys go from commit to commit, Enter opens one"});
        box.append(figure);
        main.append(key_of(drawn_series, one, said, go, keys, common), box);
        kernelwatch.point_out(box, svg, points.filter((point) => point.value !== null), (point) => scale_x(point.x), (point) => scale_y.apply(point.value),
            (point) => tip_of(point, said(point.series), common, one), (point) => kernelwatch.go("commit", {hash: text.hash(common.commits[point.at].hash)}));
        const notes = [
            many && points.length > 2 * Math.round(width / 3) ? "Several commits share a pixel: the line is their median, the darker area their extremes, the lighter one the ends of their intervals." : null,
            many ? null : points.some((point) => point.limits.length) ? "A hollow symbol met a limit of the device; the table says which." : null,
            points.some((point) => point.failed) ? "\u00d7 marks a commit at which the cell failed." : null,
            one && one.unseen ? "The gray stripe is the minimum detectable change, \u00b1" + text.percent(one.smallest, 2) + " about the median of the commits under it, those since the last change of the time or of the conditions: smaller steps are not told from noise." : null,
            one && one.judged && !one.unseen ? "The minimum detectable change is not known: too few commits were measured since the conditions last changed." : null,
            one && !one.judged ? "This cell is not judged, so no minimum detectable change is known." : null,
            shown.length === 1 ? "Only one commit is measured, " + text.hash(commits[shown[0]].hash) + " of " + text.date(commits[shown[0]].date) + "." : null,
        ].filter(Boolean);
        main.append(element("p", {class: "quiet small"}, notes.join(" ") + " ",
            one && one.key in machine.details.noise ? "Measuring one commit several times (A/A) gave this cell a coefficient of variation of " + text.percent(machine.details.noise[one.key], 3) + ". " : "",
            link("Can figures of this machine be trusted?", "devices", {machine: parameters.get("machine")})));
        if (shown.length > 1) main.append(happenings.list(happened, common, said, one));
        if (is_linked && !lonely) await kernelwatch.links.section(main, drawn_series, machine.summary.name, common.events);

        // What explains a step: exact figures of the same rungs on the same axis.
        const how = {shown, several: !one, place, x, left, right, machine: parameters.get("machine"), events: happened.filter((mark) => mark.kind !== "turn")};
        const below = element("section", {class: "exact"}, element("h2", {}, "Exact figures"),
            element("p", {class: "quiet small"}, "They have no noise: registers and instructions as compiled, memory accesses as counted. One that changes where the time does is likely its cause."));
        main.append(below);
        const rungs = new Map(keys.map((key) => [cells[key].op + "/" + cells[key].rung + " " + cells[key].type, cells[key]]));
        const architecture = kernelwatch.exact.architecture(machine);
        for (const cell of rungs.values()) {
            const file = machine.details.exact[cell.op];
            kernelwatch.exact.part(below, main, cell, file ? await machine.load(file) : null, architecture, how, common);
        }
        main.append(element("h2", {}, "Values"));
        for (const series of drawn_series) main.append(values_table(series, said(series), common, one ? "" : series.key));
        return undefined;
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
                newest ? [element("b", {}, how.say(newest.s, digits)), " (" + how.interval(newest, digits) + ") at ", link(text.hash(common.commits[newest.at].hash), "commit", {hash: text.hash(common.commits[newest.at].hash)}, {class: "hash"})] : "no time",
                series.smallest && !one ? element("span", {class: "quiet"}, ", detectable in its history " + text.percent(series.smallest, 2)) : null,
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
}
