// How two machines compare: what they are, and the cells that both timed, by time and by the share of their own ceilings.
"use strict";

{
    const {element, text, link, table} = kernelwatch;
    const SIGNS = ["\u25cf", "\u25a0", "\u25b2", "\u25c6", "\u2605", "\u271a", "\u2144", "+"];  // of kernelwatch.symbols

    const times = (ratio, digits = 3) => text.digits(ratio, digits) + "\u00d7";
    const geometric = (values) => Math.exp(d3.mean(values, Math.log));

    // What a cell could reach on each of two machines: operations of its unit if the roof was measured on both, else of its
    // type, or bytes of a copy; null if it was not measured. `sides`: [[snapshot, machine], ...].
    function tops(cell, sides) {
        const facts = sides.map(([snapshot]) => snapshot.facts[cell.op + " " + cell.device] || {});
        const roofs = sides.map(([, machine], index) => kernelwatch.rooflines.roofs(machine, facts[index])[cell.flops ? cell.unit : "memory"]);
        if (cell.device === "gpu" && roofs.every(Boolean)) return roofs.map((roof) => roof.rate / (cell.operations || 1));
        return facts.map(({ceilings = {}}) => (cell.flops ? ceilings[cell.type + "_flops_per_s"] : ceilings.copy_bytes_per_s) || null);
    }

    // The recorded machines, one a row. `chosen`: the summary of the one that the page shows.
    kernelwatch.machines_table = function (site, commits, chosen) {
        const rate = (summary, name, unit) => ((summary.ceilings || {})[name] ? text.rate(summary.ceilings[name], unit) : "");
        const cpus = site.machines.some((each) => each.cpu);  // read where CPU cells were timed
        return table([{name: "Machine"}, ...(cpus ? [{name: "CPU"}] : []), {name: "Copy", number: true, title: "measured bandwidth of a copy"}, {name: "float32", number: true, title: "measured multiply-adds"},
            {name: "float64", number: true, title: "measured multiply-adds"}, {name: "Commits", number: true}, {name: "Newest"}, {name: ""}],
        site.machines.map((each) => [[link(kernelwatch.device_name(each), "devices", {machine: each.name}), element("div", {class: "small quiet"}, each.name)], ...(cpus ? [each.cpu] : []),
            rate(each, "copy_bytes_per_s", "GB/s"), rate(each, "float32_flops_per_s", "GFLOP/s"), rate(each, "float64_flops_per_s", "GFLOP/s"), String(each.commits),
            [link(text.hash(commits[each.newest].hash), "commit", {hash: text.hash(commits[each.newest].hash)}, {class: "hash"}), " ", element("span", {class: "whole"}, text.date(commits[each.newest].date))],
            each === chosen ? "shown here" : link("compare", "devices", {machine: chosen.name, with: each.name}, {"aria-label": "compare with " + each.name})]), {"aria-label": "Machines"});
    };

    const LOOKS = 8;  // at commits that both measured, until one has cells that both timed

    // The snapshots of two machines that are compared: [{at, ...}, {at, ...}]: of the newest commit at which both timed
    // the same cells, else of the newest commit of each.
    async function snapshots(machine, other) {
        const load = async (each, at) => ({at, ...await each.load("at/" + at)});
        const theirs = new Set(other.details.commits);
        for (const at of machine.details.commits.filter((each) => theirs.has(each)).sort((a, b) => b - a).slice(0, LOOKS)) {
            const both = await Promise.all([load(machine, at), load(other, at)]);
            if (Object.keys(both[0].cells).some((key) => both[0].cells[key].s && (both[1].cells[key] || {}).s)) return both;
        }
        return Promise.all([load(machine, machine.summary.newest), load(other, other.summary.newest)]);
    }

    kernelwatch.compare = async function (main, machine, other, common) {
        const [ours, theirs] = await snapshots(machine, other), {cells} = common;
        const all = Object.keys(ours.cells).filter((key) => ours.cells[key].s && (theirs.cells[key] || {}).s).map((key) => {
            const [a, b] = [ours.cells[key], theirs.cells[key]], reach = tops(cells[key], [[ours, machine], [theirs, other]]);
            return {key, op: cells[key].op, a, b, ratio: b.s / a.s, low: a.high === undefined || b.low === undefined ? null : Math.max(0, b.low) / a.high, high: a.low > 0 ? b.high / a.low : Infinity,
                shares: [a, b].map(({s}, index) => (reach[index] && kernelwatch.work(cells[key]) ? kernelwatch.rate(cells[key], s) / reach[index] : null))};
        }).sort((a, b) => b.ratio - a.ratio);
        const names = [machine, other].map((each) => kernelwatch.device_name(each.summary));
        const [one, two] = names[0] === names[1] ? [machine.summary.name, other.summary.name] : names;
        main.append(element("h2", {}, one + " and " + two));
        const at = (each) => [link(text.hash(common.commits[each.at].hash), "commit", {hash: text.hash(common.commits[each.at].hash)}, {class: "hash"}), " of " + text.date(common.commits[each.at].date)];
        main.append(element("p", {}, ours.at === theirs.at ? ["The newest commit that both measured: ", at(ours), "."]
            : ["They share no commit at which both timed the same cells. The newest commit of each: ", at(ours), " and ", at(theirs), ". They differ, so a ratio also says what changed between the two commits."]));
        differences(main, kernelwatch.facts_of(ours), kernelwatch.facts_of(theirs), one, two);
        if (!all.length) main.append(element("p", {}, "They have no timed cell in common."));
        for (const kind of ["gpu", "cpu"]) {
            const rows = all.filter((row) => (cells[row.key].device === "cpu" ? "cpu" : "gpu") === kind);
            const [first, second] = [machine, other].map((each) => each.summary[kind] || each.summary.name);
            if (rows.length) pair(main, machine, rows, cells, ...(first === second ? [one, two] : [first, second]));
        }
    };

    // What is known of both machines and differs, with the ratio of numbers; what is alike is folded.
    function differences(main, ours, theirs, first, second) {
        const [mine, other] = [ours, theirs].map((facts) => new Map(facts.map(([what, ...value]) => [what, value])));
        const rows = [...new Set([...mine.keys(), ...other.keys()])].map((what) => {
            const [[a, x], [b, y]] = [mine.get(what) || ["", null], other.get(what) || ["", null]];
            return {what, a: String(a), b: String(b), ratio: x && y ? y / x : null};
        });
        const columns = [{name: "What"}, {name: first}, {name: second}, {name: "Ratio", number: true, title: "second over first"}];
        const cells = (list) => list.map(({what, a, b, ratio}) => [what, a || "n/a", b || "n/a", ratio ? element("span", {"data-fact": what, "data-ratio": ratio}, times(ratio)) : ""]);
        const differ = rows.filter((row) => row.a !== row.b), alike = rows.filter((row) => row.a === row.b);
        main.append(element("h3", {}, "What differs"), differ.length ? table(columns, cells(differ), {"aria-label": "What differs"}) : element("p", {}, "Nothing that was read of them differs."));
        if (alike.length) {
            main.append(element("details", {}, element("summary", {}, text.plural(alike.length, "fact") + " alike"),
                table([{name: "What"}, {name: "On both"}], alike.map(({what, a}) => [what, a]), {"aria-label": "What is alike"})));
        }
    }

    // The cells of one kind of device on both machines. `first`, `second`: names of the devices.
    function pair(main, machine, rows, cells, first, second) {
        main.append(element("h3", {}, cells[rows[0].key].device === "cpu" ? "Time on the CPUs" : "Time on the GPUs"));
        const ops = [...new Set(rows.map((row) => row.op))];
        const points = rows.filter((row) => row.shares.every((share) => share !== null));
        const middle = (own, index) => (own.length ? text.percent(d3.median(own, (row) => row.shares[index])) : "n/a");
        main.append(element("p", {}, "How many times as long ", element("b", {}, second), " takes as ", element("b", {}, first), ": below 1 it is the faster one."),
            table([{name: "Op"}, {name: "Time ratio", number: true, title: "geometric mean over the cells that both timed"}, {name: "Lowest", number: true}, {name: "Highest", number: true}, {name: "Cells", number: true},
                ...(points.length ? [first, second] : []).map((name) => ({name: "Share of its ceiling, " + name, number: true, title: "median over the cells"}))],
            ops.map((op) => {
                const own = rows.filter((row) => row.op === op), shared = points.filter((row) => row.op === op), ratio = geometric(own.map((row) => row.ratio));
                return [op, element("b", {"data-op": op, "data-ratio": ratio}, times(ratio)), times(d3.min(own, (row) => row.ratio)), times(d3.max(own, (row) => row.ratio)), String(own.length),
                    ...(points.length ? [0, 1].map((index) => middle(shared, index)) : [])];
            }), {"aria-label": "Time by op"}));
        if (points.length) shares(main, points, rows, ops, first, second);
        const interval = (row) => (row.low === null ? "" : text.digits(row.low, 4) + " \u2013 " + (isFinite(row.high) ? text.digits(row.high, 4) : "\u221e"));
        main.append(...[kernelwatch.folded([{name: "Cell"}, {name: first, number: true}, {name: second, number: true}, {name: "Ratio", number: true, title: "time of the second over time of the first"}, {name: "Interval", number: true, title: "of the ratio, from the ends of both 95 % intervals"},
            ...(points.length ? [first, second] : []).map((name) => ({name: "Share of ceiling, " + name, number: true}))],
        rows.map((row) => [link(row.key, "history", {cell: row.key, machine: machine.summary.name}), text.time(row.a.s, text.significant(row.a.s, row.a.low, row.a.high)), text.time(row.b.s, text.significant(row.b.s, row.b.low, row.b.high)),
            element("span", {"data-key": row.key, "data-ratio": row.ratio}, times(row.ratio, 4)), interval(row), ...(points.length ? row.shares.map((share) => text.percent(share)) : [])]), "Cells on both machines")].flat());
    }

    // Each cell's share of the ceiling of either machine: one point a cell, level ones on the diagonal.
    function shares(main, points, rows, ops, first, second) {
        const most = 100 * d3.max(points, (row) => d3.max(row.shares)) * 1.05, least = 100 * d3.min(points, (row) => d3.min(row.shares)) / 1.1;
        const width = Math.min(620, main.clientWidth || parseFloat(main.style.width) || 620);
        const axis = {type: "log", domain: [least, most], labelArrow: "none", ticks: 5, tickFormat: (value) => text.exact(value, 2), grid: true};
        const drawn = kernelwatch.plot(main, {
            width, height: Math.min(width, 520), marginLeft: 54, marginBottom: 42, marginTop: 26, marginRight: 20,
            x: {...axis, label: "share of its own ceiling on " + first + " (%)", labelAnchor: "center"}, y: {...axis, label: "on " + second + " (%)"},
            marks: [Plot.line([[least, least], [most, most]], {stroke: "var(--quiet)", strokeDasharray: "4 3"}),
                ...ops.map((op, index) => Plot.dot(points.filter((row) => row.op === op), {x: (row) => 100 * row.shares[0], y: (row) => 100 * row.shares[1], r: 3.6, symbol: kernelwatch.symbols[index % 8], stroke: kernelwatch.colors[index % 8],
                    strokeWidth: 1.4, className: "share of" + index})),
                Plot.tip(points, Plot.pointer({x: (row) => 100 * row.shares[0], y: (row) => 100 * row.shares[1], maxRadius: 18, fill: "var(--panel)", stroke: "var(--rule)", lineWidth: 40,
                    title: (row) => row.key + "\n" + text.percent(row.shares[0]) + " on " + first + ", " + text.percent(row.shares[1]) + " on " + second + "\n" + times(row.ratio, 4) + " the time"}))],
        }, "Share of each machine\u2019s own ceiling, cell by cell");
        ops.forEach((op, index) => kernelwatch.marked(drawn, ".share.of" + index + " > *", points.filter((row) => row.op === op), (row) => ({key: row.key, first: row.shares[0], second: row.shares[1]})));
        main.append(element("ul", {class: "legend"}, ops.map((op, index) => element("li", {}, element("span", {"aria-hidden": "true", class: "sign" + index}, SIGNS[index % 8]), op))), drawn,
            element("p", {class: "quiet small"}, "The ceilings are each machine\u2019s own, measured: its copy for bytes, its arithmetic for operations of the cell\u2019s unit or type. Above the dashed line a rung makes better use of " + second + " than of " + first + ". More than 100 % comes out of a cache, or of tensor cores."
                + (points.length < rows.length ? " " + text.plural(rows.length - points.length, "cell") + " of types without a measured ceiling are in the table only." : "")));
        main.querySelectorAll(".legend [class^='sign']").forEach((sign, index) => { sign.style.color = kernelwatch.colors[index % ops.length % 8]; });
    }
}
