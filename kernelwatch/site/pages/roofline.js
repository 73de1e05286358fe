// How near the rungs come to what the device can do: the roofline, and bandwidth against size.
"use strict";

{
    const {text, element} = kernelwatch;
    const rooflines = (kernelwatch.rooflines = {});

    const BEYOND = 1.05;  // of a ceiling: a faster cell computes on other units than those whose ceiling it is

    // The roofs of a GPU, by unit, as `kernelwatch ceilings` measured them on the machine: {unit: {title, rate, clock_mhz, ...}}.
    rooflines.roofs = (machine, facts) => Object.fromEntries(((machine.details.roofs || {})[facts.gpu] || []).map((each) => [each.unit, each]));

    // The ceilings of a device: {copy, l2, theoretical, peaks: [{name, rate}], peak, others, reached}. Bytes or operations
    // per second; `peak` is the highest that holds for the type, null if none was measured. A peak of `roofs` is that of a
    // unit, in operations of the op. `others`: the rungs that compute on units without a measured ceiling, which only the
    // bandwidth bounds here; `reached`: the rate that one of them has at least reached, by variant of the op. If nothing
    // was measured (a CPU), the highest rates among the cells stand in for the ceilings, and say so.
    rooflines.ceilings = function (facts, type, cells, roofs = {}) {
        const measured = facts.ceilings || {};
        const base = type.split("->")[0];
        const computing = cells.filter((cell) => cell.s && cell.flops), speed = (cell) => cell.flops / cell.s;
        const units = d3.groups(computing.filter((cell) => roofs[cell.unit]), rooflines.unit).map(([unit, [cell]]) => {
            const roof = roofs[cell.unit], count = cell.operations || 1, name = roof.title + (count > 1 ? " / " + count : "");
            return {unit, name, short: name, rate: roof.rate / count, clock: roof.clock_mhz};
        });
        const peaks = units.length ? units : Object.entries(measured).filter(([name]) => name.endsWith("_flops_per_s"))
            .map(([name, rate]) => ({name: name.replace("_flops_per_s", "") + " multiply-adds", short: name.replace("_flops_per_s", ""), type: name.replace("_flops_per_s", ""), rate}));
        const fastest = d3.greatest(computing, speed);
        const widest = d3.greatest(cells.filter((cell) => cell.s && !cell.flops && cell.bytes && cell.cache === "cold"), (cell) => cell.bytes / cell.s);
        let peak = units.length ? d3.greatest(units, (each) => each.rate) : peaks.find((each) => each.type === base) || null;
        if (!peaks.length && fastest) {
            peak = {name: "fastest cell, " + fastest.rung + " at " + text.shape(fastest.shape), short: "fastest cell", type: base, rate: speed(fastest)};
            peaks.push(peak);
        }
        const copy = roofs.memory ? {name: "copy", rate: roofs.memory.rate} : measured.copy_bytes_per_s ? {name: "copy", rate: measured.copy_bytes_per_s}
            : widest ? {name: "fastest cell, " + widest.op + "/" + widest.rung, rate: widest.bytes / widest.s} : null;
        const l2 = roofs.l2 ? {name: "copy in L2", rate: roofs.l2.rate, bytes: facts.l2_bytes || 0} : null;
        const known = (cell) => peaks.some((each) => each.unit && each.unit === rooflines.unit(cell));
        const elsewhere = computing.filter((cell) => !known(cell) && (units.length || cell.variant || !peak || speed(cell) > BEYOND * peak.rate));
        const others = new Set(elsewhere.map((cell) => cell.rung));
        const reached = d3.rollup(computing.filter((cell) => others.has(cell.rung)), (list) => d3.max(list, speed), (cell) => cell.variant || "");
        return {copy, l2, peaks, peak, others, reached, theoretical: facts.nvml_theoretical_bandwidth_bytes_per_s || null};
    };

    // What names a cell's roof: its unit, and how many of the unit's operations one of its own takes.
    rooflines.unit = (cell) => cell.unit + " " + (cell.operations || 1);

    // The roof over a cell in work per second: {rate, of}, or null if it is not known.
    rooflines.roof = function (cell, ceilings) {
        if (!cell.bytes) return null;
        const source = ceilings.l2 && cell.cache === "hot" && cell.bytes <= ceilings.l2.bytes ? {rate: ceilings.l2.rate, of: "L2 cache"}
            : ceilings.copy && {rate: ceilings.copy.rate, of: "bandwidth"};
        if (!cell.flops) return source;
        const slope = source ? source.rate * cell.flops / cell.bytes : Infinity;
        if (ceilings.others.has(cell.rung)) {  // its units reach that rate, so less bandwidth than that is the limit
            return slope <= (ceilings.reached.get(cell.variant || "") || 0) ? {rate: slope, of: source.of} : null;
        }
        const own = ceilings.peaks.find((each) => each.unit === rooflines.unit(cell)) || ceilings.peak;
        const peak = own ? own.rate : Infinity;
        const rate = Math.min(slope, peak);
        return isFinite(rate) ? {rate, of: slope < peak ? source.of : own.unit ? own.name : "arithmetic"} : null;
    };

    // The measured roofs as a table, with the clock of each and the datasheet's figure.
    rooflines.table = function (roofs) {
        const list = Object.values(roofs), unit = (roof) => (roof.of === "B/s" ? "GB/s" : roof.of === "OP/s" ? "GOP/s" : "GFLOP/s");
        if (!list.length) return null;
        return element("details", {}, element("summary", {}, "The roofs of this GPU, and how they were measured"),
            kernelwatch.table([{name: "roof"}, {name: "instruction"}, {name: "measured", number: true}, {name: "spread", number: true, title: "standard deviation over mean of the takes"},
                {name: "SM clock", number: true}, {name: "a cycle and SM", number: true, title: "operations"}, {name: "datasheet", number: true}, {name: "share", number: true, title: "of the datasheet's figure"}, {name: "limits"}],
            list.map((roof) => [roof.title, element("code", {}, roof.instruction), text.rate(roof.rate, unit(roof)), text.percent(roof.spread, 2), roof.clock_mhz ? Math.round(roof.clock_mhz) + " MHz" : "n/a",
                roof.per_clock ? text.digits(roof.per_clock, 4) : "", roof.datasheet ? text.rate(roof.datasheet, unit(roof)) : "n/a", roof.datasheet ? kernelwatch.ladders.share(roof.rate / roof.datasheet) : "n/a", roof.limits.join("; ") || "none"]), {"aria-label": "Roofs"}),
            element("p", {class: "small quiet"}, "Each roof repeats one instruction on random operands in registers or shared memory, and nothing else, in bursts of some milliseconds after a rest; L2 and memory are copies, bytes read and written. "
                + "Measured " + list[0].measured_at.slice(0, 10) + (list[0].driver ? " with driver " + list[0].driver : "") + ". A clock below the highest is the work's own, by the power that it draws: a kernel that draws less may have a higher one, and a higher roof."));
    };

    const GAP = 15;  // of labels, in pixels: the height of a line of 12 pixels, with its halo

    // Labels that do not overlap: heights in pixels -> heights at least `gap` apart, as near to their places as they can
    // be. `across`: where labels stand; only those nearer than `reach` to each other keep the gap.
    rooflines.dodge = function (places, gap, low, high, across = places.map(() => 0), reach = 1) {
        const found = [...places];
        const order = d3.range(places.length).sort((a, b) => places[a] - places[b]);
        for (let turn = 0, moved = true; moved && turn < 2000; turn++) {
            moved = false;
            for (let i = 1; i < order.length; i++) {
                for (let j = 0; j < i; j++) {
                    const [a, b] = [order[j], order[i]];
                    const lack = gap - (found[b] - found[a]);
                    if (lack <= 0.01 || Math.abs(across[a] - across[b]) >= reach) continue;
                    found[a] -= lack / 2;
                    found[b] += lack / 2;
                    moved = true;
                }
            }
            for (const each of order) found[each] = Math.max(low, Math.min(high, found[each]));
        }
        return found;
    };

    const tip = (cells, x, y, title) => Plot.tip(cells, Plot.pointer({x, y, title, maxRadius: 20, lineWidth: 30, lineHeight: 1.3, fill: "var(--panel)", stroke: "var(--rule)"}));
    const base_style = {background: "transparent", color: "currentColor", fontFamily: "inherit", fontSize: "12px", overflow: "visible"};
    const room = (into) => Math.max(280, Math.min(into.clientWidth || parseFloat(into.style.width) || 960, 1280));

    rooflines.title = (cell, ceilings) => {
        const rate = kernelwatch.rate(cell, cell.s), unit = cell.flops ? "GFLOP/s" : "GB/s";
        const roof = rooflines.roof(cell, ceilings);
        const figure = [rate / 1e9, kernelwatch.work(cell) / cell.high / 1e9, cell.low > 0 ? kernelwatch.work(cell) / cell.low / 1e9 : Infinity];
        const digits = text.significant(cell.s, cell.low, cell.high);
        return [cell.op + "/" + cell.rung + ", " + text.shape(cell.shape) + ", " + cell.cache,
            text.digits(figure[0], digits) + " " + unit + " (95 % interval " + kernelwatch.ladders.interval(figure, digits + 1) + ")",
            cell.flops ? text.digits(cell.flops / cell.bytes, 3) + " FLOP/byte" : text.bytes(cell.bytes),
            roof ? kernelwatch.ladders.share(rate / roof.rate) + " of the roof (" + roof.of + ")" : null,
            (cell.limits || []).length ? "! " + cell.limits.join("; ") : null].filter(Boolean).join("\n");
    };

    // The roofline of cells that compute. `chosen`: the cells of one op at one size, in ladder order, which are labeled and
    // joined; `lines`: the names among them that are no rungs; `label`: what is written beside a chosen cell.
    rooflines.draw = function (into, cells, ceilings, chosen, lines, alt, height = 430, label = (cell) => cell.rung) {
        const {LOOK} = kernelwatch.ladders;
        const width = Math.min(room(into), 1000);
        const narrow = width < 560;
        const path = chosen.filter((cell) => cell.s && cell.cache === "cold");
        const labeled = path.length ? path : chosen.filter((cell) => cell.s);
        const margin = {left: 62, right: 34 + 6.8 * Math.max(6, ...chosen.map((cell) => label(cell).length)), top: 22, bottom: 40};
        height = Math.max(height, GAP * labeled.length + margin.top + margin.bottom);
        const timed = cells.filter((cell) => cell.s && cell.flops && cell.bytes);
        const intensity = (cell) => cell.flops / cell.bytes;
        const rate = (cell) => cell.flops / cell.s / 1e9;
        const ridge = ceilings.copy && ceilings.peak ? ceilings.peak.rate / ceilings.copy.rate : null;
        const xs = [...timed.map(intensity), ...(ridge ? [ridge] : [])];
        const tops = ceilings.peaks.map((peak) => peak.rate / 1e9);
        const x = d3.scaleLog([d3.min(xs) / 4, d3.max(xs) * 1.6], [margin.left, width - margin.right]);
        const y = d3.scaleLog([d3.min(timed, rate) / 2, Math.max(d3.max(timed, rate), ...tops) * 1.7], [height - margin.bottom, margin.top]);
        const [x0, x1] = x.domain();
        const slope = (bytes_per_s, until) => {  // the part of a bandwidth's line that lies in the picture
            const start = Math.max(x0, y.domain()[0] / (bytes_per_s / 1e9)), end = Math.min(until, x1, y.domain()[1] / (bytes_per_s / 1e9));
            return {x1: start, y1: start * bytes_per_s / 1e9, x2: end, y2: end * bytes_per_s / 1e9};
        };
        const roofs = [
            ...(ceilings.copy ? [{...slope(ceilings.copy.rate, ridge || x1), main: true, bytes: true, rate: ceilings.copy.rate, words: (narrow ? "" : ceilings.copy.name + ", ") + text.rate(ceilings.copy.rate, "GB/s")}] : []),
            ...(ceilings.theoretical ? [{...slope(ceilings.theoretical, ceilings.peak ? ceilings.peak.rate / ceilings.theoretical : x1), dashed: true, bytes: true, rate: ceilings.theoretical, words: "theoretical"}] : []),
            ...ceilings.peaks.map((peak) => ({x1: ceilings.copy ? Math.max(x0, peak.rate / ceilings.copy.rate) : x0, x2: x1, y1: peak.rate / 1e9, y2: peak.rate / 1e9,
                main: peak === ceilings.peak, rate: peak.rate, words: narrow ? peak.short : (peak === ceilings.peak ? peak.name : peak.short) + ", " + text.rate(peak.rate, "GFLOP/s")})),
        ].filter((roof) => roof.x2 > roof.x1 && roof.y1 >= y.domain()[0] && roof.y2 <= y.domain()[1]);
        const angle = (180 / Math.PI) * Math.atan2(y(y.domain()[0] * 10) - y(y.domain()[0]), x(x0 * 10) - x(x0));
        const places = rooflines.dodge(labeled.map((cell) => y(rate(cell))), GAP, margin.top + 4, height - margin.bottom - 4,
            labeled.map((cell) => x(intensity(cell))), 26 + 6.6 * Math.max(0, ...labeled.map((cell) => label(cell).length)));
        const labels = labeled.map((cell, at) => ({cell, x: intensity(cell), y: rate(cell), to_x: x.invert(x(intensity(cell)) + 22), to_y: y.invert(places[at]), line: lines.includes(cell.rung)}));
        const beside = Math.max(x0, (ridge || x0) * 1.1);  // the names of horizontal ceilings stand right of the ridge
        // Where such a name must end: before the points whose labels stand beside it.
        const end = (roof) => Math.min(...labels.filter((each) => Math.abs(y(each.to_y) - y(roof.y1) + 11) < 15).map((each) => x(each.x) - 10), width);
        const fits = (roof) => x(beside) + roof.words.length * 6.5 < end(roof);
        const keys = new Set(chosen.map((cell) => cell.key));
        const faint = timed.filter((cell) => !keys.has(cell.key));
        const bright = chosen.filter((cell) => cell.s);
        const drawn = Plot.plot({
            width, height, marginLeft: margin.left, marginRight: margin.right, marginTop: margin.top, marginBottom: margin.bottom,
            x: {type: "log", domain: x.domain(), label: (narrow ? "" : "operational intensity: ") + "FLOP per compulsory byte \u2192", labelAnchor: "center", labelArrow: "none", ticks: narrow ? 4 : 6, tickFormat: (value) => (/^[125]/.test(String(value).replace(/^0\.0*/, "")) ? String(value) : "")},
            y: {type: "log", domain: y.domain(), label: "GFLOP/s", labelArrow: "none", ticks: 5, tickFormat: (value) => (String(value).replace(/^0\.0*/, "").startsWith('1') ? (value < 1e6 ? value.toLocaleString("en-US") : d3.format("~s")(value)) : ""), grid: false},
            style: base_style,
            marks: [
                Plot.gridY({ticks: d3.range(Math.ceil(Math.log10(y.domain()[0])), Math.log10(y.domain()[1])).map((power) => 10 ** power), stroke: "var(--rule)", strokeOpacity: 0.8}),
                ...[true, false].map((dashed) => Plot.link(roofs.filter((roof) => Boolean(roof.dashed) === dashed), {x1: "x1", y1: "y1", x2: "x2", y2: "y2", stroke: (roof) => (roof.main ? "var(--ink)" : "var(--quiet)"),
                    strokeWidth: (roof) => (roof.main ? 1.8 : 0.9), strokeDasharray: dashed ? "4,3" : null, ariaDescription: dashed ? "theoretical" : "roof"})),
                ...roofs.filter((roof) => !roof.bytes).map((roof) => Plot.text([roof], {x: (each) => (fits(each) ? beside : end(each) < width ? x.invert(end(each)) : each.x2), y: "y1", text: "words", textAnchor: (fits(roof) ? "start" : "end"), dy: -7, fill: roof.main ? "var(--ink)" : "var(--quiet)", stroke: "var(--page)", strokeWidth: 4})),
                ...roofs.filter((roof) => roof.bytes && !roof.dashed).map((roof) => Plot.text([roof], {x: "x1", y: "y1", text: "words", textAnchor: "start", rotate: angle, dx: 14, dy: 8, fill: "var(--ink)"})),
                Plot.dot(faint, {x: intensity, y: rate, symbol: (cell) => LOOK[cell.cache]?.symbol || "circle", r: 2.2, fill: "var(--quiet)", fillOpacity: 0.55, ariaDescription: "other"}),
                new Set(path.map((cell) => cell.shape)).size > 1 ? null : Plot.line(path.filter((cell) => !lines.includes(cell.rung)), {x: intensity, y: rate, stroke: "var(--cold)", strokeWidth: 1, ariaDescription: "path"}),
                Plot.link(labels, {x1: "x", y1: "y", x2: "to_x", y2: "to_y", stroke: "var(--rule)", strokeWidth: 1}),
                Plot.ruleX(bright, {x: intensity, y1: (cell) => cell.flops / cell.high / 1e9, y2: (cell) => cell.flops / Math.max(cell.low, cell.s / 10) / 1e9, stroke: "var(--ink)", strokeWidth: 1.5, clip: true, ariaDescription: "interval"}),
                ...["cold", "hot"].map((cache) => Plot.dot(bright.filter((cell) => cell.cache === cache), {x: intensity, y: rate, symbol: LOOK[cache].symbol, r: 3.8,
                    fill: (cell) => (lines.includes(cell.rung) ? "var(--page)" : LOOK[cache].color), stroke: LOOK[cache].color, strokeWidth: 1.4, ariaDescription: "point " + cache})),
                ...[true, false].map((line) => Plot.text(labels.filter((each) => each.line === line), {x: "to_x", y: "to_y", text: (each) => label(each.cell), textAnchor: "start", dx: 3,
                    fontStyle: line ? "italic" : "normal", fill: line ? "var(--quiet)" : "var(--ink)", stroke: "var(--page)", strokeWidth: 3})),
                tip(timed, intensity, rate, (cell) => rooflines.title(cell, ceilings)),
            ].filter(Boolean),
        });
        kernelwatch.describe(drawn, alt);
        const attributes = (cell) => ({key: cell.key, value: rate(cell), intensity: intensity(cell)});
        for (const cache of ["cold", "hot"]) kernelwatch.marked(drawn, `[data-mark="point ${cache}"] *`, bright.filter((cell) => cell.cache === cache), attributes);
        kernelwatch.marked(drawn, '[data-mark="other"] *', faint, attributes);
        return kernelwatch.marked(drawn, '[data-mark="roof"] *', roofs.filter((roof) => !roof.dashed), (roof) => ({rate: roof.rate}));
    };

    // Bandwidth against the size of the operands, a line for each rung. `rows`: {name, line}.
    rooflines.bandwidth = function (into, cells, rows, ceilings, facts, alt, width = room(into), height = 330) {
        const {LOOK} = kernelwatch.ladders;
        const longest = Math.max(...rows.map((row) => row.name.length)) * 6.6 + 40;
        const margin = {left: 52, right: longest, top: 22, bottom: 40};
        const timed = cells.filter((cell) => cell.s && cell.bytes && !cell.flops);
        const rate = (cell) => cell.bytes / cell.s / 1e9;
        const cache_bytes = facts.l2_bytes || facts.cache_bytes;
        const line = (cell) => rows.find((row) => row.name === cell.rung)?.line;
        const l2 = timed.some((cell) => cell.cache === "hot") ? ceilings.l2 : null;
        const tops = [ceilings.copy?.rate, l2?.rate, ceilings.theoretical].filter(Boolean).map((each) => each / 1e9);
        const x = d3.scaleLog([d3.min(timed, (cell) => cell.bytes) / 1.5, d3.max(timed, (cell) => cell.bytes) * 1.3], [margin.left, width - margin.right]);
        const y = d3.scaleLinear([0, Math.max(d3.max(timed, rate), ...tops) * 1.05], [height - margin.bottom, margin.top]);
        const series = d3.groups(timed, (cell) => cell.rung, (cell) => cell.cache).flatMap(([, groups]) => groups.map(([, list]) => list.sort((a, b) => a.bytes - b.bytes)));
        const ends = d3.groups(timed, (cell) => cell.rung).map(([, list]) => d3.greatest(list, (cell) => cell.bytes + (cell.cache === "cold" ? 0.5 : 0)));
        const places = rooflines.dodge(ends.map((cell) => y(rate(cell))), GAP, margin.top, height - margin.bottom - 4);
        const labels = ends.map((cell, at) => ({cell, to_y: y.invert(places[at]), to_x: x.invert(width - margin.right + 24), line: line(cell)}));
        const levels = [
            ...(ceilings.copy ? [{rate: ceilings.copy.rate, words: (width < 560 ? ceilings.copy.name.split(",")[0] : ceilings.copy.name) + ", " + text.rate(ceilings.copy.rate, "GB/s")}] : []),
            ...(l2 ? [{rate: l2.rate, words: l2.name + ", " + text.rate(l2.rate, "GB/s")}] : []),
            ...(ceilings.theoretical ? [{rate: ceilings.theoretical, words: "theoretical, " + text.rate(ceilings.theoretical, "GB/s"), dashed: true}] : []),
        ];
        const sizes = d3.range(8, 50, 2).map((power) => 2 ** power).filter((bytes) => bytes >= x.domain()[0] && bytes <= x.domain()[1]);
        const drawn = Plot.plot({
            width, height, marginLeft: margin.left, marginRight: margin.right, marginTop: margin.top, marginBottom: margin.bottom,
            x: {type: "log", base: 2, domain: x.domain(), ticks: sizes.filter((_, at) => (width - longest > 420 ? true : at % 2 === 0)), tickFormat: (bytes) => text.bytes(bytes).replace(/\.0+(?= )/, ""), label: "compulsory bytes \u2192", labelAnchor: "center", labelArrow: "none"},
            y: {domain: y.domain(), label: "GB/s", labelArrow: "none", ticks: 5}, style: base_style,
            marks: [
                Plot.gridY({ticks: 5, stroke: "var(--rule)", strokeOpacity: 0.8}),
                cache_bytes && cache_bytes > x.domain()[0] && cache_bytes < x.domain()[1] ? Plot.ruleX([cache_bytes], {stroke: "var(--quiet)", strokeWidth: 1, strokeDasharray: "1,3", ariaDescription: "cache"}) : null,
                cache_bytes && cache_bytes > x.domain()[0] && cache_bytes < x.domain()[1] ? Plot.text([cache_bytes], {x: (each) => each, frameAnchor: "bottom", rotate: -90, dy: -6, dx: -8, textAnchor: "start", text: (each) => (facts.l2_bytes ? "L2, " : "last-level cache, ") + text.bytes(each), fill: "var(--quiet)", stroke: "var(--page)", strokeWidth: 4}) : null,
                ...levels.map((level) => Plot.ruleY([level], {y: (each) => each.rate / 1e9, stroke: level.dashed ? "var(--quiet)" : "var(--ink)", strokeWidth: level.dashed ? 0.9 : 1.5, strokeDasharray: level.dashed ? "4,3" : null, ariaDescription: level.dashed ? "theoretical" : "roof"})),
                Plot.text(levels, {y: (level) => level.rate / 1e9, frameAnchor: "left", textAnchor: "start", dx: 4, dy: -7, text: "words", fill: "var(--ink)", stroke: "var(--page)", strokeWidth: 3}),
                ...series.map((list) => Plot.line(list, {x: "bytes", y: rate, stroke: line(list[0]) ? "var(--quiet)" : LOOK[list[0].cache]?.color, strokeWidth: 1.1, strokeOpacity: 0.8, strokeDasharray: line(list[0]) ? "3,2" : null})),
                Plot.link(labels, {x1: (each) => each.cell.bytes, y1: (each) => rate(each.cell), x2: "to_x", y2: "to_y", stroke: "var(--rule)", strokeWidth: 1}),
                Plot.ruleX(timed, {x: "bytes", y1: (cell) => cell.bytes / cell.high / 1e9, y2: (cell) => cell.bytes / Math.max(cell.low, cell.s / 10) / 1e9, stroke: "var(--ink)", strokeWidth: 1.2, clip: true, ariaDescription: "interval"}),
                ...["cold", "hot"].map((cache) => Plot.dot(timed.filter((cell) => cell.cache === cache), {x: "bytes", y: rate, symbol: LOOK[cache].symbol, r: 3, fill: (cell) => (line(cell) ? "var(--page)" : LOOK[cache].color), stroke: LOOK[cache].color, strokeWidth: 1.2, ariaDescription: "point " + cache})),
                ...[true, false].map((each) => Plot.text(labels.filter((label) => Boolean(label.line) === each), {x: "to_x", y: "to_y", text: (label) => label.cell.rung, textAnchor: "start", dx: 3, fontStyle: each ? "italic" : "normal", fill: each ? "var(--quiet)" : "var(--ink)"})),
                tip(timed, "bytes", rate, (cell) => rooflines.title(cell, ceilings)),
            ].filter(Boolean),
        });
        kernelwatch.describe(drawn, alt);
        for (const cache of ["cold", "hot"]) kernelwatch.marked(drawn, `[data-mark="point ${cache}"] *`, timed.filter((cell) => cell.cache === cache), (cell) => ({key: cell.key, value: rate(cell)}));
        return drawn;
    };
}

kernelwatch.view("roofline", async function (main, parameters) {
    const {element, text, link, ladders, rooflines} = kernelwatch;
    const {site, commits, cells} = await kernelwatch.common();
    const machine = await kernelwatch.machine(parameters.get("machine"));
    const given = Object.fromEntries(parameters);
    const go = (changes) => kernelwatch.go("roofline", {...given, ...changes});
    const at = kernelwatch.commit_at(machine, commits, given.commit);
    const snapshot = await machine.load("at/" + at);
    const all = site.ops.flatMap((op) => ladders.cells(snapshot, cells, op.name));
    const devices = ["gpu", "cpu"].filter((each) => all.some((cell) => cell.device === each && cell.s));
    const device = given.device || devices[0] || "gpu";
    const of_device = all.filter((cell) => cell.device === device && cell.s);
    const types = [...new Set([...site.ops.flatMap((op) => op.types), ...of_device.map((cell) => cell.type)])].filter((type) => of_device.some((cell) => cell.type === type));
    const type = given.type || types[0];
    const here = of_device.filter((cell) => cell.type === type);
    const facts_of = (op) => ladders.facts(snapshot, op, device);
    const facts = site.ops.map((op) => facts_of(op.name)).find((each) => each.ceilings) || facts_of(here[0]?.op);
    const name = device === "cpu" ? facts.cpu || machine.summary.cpu : facts.gpu || machine.summary.gpu;

    main.append(element("h1", {}, "Roofline" + (type ? ", " + type : "") + (name ? ", " + name : "")),
        element("p", {}, "A roofline shows what a kernel could reach: its operations per byte that must be moved (the operational intensity) decide whether memory or arithmetic limits it. The nearer a rung comes to the roof, the less is left to gain."),
        element("div", {class: "controls"},
            site.machines.length > 1 ? kernelwatch.choice("machine", site.machines.map((each) => each.name), machine.summary.name, (value) => go({machine: value, commit: ""})) : null,
            devices.length > 1 || !devices.includes(device) ? kernelwatch.choice("device", [...new Set([...devices, device])].map((each) => [each, ladders.DEVICES[each] || each]), device, (value) => go({device: value, type: "", shape: ""})) : null,
            type ? kernelwatch.choice("element type", [...new Set([...types, type])], type, (value) => go({type: value, shape: ""})) : null,
            kernelwatch.commit_choice("commit", machine, commits, at, (value) => go({commit: value}))));
    if (!here.length) {
        main.append(element("p", {}, "At the commit ", kernelwatch.commit_link(at, commits), " nothing was timed on the " + (ladders.DEVICES[device] || device) + (type ? " with " + type : "") + "." + (types.length ? " Timed there: " + types.join(", ") + "." : "")));
        return;
    }
    main.append(element("p", {class: "small quiet"}, "Commit ", kernelwatch.commit_link(at, commits), facts.measured_at ? ", measured " + facts.measured_at.slice(0, 10) : "", " on " + machine.summary.name + "."));

    const computing = site.ops.filter((op) => here.some((cell) => cell.op === op.name && cell.flops));
    const moving = site.ops.filter((op) => here.some((cell) => cell.op === op.name && !cell.flops && cell.bytes));
    const roofs = device === "cpu" ? {} : rooflines.roofs(machine, facts), has_roofs = Object.keys(roofs).length > 0;
    const ceilings_of = (op) => rooflines.ceilings(facts_of(op.name), type, device === "cpu" ? here : here.filter((cell) => cell.flops), roofs);
    const legend = (list, extra) => ladders.legend([
        ...["cold", "hot"].filter((cache) => list.some((cell) => cell.cache === cache)).map((cache) => [cache, cache + ": " + ladders.LOOK[cache].mean]), ...extra]);
    const in_order = (op, list) => {
        const rows = ladders.rows(op, device, list);
        return {rows, list: rows.flatMap((row) => list.filter((cell) => cell.rung === row.name))};
    };

    for (const op of computing) {
        const own = here.filter((cell) => cell.op === op.name && cell.flops);
        const ceilings = ceilings_of(op);
        const shapes = [...new Set([...(op.shapes[device] || []), ...own.map((cell) => cell.shape)])].filter((shape) => own.some((cell) => cell.shape === shape));
        const count = (shape) => new Set(own.filter((cell) => cell.shape === shape).map((cell) => cell.rung)).size;
        const most = d3.max(shapes, count);
        const shape = shapes.includes(given.shape) ? given.shape : d3.greatest(shapes.filter((each) => count(each) > most / 2), (each) => own.find((cell) => cell.shape === each).flops);
        const {rows, list} = in_order(op, own.filter((cell) => cell.shape === shape));
        const lines = rows.filter((row) => row.line).map((row) => row.name);
        main.append(element("section", {},
            element("h2", {}, op.name),
            element("div", {class: "controls"}, kernelwatch.choice("size", shapes.map((each) => [each, text.shape(each)]), shape, (value) => go({shape: value}))),
            legend(own, [["path", "the rungs at " + text.shape(shape) + ", joined in the order of the ladder"], ["small-dot", "other sizes"],
                lines.length ? ["hollow", "hollow, label in italics: the line that the rungs are held against"] : null,
                ["roof", "ceilings: " + (has_roofs ? "each unit's, measured by its own instruction" + (ceilings.peaks.some((each) => each.name.includes(" / ")) ? "; / 3: one operation takes three of the unit's" : "") : facts.ceilings ? "measured in the same run by the harness" : "the highest rates measured here, since the harness measures no ceiling of this device")],
                ceilings.theoretical ? ["dashes", "theoretical bandwidth, " + text.rate(ceilings.theoretical, "GB/s") + ": bus width times memory clock"] : null].filter(Boolean)),
            element("figure", {}, rooflines.draw(main, own, ceilings, list, lines, "Roofline of " + op.name + " " + type + ": GFLOP/s against operations per byte; the table below lists the shares")),
            ceilings.others.size ? element("p", {class: "small quiet"}, has_roofs ? "The ceiling of the units on which " + rows.map((row) => row.name).filter((each) => ceilings.others.has(each)).join(", ") + " compute is not known. They have a share of the roof only where memory certainly limits them."
                : "The harness measures no ceiling of tensor cores" + (ceilings.peak
                ? ", on which " + rows.map((row) => row.name).filter((each) => ceilings.others.has(each)).join(", ") + " compute. They have a share of the roof only where memory certainly limits them."
                : ", nor one of " + type.split("->")[0] + " multiply-adds. A rung has a share of the roof only where memory certainly limits it.")) : null));
        matrix(op, own, shapes, ceilings);
    }
    const roofs_table = rooflines.table(roofs);
    if (roofs_table) main.append(roofs_table);
    if (!computing.length) main.append(element("p", {}, "No op with operations to count was timed with " + type + " on this device, so there is no intensity to draw; below stands bandwidth against size."));
    for (const op of moving) {
        const own = here.filter((cell) => cell.op === op.name && !cell.flops);
        const ceilings = ceilings_of(op);
        const shapes = [...new Set([...(op.shapes[device] || []), ...own.map((cell) => cell.shape)])].filter((shape) => own.some((cell) => cell.shape === shape));
        const {rows} = in_order(op, own);
        main.append(element("section", {},
            element("h2", {}, op.name + ": bandwidth against size"),
            element("p", {}, op.name + " computes nothing that is counted, so its roof is the bandwidth of memory. Effective bandwidth counts each operand once; " + (ceilings.l2 ? "the roof of a hot cell that fits in the L2 cache is a copy within it." : "operands that stay in the cache can exceed the roof.")),
            legend(own, rows.some((row) => row.line) ? [["hollow", "hollow, dashed, label in italics: lines to compare with"]] : []),
            element("figure", {}, rooflines.bandwidth(main, own, rows, ceilings, facts_of(op.name), "Bandwidth of " + op.name + " " + type + " against its compulsory bytes; the table below lists the shares"))));
        matrix(op, own, shapes, ceilings);
    }

    // A rate with half its interval as a share, which is short.
    function rate_text(unit, cell) {
        const [value, low, high] = ladders.figure(unit, cell);
        return [text.digits(value, text.significant(value, low, high)), element("div", {title: ladders.interval([value, low, high], 5)},
            isFinite(high) ? "\u00b1 " + text.percent((high - low) / 2 / value, 2) : "at least " + text.digits(low, 3))];
    }

    // Every rung at every size: the share of the roof, and the rate with its interval.
    function matrix(op, own, shapes, ceilings) {
        for (const cache of ["cold", "hot"]) {
            const list = own.filter((cell) => cell.cache === cache);
            const present = shapes.filter((shape) => list.some((cell) => cell.shape === shape));
            if (!list.length) continue;
            const {rows} = in_order(op, list);
            const head = element("summary", {}, "Share of the roof, " + cache + ", and " + op.unit + " \u00b1 half its 95 % interval");
            main.append(element("details", {open: cache === "cold"}, head,
                kernelwatch.table([{name: "rung"}, ...present.map((shape) => ({name: ladders.short_shape(shape), number: true, title: text.shape(shape)}))],
                    rows.map((row) => [link(row.name, "rung", {op: op.name, rung: row.name, machine: given.machine}), ...present.map((shape) => {
                        const cell = list.find((each) => each.rung === row.name && each.shape === shape);
                        const roof = cell && rooflines.roof(cell, ceilings);
                        if (!cell) return element("span", {class: "quiet"}, "\u2013");
                        const unit = {of: (each, s) => kernelwatch.rate(each, s) / 1e9, high: true};
                        return element("span", {title: (cell.limits || []).join("; ") || null}, roof ? ladders.share(kernelwatch.rate(cell, cell.s) / roof.rate) : "n/a",
                            (cell.limits || []).length ? element("span", {class: "warn"}, " !") : null,
                            element("div", {class: "small quiet"}, rate_text(unit, cell)));
                    })]), {"aria-label": op.name + " " + cache + ": share of the roof"}),
                element("p", {class: "small quiet"}, op.unit === "GB/s" ? "The roof is " + (ceilings.copy ? ceilings.copy.name + ", " + text.rate(ceilings.copy.rate, "GB/s") + (ceilings.l2 && cache === "hot" ? ", in the L2 cache " + text.rate(ceilings.l2.rate, "GB/s") : "") : "not known") + "."
                    : "The roof at a size is the lower of bandwidth times intensity and the ceiling of the units that compute; n/a: the ceiling of its units is not known.", list.some((cell) => (cell.limits || []).length) ? " ! marks a cell that met a limit: " + [...new Set(list.flatMap((cell) => cell.limits || []))].join("; ") + "." : "")));
        }
    }
});
