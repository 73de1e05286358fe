// The ladders: every rung of an op at every size, and how far each is from the line it is held against.
"use strict";

{
    const {element, text, link} = kernelwatch;

    // Exact figures that a table shows: the end of the series' name, the head of the column, what it means.
    const FIGURES = [
        ["track_registers", "registers", "registers of a thread", ""],
        ["track_spill_bytes", "spilled", "bytes of local memory to which a thread spills its registers", " B"],
        ["track_occupancy", "occupancy", "warps that fit on a multiprocessor at once, as a share of the most that it holds", " %"],
        ["track_load_sectors", "load sectors", "32-byte sectors of global memory that a warp\u2019s load touches", ""],
        ["track_store_sectors", "store sectors", "32-byte sectors of global memory that a warp\u2019s store touches", ""],
        ["track_shared_load_wavefronts", "load wave\u00adfronts", "passes through the banks of shared memory that a warp\u2019s load takes", ""],
        ["track_shared_store_wavefronts", "store wave\u00adfronts", "passes through the banks of shared memory that a warp\u2019s store takes", ""],
        ["track_barriers", "barriers", "barriers that a block passes", ""],
    ];
    const DEVICES = {gpu: "GPU", cpu: "CPU", streamed: "GPU, operands in the host\u2019s memory"};
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

    // The rows of a ladder: {name, line}, rungs in their order, then the lines that they are compared with.
    ladders.rows = function (op, device, found) {
        const present = new Set(found.map((cell) => cell.rung));
        const order = [...new Set([...(op.order[device] || []), ...op.rungs.map((rung) => rung.name), ...present])].filter((name) => present.has(name));
        const line = (name) => op.lines.includes(name) || name === op.against[device];
        return [...order.filter((name) => !line(name)).map((name) => ({name, line: false})),
            ...order.filter(line).map((name) => ({name, line: true}))];
    };

    // The peak of a type in work per second, {rate, words}, or null: what the unit "% of peak" divides by.
    ladders.peak = function (op, type, facts) {
        if (op.unit === "GB/s") {
            const rate = facts.nvml_theoretical_bandwidth_bytes_per_s;
            return rate ? {rate, words: "the theoretical bandwidth, " + text.rate(rate, "GB/s") + " (bus width times memory clock)"} : null;
        }
        const base = type.split("->")[0];
        const rate = (facts.ceilings || {})[base + "_flops_per_s"];
        return rate ? {rate, words: "the measured ceiling of " + base + " multiply-adds, " + text.rate(rate, "GFLOP/s")} : null;
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
                of: (cell, s) => (kernelwatch.rate(cell, s) ? 100 * kernelwatch.rate(cell, s) / peak.rate : null)};
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
    // also: further values on its axis}]; `options`: {scale, shared, domain(panel), format, filled(mark),
    // extra(panel, place) -> marks, alt(panel), machine}. `into` gives the width.
    ladders.panels = function (into, panels, rows, options) {
        const width = Math.max(280, Math.min(into.clientWidth || parseFloat(into.style.width) || 960, 1280));
        const labels = Math.round(Math.max(...rows.map((row) => row.name.length)) * 6.9) + 12;
        const most = Math.max(1, Math.floor((width - labels) / 118));
        const columns = Math.ceil(panels.length / Math.ceil(panels.length / most));
        const each = Math.min(270, Math.floor((width - labels) / columns));
        const lines = rows.findIndex((row) => row.line);
        const place = new Map(rows.map((row, at) => [row.name, at + (row.line && lines > 0 ? 0.5 : 0)]));
        const bottom = place.get(rows[rows.length - 1].name);
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
            const domain = options.domain ? options.domain(panel, values) : log ? options.shared : [0, Math.max(...values, ...(panel.also || [])) * 1.06 || 1];
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

    // Powers of ten within a range, every second or third if they are many.
    function log_ticks([low, high]) {
        const [first, last] = [Math.ceil(Math.log10(low)), Math.floor(Math.log10(high))];
        const step = Math.max(1, Math.ceil((last - first + 1) / 3));
        const ticks = d3.range(first, last + 1, step).map((power) => 10 ** power);
        return ticks.length ? ticks : d3.ticks(low, high, 2);
    }

    // What the marks mean, with each mark beside its words. `entries`: [drawing, text] pairs.
    ladders.legend = function (entries) {
        return element("ul", {class: "legend"}, entries.map(([kind, words]) => element("li", {}, element("span", {class: "key " + kind, "aria-hidden": "true"}), words)));
    };
}

kernelwatch.view("ladder", "Ladders", async function (main, parameters) {
    const {element, text, link, ladders} = kernelwatch;
    const {site, commits, cells} = await kernelwatch.common();
    const machine = await kernelwatch.machine(parameters.get("machine"));
    const {LOOK, DEVICES} = ladders;
    const given = Object.fromEntries(parameters);
    const go = (changes) => kernelwatch.go("ladder", {...given, ...changes});
    const choose = (name) => (value) => go({[name]: value});

    const at = kernelwatch.commit_at(machine, commits, given.commit);
    const before = given.with ? kernelwatch.commit_at(machine, commits, given.with) : null;
    const snapshot = await machine.load("at/" + at);
    const has_figures = (op) => ladders.cells(snapshot, cells, op.name).some((cell) => cell.s);
    const op = given.op ? site.ops.find((each) => each.name === given.op) : site.ops.find(has_figures) || site.ops[0];
    if (!op) throw new Error("there is no op " + given.op + "; there are " + site.ops.map((each) => each.name).join(", "));
    const own = ladders.cells(snapshot, cells, op.name);
    const elsewhere = Object.values(cells).filter((cell) => cell.op === op.name).map((cell) => cell.device);
    const devices = Object.keys(DEVICES).filter((each) => own.some((cell) => cell.device === each) || each === given.device || elsewhere.includes(each));
    const device = given.device || devices.find((each) => own.some((cell) => cell.device === each && cell.s)) || devices[0] || "gpu";
    const of_device = own.filter((cell) => cell.device === device);
    const types = [...new Set([...op.types, ...of_device.map((cell) => cell.type)])].filter((type) => of_device.some((cell) => cell.type === type));
    const type = given.type || types[0] || op.types[0];
    const facts = ladders.facts(snapshot, op.name, device === "cpu" ? "cpu" : "gpu");
    const device_name = device === "cpu" ? facts.cpu || machine.summary.cpu : facts.gpu || machine.summary.gpu;
    const of_type = of_device.filter((cell) => cell.type === type);
    const caches = ["cold", "hot"].filter((cache) => of_type.some((cell) => cell.cache === cache));
    const cache = caches.includes(given.cache) ? given.cache : "";
    const found = of_type.filter((cell) => !cache || cell.cache === cache);

    const peak = ladders.peak(op, type, facts);
    const named = op.against[device];
    const against = found.some((cell) => cell.rung === named && cell.s) ? named : "";
    const units = ladders.units(against, op.unit, peak, found);
    const unit_name = units[given.unit] ? given.unit : "rate";
    const unit = units[unit_name];
    const published = op.rungs.some((rung) => Object.keys(rung.published_ms).length) && type === op.types[0];
    const lecture = published && given.layer === "lecture" && (unit_name === "rate" || unit_name === "seconds");

    main.append(
        element("h1", {}, op.name + ", " + type + (device_name ? ", " + device_name : "")),
        element("p", {}, "A ladder is the versions of one op, its rungs, from the naive one to the fast one. Each panel below is one size, each row one rung. ",
            against ? ["The rungs are held against ", element("b", {}, against), op.lines.includes(against) ? ", a plain copy: large transfers go hardly faster. At small sizes a launch takes most of the time, and a rung may be above 100 %." : ", the vendor\u2019s library on the same work."] : named ? named + ", which the rungs are held against, was not timed here." : "On this device there is no line that the rungs are held against."),
        element("div", {class: "controls"},
            kernelwatch.choice("op", site.ops.map((each) => each.name), op.name, (value) => go({op: value, type: "", shape: "", cache: "", unit: given.unit === "seconds" ? "seconds" : ""})),
            site.machines.length > 1 ? kernelwatch.choice("machine", site.machines.map((each) => each.name), machine.summary.name, (value) => go({machine: value, commit: "", with: ""})) : null,
            devices.length > 1 ? kernelwatch.choice("device", devices.map((each) => [each, DEVICES[each]]), device, (value) => go({device: value, type: "", shape: "", cache: ""})) : null,
            kernelwatch.choice("element type", types.includes(type) ? types : [...types, type], type, (value) => go({type: value, shape: "", cache: ""})),
            caches.length > 1 ? kernelwatch.choice("cache", [["", "cold and hot"], ...caches], cache, choose("cache")) : null,
            kernelwatch.choice("unit", Object.entries(units).map(([name, each]) => [name === "rate" ? "" : name, each.name || each.label]), unit_name === "rate" ? "" : unit_name, choose("unit")),
            kernelwatch.choice("scale", [["", "linear, each size its own"], ["log", "logarithmic, one for all sizes"]], given.scale || "", choose("scale")),
            kernelwatch.commit_choice("commit", machine, commits, at, choose("commit")),
            kernelwatch.commit_choice("compared with", machine, commits, before, choose("with"), "no other commit"),
            published ? element("label", {}, element("input", {type: "checkbox", name: "lecture", checked: given.layer === "lecture",
                onchange: (event) => go({layer: event.target.checked ? "lecture" : ""})}), " published figures") : null));

    if (!found.some((cell) => cell.s || cell.state === "failed")) {
        const timed_types = types.filter((each) => each !== type && of_device.some((cell) => cell.type === each && cell.s));
        const others = timed_types.length ? " Measured there: " + timed_types.join(", ") + "." : "";
        const known = await measured_at();
        main.append(element("p", {}, "At the commit ", kernelwatch.commit_link(at, commits), ", " + op.name + " with " + type + " on the " + DEVICES[device] + " of " + machine.summary.name + " was not measured." + others,
            known.length ? [" It was measured at ", known.slice(-3).reverse().map((each, index) => [index ? ", " : "", link(text.hash(commits[each].hash), "ladder", {...given, commit: each}, {class: "hash"})]), known.length > 3 ? " and " + (known.length - 3) + " commits before." : "."] : ""));
        return;
    }

    // The commits at which this op was measured on this device with this type.
    async function measured_at() {
        const names = Object.keys(machine.details.history).filter((name) => name.startsWith(op.name + "/"));
        const histories = await Promise.all(names.map((name) => machine.history(name)));
        const positions = new Set();
        for (const history of histories) {
            for (const [key, columns] of Object.entries(history)) {
                if (cells[key] && cells[key].device === device && cells[key].type === type) columns.at.forEach((each) => positions.add(each));
            }
        }
        return [...positions].sort((a, b) => a - b);
    }

    const {date, subject} = commits[at];
    main.append(element("p", {class: "small quiet"}, "Commit ", kernelwatch.commit_link(at, commits), facts.measured_at ? ", measured " + facts.measured_at.slice(0, 10) : "",
        " on " + machine.summary.name + (facts.nvml_driver && device !== "cpu" ? ", driver " + facts.nvml_driver : "") + (facts.compiler && device === "cpu" ? ", " + facts.compiler : "") + (facts.cores && device === "cpu" ? ", " + text.plural(facts.cores.length, "core") : "") + ". "));

    // --- the picture ---------------------------------------------------------------------------------------------
    const rows = ladders.rows(op, device, found);
    const by_key = new Map(own.map((cell) => [cell.key, cell]));
    const reference = (cell) => by_key.get(kernelwatch.key(op.name, against, cell.type, cell.shape, cell.cache));
    const shapes = [...new Set([...(op.shapes[device] || []), ...found.map((cell) => cell.shape)])].filter((shape) => found.some((cell) => cell.shape === shape && (cell.s || cell.state === "failed")));
    const older = before === null ? new Map() : new Map(ladders.cells(await machine.load("at/" + before), cells, op.name).map((cell) => [cell.key, cell]));
    const printed = new Map(op.rungs.map((rung) => [rung.name, rung.published_ms]));

    const panels = shapes.map((shape) => {
        const here = found.filter((cell) => cell.shape === shape);
        const marks = here.map((cell) => {
            const figure = ladders.figure(unit, cell, reference(cell));
            return {row: cell.rung, cache: cell.cache, cell, figure, failed: cell.state === "failed" && !cell.s, note: (cell.limits || []).join("; "), title: figure && hint(cell, figure)};
        });
        const extents = shape.split("x");
        const square = extents.every((extent) => extent === extents[0]) ? extents[0] : "";
        const lectures = lecture && square ? here.filter((cell, index) => here.findIndex((each) => each.rung === cell.rung) === index)
            .map((cell) => ({row: cell.rung, value: (printed.get(cell.rung) || {})[square] ? unit.of(cell, printed.get(cell.rung)[square] / 1e3) : null}))
            .filter((mark) => mark.value) : [];
        const ticks = before === null ? [] : here.map((cell) => ({row: cell.rung, cache: cell.cache, figure: ladders.figure(unit, older.get(cell.key), older.get(reference(cell)?.key))})).filter((mark) => mark.figure);
        const rules = against ? here.filter((cell) => cell.rung === against && cell.s).map((cell) => ({cache: cell.cache, value: ladders.figure(unit, cell, cell)[0]})) : [];
        return {shape, marks, lectures, ticks, rules, also: [...lectures.map((mark) => mark.value), ...ticks.map((mark) => mark.figure[0])]};
    });
    const all = panels.flatMap((panel) => [...panel.marks.flatMap((mark) => mark.figure || []), ...panel.also]).filter((value) => value > 0);
    const shared = [d3.min(all) / 1.25, d3.max(all) * 1.25];

    function hint(cell, [value, low, high]) {
        const digits = text.significant(value, low, high);
        return [cell.rung + ", " + text.shape(cell.shape) + ", " + cell.cache,
            text.digits(value, digits) + " " + unit.label + " (95 % interval " + ladders.interval([value, low, high], digits + 1) + ")",
            unit_name === "seconds" ? null : text.time(cell.s, text.significant(cell.s, cell.low, cell.high)),
            text.plural(cell.processes, "process", "processes") + (cell.clock_mhz ? ", " + text.digits(cell.clock_mhz, 4) + " MHz" : ""),
            (cell.limits || []).length ? "! " + cell.limits.join("; ") : null].filter(Boolean).join("\n");
    }

    const grid = ladders.panels(main, panels, rows, {
        shared, scale: given.scale, machine: machine.summary.name,
        alt: (panel) => op.name + " " + type + " at " + panel.shape + ": " + unit.label + " of " + text.plural(panel.marks.filter((mark) => mark.figure).length, "cell") + "; the table below lists the figures",
        extra: (panel, place) => [
            ...["cold", "hot"].map((each) => Plot.ruleX(panel.rules.filter((rule) => rule.cache === each), {x: "value", stroke: LOOK[each].color, strokeWidth: 1, strokeDasharray: each === "hot" ? "2,3" : null, strokeOpacity: 0.8, ariaDescription: "line " + each})),
            Plot.ruleX(panel.ticks, {x: (mark) => mark.figure[0], y1: (mark) => place.get(mark.row) - 0.38, y2: (mark) => place.get(mark.row) + 0.38, stroke: "var(--quiet)", strokeWidth: 1.5, ariaDescription: "before"}),
            Plot.dot(panel.lectures, {x: "value", y: (mark) => place.get(mark.row), symbol: "times", r: 3.5, stroke: "var(--quiet)", ariaDescription: "lecture"}),
        ],
    });
    const drawn = [...new Set(found.filter((cell) => cell.s).map((cell) => cell.cache))];
    const limited = found.filter((cell) => (cell.limits || []).length);
    main.append(element("section", {},
        element("h2", {}, (unit_name === "seconds" ? "Time, " : "") + unit.label + (unit.high ? ", higher is better" : ", lower is better")),
        unit_name === "peak" ? element("p", {}, "100 % is " + peak.words + ".") : null,
        unit_name === "line" ? element("p", {}, "100 % is the rate of " + against + " at the same size and in the same cache state. The intervals are those of the rungs\u2019 own times.") : null,
        given.unit && !units[given.unit] ? element("p", {}, "The unit that the address names needs a figure that this device lacks; the picture shows " + unit.label + ".") : null,
        ladders.legend([
            ...["cold", "hot"].filter((each) => drawn.includes(each)).map((each) => [each, each + ": " + LOOK[each].mean]),
            ["interval", "95 % interval of the median over processes, often narrower than its mark"],
            against ? ["rule", against + " at this size" + (drawn.length > 1 ? " (dashed: hot)" : "")] : null,
            rows.some((row) => row.line) && rows.some((row) => !row.line) ? ["italic", "under the rule, in italics: lines to compare with, not rungs"] : null,
            limited.length ? ["limit", "a limit was active: " + [...new Set(limited.flatMap((cell) => cell.limits))].join("; ")] : null,
            before === null ? null : ["tick", "the same cell at " + text.hash(commits[before].hash)],
            lecture ? ["times", "what the origin prints for a square of this extent, on its own hardware"] : null,
        ].filter(Boolean)),
        element("figure", {}, grid)));
    const missing = d3.rollups(found.filter((cell) => !cell.s && cell.reason), (list) => [...new Set(list.map((cell) => cell.rung))], (cell) => text.shape(cell.shape) + ", " + cell.cache + ": " + cell.reason);
    if (missing.length) {
        main.append(element("details", {}, element("summary", {}, text.plural(found.filter((cell) => !cell.s && cell.reason).length, "cell has", "cells have") + " no figure: why"),
            element("ul", {}, missing.map(([reason, names]) => element("li", {}, reason + " (" + (names.length === rows.length ? "every row" : names.join(", ")) + ")")))));
    }
    if (type !== op.types[0] && !shapes.some((shape) => shape !== op.element_shape)) {
        main.append(element("p", {class: "small quiet"}, "Types other than " + op.types[0] + " are timed at " + text.shape(op.element_shape) + " only."));
    }

    // --- the change ----------------------------------------------------------------------------------------------
    if (before !== null) compared();
    function compared() {
        const changes = shapes.map((shape) => ({shape, marks: found.filter((cell) => cell.shape === shape && ladders.change(cell, older.get(cell.key))).map((cell) => {
            const change = ladders.change(cell, older.get(cell.key));
            const words = text.change(change.change) + " time (95 % interval " + text.change(change.low) + " to " + text.change(change.high) + ")";
            return {row: cell.rung, cache: cell.cache, cell, change, figure: [change.change, change.low, change.high].map((each) => 100 * each),
                title: cell.rung + ", " + text.shape(cell.shape) + ", " + cell.cache + "\n" + words + "\n" + (change.clear ? "exceeds" : "does not exceed") + " the minimum detectable change, " + text.percent(change.detectable, 2)};
        })})).filter((panel) => panel.marks.length);
        main.append(element("h2", {}, "Change of time against " + text.hash(commits[before].hash)));
        if (!changes.length) {
            main.append(element("p", {}, "The commit ", kernelwatch.commit_link(before, commits), " has no cell in common with what is shown."));
            return;
        }
        const extent = Math.max(1, ...changes.flatMap((panel) => panel.marks.flatMap((mark) => mark.figure.map(Math.abs)))) * 1.08;
        const clear = changes.flatMap((panel) => panel.marks).filter((mark) => mark.change.clear);
        main.append(
            element("p", {}, "Time at ", kernelwatch.commit_link(at, commits), " over time at ", kernelwatch.commit_link(before, commits), ", as a change in %: left of 0 is faster. The interval joins those of both commits in quadrature. A filled mark exceeds the minimum detectable change of the cell: " + (clear.length ? text.plural(clear.length, "cell does", "cells do") + "." : "none does.")),
            element("figure", {class: "changes"}, ladders.panels(main, changes, rows, {
                machine: machine.summary.name, domain: () => [-extent, extent], format: (value) => (value > 0 ? "+" : "") + ladders.short(value).replace("-", "\u2212"),
                filled: (mark) => mark.change.clear,
                alt: (panel) => "change of time at " + panel.shape + " in %; the table below lists the figures",
                extra: () => [Plot.ruleX([0], {stroke: "var(--quiet)", strokeWidth: 1})],
            })));
    }

    // --- the table -----------------------------------------------------------------------------------------------
    const work = (shape) => Math.max(0, ...found.filter((cell) => cell.shape === shape).map((cell) => kernelwatch.work(cell) || 0));
    const timed = (shape) => new Set(found.filter((cell) => cell.shape === shape && cell.s).map((cell) => cell.rung)).size;
    const most = d3.max(shapes, timed);
    const shape = shapes.includes(given.shape) ? given.shape : d3.greatest(shapes.filter((each) => timed(each) > most / 2), work);  // the largest of those with most rungs
    const table = machine.details.exact[op.name] ? await machine.load(machine.details.exact[op.name]) : null;
    const architecture = "sm_" + (facts.compute_capability || "");
    const exact = new Map(rows.map((row) => [row.name, device === "cpu" ? [] : ladders.exact(table, row.name, type, architecture, at)]));
    const kinds = ladders.FIGURES.filter(([end]) => [...exact.values()].some((list) => list.some((each) => each.end === end)));
    const shown = drawn.filter((each) => rows.some((row) => by_key.get(kernelwatch.key(op.name, row.name, type, shape, each))?.s));
    const columns = [
        {name: "rung"}, {name: "idea"},
        ...shown.map((each) => ({name: each + ", " + unit.label, number: true, title: "median over processes and its 95 % interval"})),
        unit_name !== "line" && against ? {name: "% of " + against, number: true, title: "rate as a share of " + against + " at this size, in the same cache state"} : null,
        ...(before === null ? [] : shown.map((each) => ({name: "change, " + each, number: true, title: "of time, against " + text.hash(commits[before].hash)}))),
        ...kinds.map(([, label, mean]) => ({name: label, number: true, title: mean})),
    ].filter(Boolean);
    const listed = rows.map((row) => {
        const rung = op.rungs.find((each) => each.name === row.name && (each.device === device || device === "streamed")) || {};
        const mine = shown.map((each) => by_key.get(kernelwatch.key(op.name, row.name, type, shape, each)));
        const shares = mine.filter((cell) => cell && cell.s && reference(cell)?.s).map((cell) => ladders.share(kernelwatch.rate(cell, cell.s) / kernelwatch.rate(reference(cell), reference(cell).s)));
        return [
            [link(row.name, "rung", {op: op.name, rung: row.name, machine: given.machine}), element("div", {class: "small"},
                rung.source ? kernelwatch.source_link(site, commits[at], rung.source, rung.source.split("/").pop()) : null,
                rung.source && mine.some((cell) => cell && cell.s) ? " \u00b7 " : null,
                mine.some((cell) => cell && cell.s) ? link("history", "history", {cell: mine.filter((cell) => cell && cell.s).map((cell) => cell.key), machine: given.machine}, {"aria-label": "history of " + row.name}) : null)],
            element("div", {class: "idea"}, rung.idea || (row.line ? "line to compare with" : "n/a")),
            ...mine.map((cell) => (cell && cell.state === "failed" && !cell.s ? element("span", {class: "bad"}, "failed: " + (cell.reason || "no reason recorded"))
                : cell && !cell.s ? element("abbr", {title: cell.reason}, "n/a") : ladders.shown(ladders.figure(unit, cell, cell && reference(cell)), (cell && cell.limits || []).join("; ")))),
            unit_name !== "line" && against ? shares.join(" / ") || "n/a" : null,
            ...(before === null ? [] : mine.map((cell) => difference(cell))),
            ...kinds.map(([end]) => {
                const figure = exact.get(row.name).find((each) => each.end === end);
                return figure ? element("span", {title: figure.place}, ladders.value(figure.value) + figure.unit) : element("span", {class: "quiet"}, "\u2013");
            }),
        ].filter((cell) => cell !== null);
    });
    function difference(cell) {
        const change = cell && ladders.change(cell, older.get(cell.key));
        return change ? [change.clear ? element("b", {class: change.change > 0 ? "bad" : "good"}, text.change(change.change) + (change.change > 0 ? " slower" : " faster")) : text.change(change.change),
            element("div", {class: "small quiet"}, text.change(change.low) + " to " + text.change(change.high))] : "n/a";
    }
    const counted = [...exact.values()].flat().find((each) => !each.place.includes(" sm_"));
    main.append(
        element("h2", {}, "Rung by rung at " + text.shape(shape)),
        element("div", {class: "controls"}, kernelwatch.choice("size", shapes.map((each) => [each, text.shape(each)]), shape, choose("shape"))),
        kernelwatch.table(columns, listed, {"aria-label": op.name + " at " + shape, class: "figures"}),
        element("p", {class: "small quiet"},
            "Under each figure stands its 95 % interval, the median\u2019s over processes. " + (device === "cpu" ? "" : kinds.length
                ? "Registers, spilled bytes and occupancy are those of " + architecture + ", read from the compiled kernel" + (counted ? "; sectors, wavefronts and barriers are counted at " + text.shape(counted.place.split(" ")[1]) + ", " + counted.place.split(" ")[0] + ", per request or block" : "") + ". They have no noise. A dash: the kernel makes no such access, or it is a library\u2019s."
                : "No exact figures (registers, sectors, ...) of " + type + " on " + architecture + " are recorded at this commit.")));
});
