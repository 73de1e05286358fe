// What the pages that show ladders share: units, figures, exact figures, and the panels of rungs at every size.
"use strict";

{
    const {element, text} = kernelwatch;

    // Exact figures that a table shows: the end of the series' name, the head of the column, what it means, what stands behind
    // the number, and what it is counted for.
    const FIGURES = [
        ["track_registers", "registers", "registers of a thread", "", "per thread"],
        ["track_spill_bytes", "spilled", "bytes of local memory to which a thread spills its registers", " B", "per thread"],
        ["track_occupancy", "occupancy", "warps that fit on a multiprocessor at once, as a share of the most that it holds", " %", "of warps"],
        ["track_load_sectors", "load sectors", "32-byte sectors of global memory that a warp\u2019s load touches", "", "per request"],
        ["track_store_sectors", "store sectors", "32-byte sectors of global memory that a warp\u2019s store touches", "", "per request"],
        ["track_shared_load_wavefronts", "load wave\u00adfronts", "passes through the banks of shared memory that a warp\u2019s load takes", "", "per request"],
        ["track_shared_store_wavefronts", "store wave\u00adfronts", "passes through the banks of shared memory that a warp\u2019s store takes", "", "per request"],
        ["track_barriers", "barriers", "barriers that a block passes", "", "per block"],
    ];
    const DEVICES = {gpu: "GPU", cpu: "CPU", streamed: "GPU, operands in the host\u2019s memory", several: "several GPUs"};
    const LOOK = {
        cold: {color: "var(--cold)", symbol: "circle", word: "cold", mean: "operands come from memory"},
        hot: {color: "var(--hot)", symbol: "square", word: "hot", mean: "operands are in the last-level cache"},
    };

    const ladders = (kernelwatch.ladders = {FIGURES, DEVICES, LOOK});

    // The timed cells of a snapshot that belong to an op, each with its parts, its work and its figures.
    ladders.cells = (snapshot, cells, op) => Object.entries(snapshot.cells)
        .filter(([key]) => cells[key] && cells[key].op === op)
        .map(([key, figures]) => ({key, ...cells[key], ...figures}));

    // The facts of an op's group on a device; {} if it was not measured.
    ladders.facts = (snapshot, op, device) => snapshot.facts[op + " " + device] || {};

    // The rung or line that a cell is held against, "" if there is none: that of its op, or that of what only some rungs compute.
    ladders.against = (op, cell) => cell.against ?? op.against[cell.device] ?? "";

    // Cells by what they compute, since the rates of two such groups are not comparable: {title, against, cells, rows}, those
    // that compute what the op says first. `against`: "" if it was not timed.
    ladders.groups = function (op, device, type, found) {
        return d3.sort(d3.groups(found, (cell) => cell.group || ""), ([title]) => (title ? 1 : 0)).map(([title, own]) => {
            const named = ladders.against(op, own[0]), against = found.some((cell) => cell.rung === named && cell.s) ? named : "";
            return {title: title || op.name + " " + type, against, cells: own, rows: ladders.rows(op, device, own)};
        });
    };

    // The rows of a ladder: {name, line}, rungs in their order, then the lines that they are compared with.
    ladders.rows = function (op, device, found) {
        const against = new Set(found.map((cell) => ladders.against(op, cell)));
        const present = new Set(found.map((cell) => cell.rung));
        const order = [...new Set([...(op.order[device] || []), ...op.rungs.map((rung) => rung.name), ...present])].filter((name) => present.has(name));
        const line = (name) => op.lines.includes(name) || against.has(name);
        return [...order.filter((name) => !line(name)).map((name) => ({name, line: false})),
            ...order.filter(line).map((name) => ({name, line: true}))];
    };

    // What a cell could reach in work per second, {of(cell), words}, or null: what the unit "% of peak" divides by. With
    // `roofs`, it is that of the unit on which the cell computes.
    ladders.peak = function (op, type, facts, roofs = {}) {
        if (op.unit === "GB/s") {
            const rate = facts.nvml_theoretical_bandwidth_bytes_per_s;
            return rate ? {of: () => rate, words: "the theoretical bandwidth, " + text.rate(rate, "GB/s") + " (bus width times memory clock)"} : null;
        }
        if (Object.keys(roofs).length) {
            return {of: (cell) => (roofs[cell.unit] ? roofs[cell.unit].rate / (cell.operations || 1) : null), words: "the measured roof of the unit on which a rung computes; the Roofline page lists them"};
        }
        const base = type.split("->")[0];
        const rate = (facts.ceilings || {})[base + "_flops_per_s"];
        return rate ? {of: () => rate, words: "the measured ceiling of " + base + " multiply-adds, " + text.rate(rate, "GFLOP/s")} : null;
    };

    // The units that a ladder can be shown in: by name {label, of, high}. `work`: the unit of its rate. `of`(cell, seconds, reference seconds) is the
    // number; `found`: the cells, which decide among s, ms and microseconds; `high`: whether more is better.
    ladders.units = function (against, work, peak, found) {
        const typical = d3.median(found, (cell) => cell.s) || 0;
        const [time, scale] = typical > 0.5 ? ["s", 1] : typical > 5e-4 ? ["ms", 1e3] : ["\u00b5s", 1e6];
        const units = {
            rate: {label: work, of: (cell, s) => (kernelwatch.rate(cell, s) === null ? null : kernelwatch.rate(cell, s) / 1e9), high: true},
            seconds: {label: time, name: "time, " + time, of: (cell, s) => s * scale, high: false},
        };
        if (against) {
            units.line = {label: "% of " + against, high: true,
                of: (cell, s, reference) => (reference && kernelwatch.rate(cell, s) ? 100 * kernelwatch.rate(cell, s) / kernelwatch.rate(reference, reference.s) : null)};
        }
        if (peak) {
            units.peak = {label: "% of peak", high: true,
                of: (cell, s) => (kernelwatch.rate(cell, s) && peak.of(cell) ? 100 * kernelwatch.rate(cell, s) / peak.of(cell) : null)};
        }
        return units;
    };

    // A cell's figure in a unit: [value, low, high], null if it has none.
    ladders.figure = function (unit, cell, reference) {
        if (!cell || !cell.s) return null;
        const value = unit.of(cell, cell.s, reference);
        if (value === null) return null;
        const ends = [cell.low, cell.high].map((s) => (s > 0 || !unit.high ? unit.of(cell, s, reference) : Infinity));  // a rate has no bound if the time may be 0
        return [value, Math.min(...ends), Math.max(...ends)];
    };

    // A figure with its interval, as elements for a table.
    ladders.shown = function (figure, mark) {
        if (!figure) return "n/a";
        const digits = text.significant(...figure);
        return [text.digits(figure[0], digits), mark ? element("abbr", {class: "warn", title: mark}, " !") : null,
            element("div", {class: "small quiet"}, ladders.interval(figure, digits + 1))];
    };

    // What a reader of a cell's figure should know: limits that it met, how it was timed, what it allocates.
    ladders.remarks = (cell) => [...(cell && cell.limits || []), ...(cell && cell.notes || [])].join("; ");

    // An interval in words.
    ladders.interval = ([, low, high], digits) => text.digits(low, digits) + (isFinite(high) ? " to " + text.digits(high, digits) : " and more");

    // How much longer a cell takes than before: {change, low, high, clear}. The interval joins the relative half-widths
    // of both in quadrature; `clear`: the change exceeds what two such runs detect.
    ladders.change = function (now, then) {
        if (!now || !then || !now.s || !then.s) return null;
        const half = Math.hypot(...[now, then].map((cell) => (cell.high - cell.low) / 2 / cell.s)) || 0;
        const ratio = now.s / then.s;
        const detectable = Math.max(now.detectable || 0, then.detectable || 0);
        return {change: ratio - 1, low: ratio * (1 - half) - 1, high: ratio * (1 + half) - 1, detectable,
            clear: detectable > 0 && Math.abs(ratio - 1) > detectable};
    };

    // The exact figures of a rung at a commit: [{end, label, mean, unit, place, value, commit, series}]. Of the places of a
    // series, one is shown: the GPU's own architecture, or the first shape that was counted.
    ladders.exact = function (table, rung, type, architecture, at) {
        const found = [];
        for (const [end, label, mean, unit] of FIGURES) {
            for (const [series, by_rung] of Object.entries(table ? table.series : {})) {
                if (!series.endsWith("." + end) || !by_rung[rung]) continue;
                const places = Object.keys(by_rung[rung]).filter((place) => place.startsWith(type + " "));
                const place = places.find((each) => each.includes(" sm_")) ? places.find((each) => each === type + " " + architecture) : places[0];
                const entry = place && kernelwatch.value_at(by_rung[rung][place], at);
                if (entry && entry[1] !== null) {
                    found.push({end, label, mean, unit, place, value: entry[1], commit: entry[0], series});
                }
            }
        }
        return found;
    };

    // An exact value: an integer as it is, else with the digits that tell it from others.
    ladders.value = (value) => (value === null ? "n/a" : Number.isInteger(value) ? value.toLocaleString("en-US") : text.digits(value, 4));

    // A share, with more digits if it is small.
    ladders.share = (share) => text.percent(share, share < 0.01 ? 2 : 1);

    // Small multiples: one panel for each size, the rungs as rows. `panels`: [{shape, marks: [{row, cache, figure, cell}],
    // also: further values on its axis}]; `options`: {scale, domain(panel), format, filled(mark),
    // extra(panel, place) -> marks, alt(panel), machine}. `into` gives the width.
    ladders.panels = function (into, panels, rows, options) {
        const width = Math.max(280, Math.min(into.clientWidth || parseFloat(into.style.width) || 960, 1280));
        const labels = Math.round(Math.max(...rows.map((row) => row.name.length)) * 6.9) + 12;
        const most = Math.max(1, Math.floor((width - labels) / 132));
        const columns = Math.ceil(panels.length / Math.ceil(panels.length / most));
        const each = Math.min(270, Math.floor((width - labels) / columns));
        const lines = rows.findIndex((row) => row.line);
        const place = new Map(rows.map((row, at) => [row.name, at + (row.line && lines > 0 ? 0.5 : 0)]));
        const bottom = place.get(rows[rows.length - 1].name);
        const drawn_values = panels.flatMap((panel) => [...panel.marks.flatMap((mark) => mark.figure || []), ...(panel.also || [])]).filter((value) => value > 0 && isFinite(value));
        const shared = [d3.min(drawn_values) / 1.25, d3.max(drawn_values) * 1.25];
        const grid = element("div", {class: "panels", style: "grid-template-columns: " + (labels + each) + "px" + (columns > 1 ? " repeat(" + (columns - 1) + ", " + each + "px)" : "")});
        panels.forEach((panel, at) => {
            const first = at % columns === 0;
            const left = first ? labels : 6;
            const values = panel.marks.flatMap((mark) => mark.figure || []).filter((value) => value !== null && isFinite(value));
            const marks = panel.marks.filter((mark) => mark.figure);
            const both = new Set(marks.map((mark) => mark.cache)).size > 1;
            const shift = (mark) => (both ? (mark.cache === "hot" ? 3.5 : -3.5) : 0);
            const of = (cache) => marks.filter((mark) => mark.cache === cache);
            const log = options.scale === "log";
            const domain = options.domain ? options.domain(panel, values) : log ? shared : [0, Math.max(...values, ...(panel.also || [])) * 1.06 || 1];
            const drawn = Plot.plot({
                width: first ? labels + each : each, height: 19 * (bottom + 1) + 28, marginLeft: left, marginRight: 13, marginTop: 2, marginBottom: 24,
                x: {domain, type: log ? "log" : "linear", axis: null, clamp: true},
                y: {domain: [bottom + 0.6, -0.6], axis: null},
                style: {background: "transparent", color: "currentColor", fontFamily: "inherit", fontSize: "12px", overflow: "visible"},
                marks: [
                    Plot.gridX({ticks: log ? log_ticks(domain) : each < 170 ? 2 : 3, stroke: "var(--rule)", strokeOpacity: 1}),
                    Plot.axisX({ticks: log ? log_ticks(domain) : each < 170 ? 2 : 3, tickSize: 3, label: null, tickFormat: options.format || ((value) => short(value, each < 170)), fill: "var(--quiet)", stroke: "var(--rule)", fontSize: 11}),
                    Plot.ruleY(rows, {y: (row) => place.get(row.name), stroke: "var(--rule)", strokeOpacity: 0.55}),
                    lines > 0 ? Plot.ruleY([place.get(rows[lines].name) - 0.75], {stroke: "var(--quiet)", strokeWidth: 1}) : null,
                    ...(first ? [true, false] : []).map((line) => Plot.text(rows.filter((row) => row.line === line), {y: (row) => place.get(row.name),
                        text: "name", frameAnchor: "left", dx: -labels, textAnchor: "start", fill: line ? "var(--quiet)" : "var(--ink)", fontStyle: line ? "italic" : "normal"})),
                    ...(options.extra ? options.extra(panel, place) : []),
                    ...["cold", "hot"].flatMap((cache) => of(cache).length ? [
                        Plot.ruleY(of(cache), {y: (mark) => place.get(mark.row), x1: (mark) => mark.figure[1], x2: (mark) => mark.figure[2],
                            stroke: LOOK[cache].color, strokeWidth: 2, dy: shift(of(cache)[0]), ariaDescription: "interval " + cache}),
                        Plot.dot(of(cache), {y: (mark) => place.get(mark.row), x: (mark) => mark.figure[0], symbol: LOOK[cache].symbol, r: 3.4,
                            fill: (mark) => (options.filled && !options.filled(mark) ? "var(--page)" : LOOK[cache].color), stroke: LOOK[cache].color, strokeWidth: 1.3,
                            dy: shift(of(cache)[0]), ariaDescription: "figure " + cache}),
                    ] : []),
                    Plot.text(marks.filter((mark) => mark.note), {y: (mark) => place.get(mark.row), x: (mark) => mark.figure[0], text: () => "!", fontWeight: 700,
                        dx: 8, dy: 0, fill: "var(--warn)", ariaDescription: "limit"}),
                    Plot.text(panel.marks.filter((mark) => mark.failed), {y: (mark) => place.get(mark.row), frameAnchor: "left", dx: 4, text: () => "\u00d7 failed",
                        textAnchor: "start", fill: "var(--bad)", ariaDescription: "failed"}),
                    Plot.tip(marks, Plot.pointer({y: (mark) => place.get(mark.row), x: (mark) => mark.figure[0], title: "title", maxRadius: 18, lineWidth: 30, lineHeight: 1.3,
                        fill: "var(--panel)", stroke: "var(--rule)"})),
                ].filter(Boolean),
            });
            kernelwatch.describe(drawn, options.alt(panel));
            drawn.dataset.shape = panel.shape;
            const attributes = ({cell, figure: [value, low, high]}) => ({key: cell.key, value, low, high});
            for (const cache of ["cold", "hot"]) kernelwatch.marked(drawn, `[data-mark="figure ${cache}"] *`, of(cache), attributes);
            drawn.addEventListener("click", () => {
                if (drawn.value && drawn.value.cell) kernelwatch.go("history", {cell: drawn.value.cell.key, machine: options.machine});
            });
            grid.append(element("div", {class: "panel"},
                element("div", {class: "panel-title", style: "padding-left: " + left + "px"}, ladders.short_shape(panel.shape)), drawn));
        });
        return grid;
    };

    // A number on an axis, short: 40,000 as 40k only where there is no room for it.
    const short = (value, narrow) => (Math.abs(value) >= (narrow ? 1e4 : 1e6) ? d3.format("~s")(value) : value.toLocaleString("en-US", {maximumSignificantDigits: 4}));
    ladders.short = short;

    // A shape as the title of a panel: a cube by its edge.
    ladders.short_shape = function (shape) {
        const extents = shape.split("x");
        return extents.length === 3 && extents.every((extent) => extent === extents[0]) ? extents[0] + "\u00b3" : text.shape(shape).replaceAll(" ", "");
    };

    // Powers of ten within a range, every second or third if they are many; with those times 2 and 5 if there is one at most.
    function log_ticks([low, high]) {
        const [first, last] = [Math.ceil(Math.log10(low)), Math.floor(Math.log10(high))];
        const step = Math.max(1, Math.ceil((last - first + 1) / 3));
        const powers = d3.range(first, last + 1, step).map((power) => 10 ** power);
        if (powers.length > 1) return powers;
        const ticks = d3.range(first - 1, last + 1).flatMap((power) => [1, 2, 5].map((factor) => factor * 10 ** power)).filter((tick) => tick >= low && tick <= high);
        return ticks.length ? ticks : d3.ticks(low, high, 2);
    }

    // What the marks mean, with each mark beside its words. `entries`: [drawing, text] pairs.
    ladders.legend = function (entries) {
        return element("ul", {class: "legend"}, entries.map(([kind, words]) => element("li", {}, element("span", {class: "key " + kind, "aria-hidden": "true"}), words)));
    };
}
