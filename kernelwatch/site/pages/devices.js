// The machines: what they are, how steady they were, how far repeated measurements of one commit differ, which cells met
// limits or failed.
"use strict";

{
    const {element, text, link, choice, table} = kernelwatch;
    const SHOWN = 20;  // rows of a table that can be unfolded
    const DOTS = 240;

    const percent = (share) => text.percent(share, share < 0.001 ? 3 : 2);
    const cell_link = (key, machine) => link(key, "history", {cell: key, machine});

    // A table whose rows beyond the first ones a button shows.
    const folded = (kernelwatch.folded = function (columns, rows, label, shown = SHOWN) {
        if (rows.length <= shown + 5) return table(columns, rows, {"aria-label": label});
        const drawn = table(columns, rows.slice(0, shown), {"aria-label": label});
        const more = element("button", {type: "button", onclick: () => {
            const rest = table(columns, rows.slice(shown));
            drawn.querySelector("tbody").append(...rest.querySelectorAll("tbody tr"));
            more.remove();
        }}, "Show all " + rows.length + " rows");
        return [drawn, element("p", {}, more)];
    });

    // --- what a machine is -----------------------------------------------------------------------------------------

    // What the groups of a snapshot read, those of the GPU last: the exact figures may come from another machine.
    const ORDER = ["static", "access", "cpu", "several", "streamed", "gpu"];
    const together = (snapshot) => Object.assign({}, ...d3.sort(Object.entries(snapshot.facts), ([group]) => ORDER.indexOf(group.split(" ")[1])).map(([, facts]) => facts));

    // [what, text, number] of what is known of a machine, the number if two machines can be compared by it; nothing is shown
    // that nothing read.
    kernelwatch.facts_of = function (snapshot) {
        const facts = together(snapshot);
        const yes = (value) => (value ? "on" : "off");
        const lines = [
            ["GPU", facts.gpu], ["Compute capability", facts.compute_capability && facts.compute_capability.replace(/(\d)$/, ".$1")],
            ["Multiprocessors", facts.multiprocessors, facts.multiprocessors], ["L2 cache", facts.l2_bytes && text.bytes(facts.l2_bytes), facts.l2_bytes],
            ["Lines that persist in the L2 cache", facts.l2_reset && (facts.l2_reset === "ok" ? "reset before each timing" : "not reset: " + facts.l2_reset)],
            ["Memory", facts.nvml_memory_bytes && text.bytes(facts.nvml_memory_bytes), facts.nvml_memory_bytes],
            ["SM clock, highest", facts.nvml_sm_clock_max_mhz && facts.nvml_sm_clock_max_mhz + " MHz", facts.nvml_sm_clock_max_mhz],
            ["Memory clock, highest", facts.nvml_memory_clock_max_mhz && facts.nvml_memory_clock_max_mhz + " MHz", facts.nvml_memory_clock_max_mhz],
            ["Memory bus", facts.nvml_memory_bus_bits && facts.nvml_memory_bus_bits + " bits", facts.nvml_memory_bus_bits],
            ["Theoretical bandwidth (bus width times memory clock)", facts.nvml_theoretical_bandwidth_bytes_per_s && text.rate(facts.nvml_theoretical_bandwidth_bytes_per_s, "GB/s"), facts.nvml_theoretical_bandwidth_bytes_per_s],
            ["Power limit", facts.nvml_power_limit_w && facts.nvml_power_limit_w + " W", facts.nvml_power_limit_w],
            ["ECC", "nvml_ecc" in facts && yes(facts.nvml_ecc)], ["MIG", "nvml_mig" in facts && yes(facts.nvml_mig)],
            ["Persistence mode", "nvml_persistence" in facts && yes(facts.nvml_persistence)],
            ["PCIe", facts.nvml_pcie_generation && "generation " + facts.nvml_pcie_generation + ", " + facts.nvml_pcie_lanes + " lanes"],
            ["Driver", facts.nvml_driver], ["CUDA", facts.cuda_runtime && "runtime " + facts.cuda_runtime + ", driver " + facts.cuda_driver],
            ["CPU", facts.cpu], ["Cores used", facts.cores && facts.cores.length], ["Last-level cache of the CPU", facts.cache_bytes && text.bytes(facts.cache_bytes)],
            ["Compiler", facts.compiler], ["Packages", facts.packages && Object.entries({...facts.packages, ...facts.imports}).map(([name, version]) => name + " " + version).join(", ")],
        ];
        const ceilings = facts.ceilings || {};
        const words = {copy_bytes_per_s: ["Copy, measured", "GB/s"], float32_flops_per_s: ["float32 arithmetic, measured", "GFLOP/s"], float64_flops_per_s: ["float64 arithmetic, measured", "GFLOP/s"]};
        for (const [name, value] of Object.entries(ceilings)) {
            const [what, unit] = words[name] || [name.replace(/_(flops|bytes)_per_s$/, "").replace(/_/g, " ") + ", measured", /bytes/.test(name) ? "GB/s" : "GFLOP/s"];
            lines.push([what, value && text.rate(value, unit), value]);
        }
        return lines.filter(([, value]) => value !== undefined && value !== null && value !== "" && value !== false);
    };

    // --- can its figures be trusted? -----------------------------------------------------------------------------

    // How far values lie from their median at most, as a share.
    function furthest(values) {
        const middle = d3.median(values);
        return d3.max(values, (value) => Math.abs(value / middle - 1));
    }

    function counted(words) {
        return [...d3.rollup(words, (each) => each.length, (word) => word)].map(([word, count]) => word + " (" + count + ")").join(", ");
    }

    // [sign, question, answer]: signs only for what is either so or not.
    // `suites`: those that failed as a whole, at any commit.
    function answers(machine, states, newest, facts, conditions, known, suites, newest_hash, commits) {
        const {noise} = machine.details, state = states[states.length - 1], machine_name = machine.summary.name;
        const rows = [], cells = Object.entries(newest.cells);
        const values = Object.entries(noise).sort((a, b) => a[1] - b[1]);
        rows.push(["", "Does the same commit give the same figure again?", values.length
            ? ["Yes, within a coefficient of variation of ", element("b", {}, percent(d3.median(values, (each) => each[1]))), " (median of " + text.plural(values.length, "cell") + "), "
                + percent(d3.quantile(values.map((each) => each[1]), 0.95)) + " for 95 % of them and " + percent(values[values.length - 1][1]) + " at worst (", cell_link(values[values.length - 1][0], machine_name), ")."]
            : "Not recorded on this machine: the command noise measures one commit several times (A/A)."]);
        const small = ["gpu", "cpu", "streamed", "several"].map((device) => [device, cells.filter(([key, cell]) => cell.detectable > 0 && known[key].device === device).map(([, cell]) => cell.detectable).sort(d3.ascending)])
            .filter(([, each]) => each.length);
        rows.push(["", "How small a change would show?", small.length
            ? [small.map(([device, each], index) => [index ? "; " : "", {gpu: "GPU", cpu: "CPU", streamed: "GPU fed from the host\u2019s memory", several: "several GPUs"}[device] + ": ", element("b", {}, percent(d3.median(each))), " in the median cell, " + percent(d3.quantile(each, 0.95)) + " or less in 95 % of " + text.plural(each.length, "cell")]),
                ". This is the minimum detectable change of two runs, from the spread between processes at the newest commit."]
            : "Not known: too few processes measured each cell."]);
        const canaries = ["memory", "compute"].map((kind) => [kind, states.map((each) => each["canary_" + kind + "_s"]).filter(Boolean)]).filter(([, each]) => each.length);
        rows.push(["", "Did the machine itself stay the same?", canaries.length
            ? ["Its canaries, two kernels that never change, stayed within ", canaries.map(([kind, each], index) => [index ? " and " : "", element("b", {}, "\u00b1" + percent(furthest(each))), " (" + kind + ")"]),
                " of their medians over " + text.plural(canaries[0][1].length, "commit") + "."]
            : "Not known: no canary was measured here (they run on a GPU)."]);
        const quiet = states.filter((each) => each.spread !== undefined), moved = machine.details.instrument;
        const named = {spread: "the spread between processes (median of short cells)", spread_90: "the spread that 90 % of short cells stay below", two_levels: "the share of short cells with two levels", canary_spread: "the spread of the memory\u2019s canary within a run", launch_s: "a launch from the host beyond its kernel"};
        const level = (figure, value) => (figure === "launch_s" ? text.time(value) : percent(value));
        const worse = moved.filter((each) => each.after > each.before && !moved.some((later) => later.figure === each.figure && later.at > each.at));
        if (quiet.length) {
            rows.push([worse.length ? "!" : "\u2713", "Did the instrument stay as quiet?", worse.length
                ? worse.map((each, index) => [index ? "; " : "It got worse: ", element("span", {"data-moved": each.figure}, named[each.figure]), " rose from ", element("b", {}, level(each.figure, each.before)), " to ", element("b", {}, level(each.figure, each.after)), " at ", link(text.hash(commits[each.at].hash), "commit", {hash: text.hash(commits[each.at].hash)}, {class: "hash"})]).concat(".")
                : "The spread between processes, the share of cells with two levels, the spread of the memory\u2019s canary and the launch from the host did not rise, or fell again, over " + text.plural(quiet.length, "commit") + "."]);
        }
        const boards = boards_of(machine.details);
        if (boards.length > 1) {
            const alike = d3.groups(boards, ([, groups]) => groups.map(kernelwatch.group_name).join(", "));
            rows.push(["!", "Is it one board?", [element("b", {"data-boards": boards.length}, "No, " + boards.length + " boards"), " of this name, told apart by their UUIDs. Figures of different boards do not compare exactly; links do.",
                element("details", {}, element("summary", {}, "Which boards measured what"),
                    alike.map(([what, own]) => element("p", {}, what + ": ", own.map(([board], index) => [index ? ", " : "", element("span", {class: "hash"}, board)]))))]]);
        }
        rows.push([conditions.length ? "!" : "\u2713", "Were all commits measured under the same conditions?", conditions.length
            ? [text.plural(conditions.length, "change") + " of conditions, listed below. No commit is blamed for a step across one."]
            : "Yes: device, driver, compiler, packages and versions of the harness are the same over " + text.plural(states.length, "commit") + "."]);
        const limits = cells.flatMap(([, cell]) => (cell.s && cell.limits) || []);
        const owned = cells.filter(([, cell]) => cell.own_clock_mhz).length, limited = cells.filter(([, cell]) => cell.s && (cell.limits || []).length).length, timed = cells.filter(([key, cell]) => cell.s && known[key].device !== "cpu").length;
        rows.push([!timed ? "" : limited ? "!" : "\u2713", "Did clocks or power limit it?", !timed ? "Not known: limits are read from a GPU\u2019s driver." : [limited
            ? [element("b", {}, limited + " of " + text.plural(timed, "GPU cell")), " met a limit at the newest commit: " + counted(limits) + "."] : "None of " + text.plural(timed, "GPU cell") + " met a limit at the newest commit.",
        owned ? [" The SM clock of ", element("b", {"data-own-clock": owned}, text.plural(owned, "cell")), " was below its highest by their own work, alike in all processes: that is no limit."] : null]]);
        const failures = d3.sum(states, (each) => each.failed), now_failed = suites.filter((told) => told.commit === newest_hash);
        const ran = [now_failed.length ? text.plural(now_failed.length, "suite") : "", state.failed ? text.plural(state.failed, "cell") : ""].filter(Boolean).join(" and ");
        const earlier = [suites.length ? text.plural(suites.length, "suite") : "", failures ? text.plural(failures, "cell") : ""].filter(Boolean).join(" and ");
        rows.push([ran ? "!" : "\u2713", "Did everything run?", ran ? [element("b", {}, ran), " failed at the newest commit, with the reasons below."]
            : "No cell and no suite failed at the newest commit" + (earlier ? "; " + earlier + " did at earlier ones." : ", nor at any other.")]);
        const others = facts.others;
        if (others) {
            const busy = (others.processes || []).length;
            rows.push([busy ? "!" : "\u2713", "Was anything else running on the GPU?", others.processes === null ? "The driver does not say."
                : busy ? [element("b", {}, text.plural(busy, "other process", "other processes")), ", GPU in use " + (others.utilisation_percent || 0) + " % of the time before the first measurement."] : "No other process, GPU in use " + (others.utilisation_percent || 0) + " % of the time before the first measurement."]);
        }
        const neighbors = facts.neighbors;
        if (neighbors && neighbors.gpus) {
            rows.push([neighbors.busy ? "!" : "\u2713", "Did the machine\u2019s other GPUs work?", neighbors.busy
                ? [element("b", {}, neighbors.busy + " of " + text.plural(neighbors.gpus, "other GPU")), " worked when a process of the newest run began."]
                : "None of " + text.plural(neighbors.gpus, "other GPU") + " worked when a process of the newest run began."]);
        }
        return rows;
    }

    // --- over time ---------------------------------------------------------------------------------------------

    function thinned(rows, value, most) {
        if (rows.length <= 2 * most) return rows;
        const found = [], size = rows.length / most;
        for (let start = 0; start < rows.length; start += size) {
            const part = rows.slice(Math.floor(start), Math.floor(start + size)).filter((row) => value(row) !== null);
            if (part.length) found.push(...[...new Set([d3.least(part, value), d3.greatest(part, value)])].sort((a, b) => a.index - b.index));
        }
        return found;
    }

    // One figure over commits, as a small chart whose x-axis the charts below it share. `span`: the least height of its
    // y-axis, so that noise does not look like drift.
    function small_chart(main, rows, {name, unit, value, span, marks, axis, commits, decimals}) {
        const say = (value) => value.toFixed(decimals).replace("-", "\u2212");
        const known = rows.filter((row) => value(row) !== null && value(row) !== undefined);
        if (!known.length) return null;
        const newest = known[known.length - 1], width = main.clientWidth || parseFloat(main.style.width) || 960;
        const extent = d3.extent(known, value), middle = (extent[0] + extent[1]) / 2;
        const half = Math.max(span, 1.1 * (extent[1] - extent[0])) / 2;
        const title = element("div", {class: "small"}, element("b", {}, name), " " + say(extent[0]) + " to " + say(extent[1]) + " " + unit + ", newest " + say(value(newest)) + " " + unit);
        const most = Math.max(2, Math.floor((width - 90) / 92)), every = Math.max(1, Math.ceil(rows.length / most));
        const drawn = kernelwatch.plot(main, {
            height: axis ? 116 : 84, marginLeft: 58, marginRight: 34, marginTop: 8, marginBottom: axis ? 38 : 6,
            x: {domain: [0, Math.max(1, rows.length - 1)], axis: null}, y: {domain: [middle - half, middle + half], axis: null},
            marks: [
                Plot.ruleX(marks, {x: "index", stroke: "var(--quiet)", strokeDasharray: "4 3"}),
                Plot.axisY({ticks: 3, label: null, tickSize: 3}), Plot.gridY({ticks: 3, stroke: "var(--rule)", strokeOpacity: 0.6}),
                Plot.lineY(thinned(rows, value, width), {x: "index", y: value, stroke: "var(--line)", strokeWidth: 1.4}),
                rows.length <= DOTS ? Plot.dot(known, {x: "index", y: value, r: 2.8, fill: "var(--accent)", className: "state",
                    title: (row) => text.hash(commits[row.at].hash) + " " + text.date(commits[row.at].date) + ": " + say(value(row)) + " " + unit}) : null,
                axis ? Plot.axisX(rows.map((row) => row.index).filter((index) => (rows.length - 1 - index) % every === 0), {label: "commit, measured ones evenly spaced", labelArrow: "none",
                    tickFormat: (index) => text.hash(commits[rows[index].at].hash)}) : null,
            ].filter(Boolean),
        }, name + " over " + text.plural(known.length, "commit") + ": " + say(extent[0]) + " to " + say(extent[1]) + " " + unit);
        kernelwatch.marked(drawn, ".state circle", known, (row) => ({figure: name, at: row.at, value: value(row)}));
        drawn.prepend(title);
        return drawn;
    }

    function over_time(main, states, conditions, commits) {
        const rows = states.map((state, index) => ({...state, index}));
        main.append(element("h2", {}, "Over time"));
        if (rows.length === 1) main.append(element("p", {}, "Only one commit is measured, " + text.hash(commits[rows[0].at].hash) + " of " + text.date(commits[rows[0].at].date) + "."));
        const index_of = new Map(rows.map((row) => [row.at, row.index]));
        const marks = conditions.map((turn) => ({...turn, index: index_of.get(turn.at)})).filter((turn) => turn.index !== undefined);
        const relative = (name) => {
            const middle = d3.median(rows, (row) => row[name]);
            return (row) => (row[name] ? 100 * (row[name] / middle - 1) : null);
        };
        const plain = (name) => (row) => (row[name] === undefined ? null : row[name]);
        const share = (name) => (row) => (row[name] === undefined ? null : 100 * row[name]);
        const charts = [
            {name: "Canary of the memory: change from its median", unit: "%", value: relative("canary_memory_s"), span: 0.2, decimals: 3},
            {name: "Canary of the arithmetic: change from its median", unit: "%", value: relative("canary_compute_s"), span: 0.2, decimals: 3},
            {name: "SM clock", unit: "MHz", value: plain("clock_mhz"), span: 20, decimals: 1},
            {name: "Temperature", unit: "\u00b0C", value: plain("temperature_c"), span: 10, decimals: 1},
            {name: "Power", unit: "W", value: plain("power_w"), span: 50, decimals: 1},
            {name: "Spread between processes, median of short cells", unit: "%", value: share("spread"), span: 0.1, decimals: 2},
            {name: "Spread between processes, 90 % of short cells below", unit: "%", value: share("spread_90"), span: 0.5, decimals: 2},
            {name: "Short cells with two levels", unit: "%", value: share("two_levels"), span: 5, decimals: 1},
            {name: "Spread of the memory\u2019s canary within a run", unit: "%", value: share("canary_spread"), span: 0.5, decimals: 2},
            {name: "A launch from the host beyond its kernel", unit: "\u00b5s", value: (row) => (row.launch_s ? 1e6 * row.launch_s : null), span: 1, decimals: 2},
        ].filter(({value}) => rows.some((row) => value(row) !== null));
        charts.forEach((chart, index) => {
            main.append(small_chart(main, rows, {...chart, marks, commits, axis: index === charts.length - 1}));
        });
        if (!charts.length) main.append(element("p", {}, "Neither canaries nor clocks were recorded here: they are read from a GPU."));
        else main.append(element("p", {class: "quiet small"}, "Medians over all cells of a commit, read while they ran. " + (marks.length ? "A dashed line marks a change of conditions. " : "") + "What moves a canary is the machine, not a commit."));
        for (const turn of conditions) {
            main.append(element("p", {class: "turn", "data-at": turn.at}, "\u25c6 ", element("b", {}, turn.why.join(", ")), " since ", link(text.hash(commits[turn.at].hash), "commit", {hash: text.hash(commits[turn.at].hash)}, {class: "hash"}),
                " (" + text.date(commits[turn.at].date) + "): " + turn.groups.map(kernelwatch.group_name).join("; ")));
        }
        const figure = (value, digits, unit) => (value === undefined || value === null ? "" : text.digits(value, digits) + " " + unit);
        const listed = [...rows].reverse().slice(0, 200);
        main.append(element("details", {}, element("summary", {}, "Values of " + (rows.length > 200 ? "the newest 200 of " : "") + text.plural(rows.length, "commit")), table([{name: "Commit"}, {name: "Measured"}, {name: "Canary, memory", number: true},
            {name: "Canary, arithmetic", number: true}, {name: "SM clock", number: true}, {name: "Temperature", number: true}, {name: "Power", number: true}, {name: "Cells", number: true}, {name: "Limited", number: true}, {name: "Failed", number: true}],
        listed.map((row) => [link(text.hash(commits[row.at].hash), "commit", {hash: text.hash(commits[row.at].hash)}, {class: "hash", title: commits[row.at].subject}), row.measured_at.replace("T", " ").slice(0, 16) + " UTC",
            row.canary_memory_s ? text.time(row.canary_memory_s, 5) : "", row.canary_compute_s ? text.time(row.canary_compute_s, 5) : "", figure(row.clock_mhz, 5, "MHz"), figure(row.temperature_c, 3, "\u00b0C"), figure(row.power_w, 4, "W"),
            row.cells, row.limited, row.failed]), {"aria-label": "State of the machine by commit"})));
    }

    // The GPUs that measured under a machine's name, by the digests of their UUIDs, each with its groups.
    function boards_of(details) {
        const pairs = Object.entries(details.turns).flatMap(([group, runs]) => runs.map(([, known]) => [known.nvml_uuid_sha256, group])).filter(([board]) => board);
        return [...d3.rollup(pairs, (list) => [...new Set(list.map(([, group]) => group))], ([board]) => board)];
    }

    // Where the conditions of any group changed: [{at, why, groups}].
    function conditions_of(details) {
        const found = new Map();
        for (const group of Object.keys(details.turns)) {
            for (const {at, why} of kernelwatch.turns(details, group)) {
                const key = at + " " + why.join(", ");
                if (!found.has(key)) found.set(key, {at, why, groups: []});
                found.get(key).groups.push(group);
            }
        }
        return [...found.values()].sort((a, b) => b.at - a.at);
    }

    // --- energy ------------------------------------------------------------------------------------------------

    async function energy(main, machine, common, parameters, go) {
        const ops = common.site.ops.filter((op) => Object.values(common.cells).some((cell) => cell.op === op.name && cell.device === "gpu" && op.name + "/" + cell.rung in machine.details.history));
        main.append(element("h2", {}, "Energy per operation"));
        const op = ops.find((each) => each.name === parameters.get("op")) || ops[0];
        if (!op) {
            main.append(element("p", {}, "No power is known: nothing was timed on a GPU here."));
            return;
        }
        const series = [];
        const recent = await Promise.all(op.order.gpu.map((rung) => machine.recent(op.name + "/" + rung)));
        for (const [index, cells] of recent.entries()) {
            const rung = op.order.gpu[index];
            const key = kernelwatch.key(op.name, rung, op.types[0], op.element_shape, "cold"), columns = cells[key];
            const work = common.cells[key] && kernelwatch.work(common.cells[key]);
            if (!columns || !columns.power_w || !work) continue;
            const points = columns.at.map((at, index) => ({at, s: columns.s[index], power: columns.power_w[index]})).filter((point) => point.s && point.power)
                .map((point) => ({...point, joules: point.s * point.power, each: 1e12 * point.s * point.power / work, rung, key}));
            if (points.length) series.push({rung, key, points, newest: points[points.length - 1]});
        }
        const per = op.unit === "GFLOP/s" ? "pJ/FLOP" : "pJ/byte";
        main.append(element("p", {}, "The device\u2019s power, as NVML reads it while a cell runs, times the seconds of one pass, over its " + (op.unit === "GFLOP/s" ? "operations" : "compulsory bytes") + ". NVML averages power over some time and counts the whole board, so compare rungs by it, not boards."
            + (op.order.gpu.some((rung) => (machine.details.history[op.name + "/" + rung] || []).length > 2) ? " The picture is of the newest commits." : "")),
            element("div", {class: "controls"}, choice("op", ops.map((each) => each.name), op.name, (name) => go({op: name}))));
        if (!series.length) {
            main.append(element("p", {}, "No power was recorded for " + op.name + " " + op.types[0] + " " + op.element_shape + " cold."));
            return;
        }
        const shown = [...new Set(series.flatMap((each) => each.points.map((point) => point.at)))].sort((a, b) => a - b), index_of = new Map(shown.map((at, index) => [at, index]));
        for (const each of series) for (const point of each.points) point.x = index_of.get(point.at);
        const points = series.flatMap((each) => each.points), extent = d3.extent(points, (point) => point.each);
        const width = Math.min(1280, main.clientWidth || parseFloat(main.style.width) || 960), small = width < 600, right = 132, height = Math.max(small ? 280 : 340, 15 * series.length + 60);
        const log = extent[1] > 5 * extent[0], domain = log ? [extent[0] / 1.15, extent[1] * 1.15] : kernelwatch.domain(extent, 0.1);
        const every = Math.max(1, Math.ceil(shown.length / Math.max(2, Math.floor((width - 58 - right) / 92))));
        const symbol = (each) => kernelwatch.symbols[series.indexOf(each) % 8], color = (each) => kernelwatch.colors[series.indexOf(each) % 8];
        const drawn = kernelwatch.plot(main, {
            height, marginLeft: 58, marginRight: right, marginTop: 12, marginBottom: 40,
            x: {domain: [0, Math.max(1, shown.length - 1)], axis: null}, y: {type: log ? "log" : "linear", domain, label: null, ticks: 6, tickFormat: log ? (value) => text.exact(value, 3) : undefined, grid: true},
            marks: [
                ...series.flatMap((each) => [Plot.lineY(each.points.length > 2 * width ? thinned(each.points.map((point, index) => ({...point, index})), (point) => point.each, width) : each.points, {x: "x", y: "each", stroke: color(each), strokeWidth: 1.4}),
                    points.length <= 16 * DOTS && each.points.length <= DOTS ? Plot.dot(each.points, {x: "x", y: "each", r: 3, fill: color(each), symbol: symbol(each), className: "energy of" + series.indexOf(each),
                        title: (point) => each.key + "\n" + text.hash(common.commits[point.at].hash) + " " + text.date(common.commits[point.at].date) + "\n" + text.digits(point.each, 3) + " " + per}) : null]).filter(Boolean),
                Plot.axisX(shown.map((_, index) => index).filter((index) => (shown.length - 1 - index) % every === 0), {label: "commit, measured ones evenly spaced", labelArrow: "none", tickFormat: (index) => text.hash(common.commits[shown[index]].hash)}),
            ],
        }, "Energy per operation of " + op.name + " " + op.types[0] + " " + op.element_shape + " cold: " + series.map((each) => each.rung + " " + text.digits(each.newest.each, 3) + " " + per).join(", "));
        drawn.prepend(element("div", {class: "small"}, element("b", {}, per), ", " + op.name + " " + op.types[0] + " " + op.element_shape + " cold" + (log ? ", logarithmic" : "")));
        for (const each of series) kernelwatch.marked(drawn, ".energy.of" + series.indexOf(each) + " > *", each.points, (point) => ({key: each.key, at: point.at, value: point.each}));
        const svg = drawn.querySelector("svg"), y = svg.scale("y"), picture = d3.select(svg), low = height - 40;
        const ends = series.map((each) => ({each, y: y.apply(each.newest.each)})).sort((a, b) => a.y - b.y);
        ends.forEach((end, index) => { end.y = index ? Math.max(end.y, ends[index - 1].y + 14) : end.y; });
        for (let index = ends.length - 1; index >= 0; index--) ends[index].y = Math.min(ends[index].y, low - 14 * (ends.length - 1 - index));
        for (const end of ends) {
            picture.append("path").attr("transform", "translate(" + (width - right + 14) + "," + end.y + ")").attr("fill", color(end.each))
                .attr("d", d3.symbol(d3["symbol" + symbol(end.each)[0].toUpperCase() + symbol(end.each).slice(1)], 36)());
            picture.append("text").attr("class", "end").attr("x", width - right + 23).attr("y", end.y + 4).attr("text-anchor", "start").attr("fill", "currentColor").text(end.each.rung);
        }
        main.append(drawn, table([{name: "Cell"}, {name: per, number: true}, {name: "Energy of a pass", number: true}, {name: "Power", number: true}, {name: "Time", number: true}],
            [...series].sort((a, b) => a.newest.each - b.newest.each).map(({key, newest}) => [cell_link(key, machine.summary.name), element("span", {"data-key": key, "data-value": newest.each}, text.digits(newest.each, 3)),
                newest.joules >= 1 ? text.digits(newest.joules, 3) + " J" : newest.joules >= 1e-3 ? text.digits(1e3 * newest.joules, 3) + " mJ" : text.digits(1e6 * newest.joules, 3) + " \u00b5J",
                text.digits(newest.power, 3) + " W", text.time(newest.s)]), {"aria-label": "Energy by rung at the newest commit"}));
    }

    // --- noise, limits, failures ---------------------------------------------------------------------------------

    function noise(main, machine, newest, name) {
        main.append(element("h2", {}, "A/A noise"));
        const values = Object.entries(machine.details.noise).map(([key, cv]) => ({key, cv})).sort((a, b) => b.cv - a.cv);
        if (!values.length) {
            main.append(element("p", {}, "No A/A is recorded on this machine. The command noise measures one commit several times; what differs then is noise."));
            return;
        }
        main.append(element("p", {}, "How far the medians of repeated measurements of one commit differ: standard deviation over mean (coefficient of variation), by cell."));
        const positive = values.filter((each) => each.cv > 0), range = d3.extent(positive, (each) => each.cv);
        const steps = d3.range(Math.floor(6 * Math.log10(range[0])), Math.ceil(6 * Math.log10(range[1])) + 1).map((step) => 10 ** (step / 6));
        const bins = d3.pairs(steps).map(([low, high], index, all) => ({low: 100 * low, high: 100 * high, count: positive.filter((each) => each.cv >= low && (each.cv < high || index === all.length - 1)).length}));
        const drawn = kernelwatch.plot(main, {
            height: 170, marginLeft: 44, marginRight: 20, marginTop: 14, marginBottom: 38, x: {type: "log", label: "coefficient of variation (%), logarithmic", labelArrow: "none", tickFormat: (value) => text.exact(value, 2), ticks: 5},
            y: {label: "cells", labelArrow: "none", grid: true, ticks: 4},
            marks: [Plot.rect(bins, {x1: "low", x2: "high", y1: 0, y2: "count", fill: "var(--accent)", fillOpacity: 0.75, insetLeft: 1, className: "bin"}), Plot.ruleY([0])],
        }, "Distribution of the coefficient of variation of " + text.plural(values.length, "cell"));
        kernelwatch.marked(drawn, ".bin rect", bins, (bin) => ({low: bin.low, high: bin.high, count: bin.count}));
        const cell = (key) => newest.cells[key] || {};
        main.append(drawn, ...[folded([{name: "Cell, worst first"}, {name: "A/A noise", number: true, title: "coefficient of variation"}, {name: "Detectable, two runs", number: true, title: "minimum detectable change of two runs, from the newest commit"},
            {name: "Time", number: true}, {name: "95 % interval", number: true}, {name: "Processes", number: true}, {name: "Limits met"}],
        values.map(({key, cv}) => {
            const {s, low, high, detectable, processes, limits} = cell(key), digits = text.significant(s, low, high);
            return [cell_link(key, name), element("span", {"data-key": key, "data-cv": cv}, percent(cv)), detectable ? percent(detectable) : "", s ? text.time(s, digits) : "", s ? text.bounds(low, high, digits + 1) : "", processes || "", (limits || []).join(", ")];
        }), "A/A noise by cell, worst first")].flat());
    }

    function limited(main, newest, facts, name, newest_hash, suites) {
        const cells = Object.entries(newest.cells), max = facts.nvml_sm_clock_max_mhz;
        const met = cells.filter(([, cell]) => cell.s && (cell.limits || []).length), failed = cells.filter(([, cell]) => cell.state === "failed");
        main.append(element("h2", {}, "Cells that met a limit"));
        if (!facts.gpu) main.append(element("p", {}, "Not known: limits are read from a GPU\u2019s driver."));
        else if (!met.length) main.append(element("p", {}, "None at the newest commit, " + newest_hash + "."));
        else {
            main.append(element("p", {}, "At the newest commit, " + newest_hash + ". The clock fell under these kernels, and not by their own work alone: the driver names a limit, or the clock differs between processes. Their figures are less certain" + (max ? ". The highest SM clock is " + max + " MHz" : "") + "."),
                ...[folded([{name: "Cell"}, {name: "Limit"}, {name: "SM clock", number: true}, {name: "Power", number: true}, {name: "Temperature", number: true}],
                    met.map(([key, cell]) => [cell_link(key, name), element("span", {"data-limited": key}, cell.limits.join(", ")), cell.clock_mhz ? text.digits(cell.clock_mhz, 4) + " MHz" : "", cell.power_w ? text.digits(cell.power_w, 3) + " W" : "", cell.temperature_c ? text.digits(cell.temperature_c, 3) + " \u00b0C" : ""]), "Cells that met a limit")].flat());
        }
        if (suites.length) main.append(element("h2", {}, "Failed suites"), element("p", {}, "None of their series has a figure at the newest commit, " + newest_hash + "."), kernelwatch.failures_table(suites));
        main.append(element("h2", {}, "Failed cells"));
        if (!failed.length) main.append(element("p", {}, "None at the newest commit, " + newest_hash + "."));
        else main.append(...[folded([{name: "Cell"}, {name: "Reason"}], failed.map(([key, cell]) => [cell_link(key, name), cell.reason || "no reason is recorded"]), "Failed cells")].flat());
        const left_out = cells.filter(([, cell]) => cell.state === "na");
        if (left_out.length) {
            main.append(element("details", {}, element("summary", {}, text.plural(left_out.length, "cell") + " cannot be measured here"),
                table([{name: "Cell"}, {name: "Reason"}], left_out.map(([key, cell]) => [key, cell.reason || ""]), {"aria-label": "Cells that cannot be measured"})));
        }
    }

    // --- the view ------------------------------------------------------------------------------------------------

    kernelwatch.view("devices", async (main, parameters) => {
        const common = await kernelwatch.common(), {site, commits} = common;
        const {names: known, alone} = kernelwatch.links.machines(site, common.events, parameters.get("machine"));
        if (alone) {
            main.append(element("h1", {}, alone.machine), element("p", {class: "quiet"}, kernelwatch.links.ALONE),
                known.length > 1 ? element("div", {class: "controls"}, choice("machine", known, alone.machine, (name) => kernelwatch.go("devices", {machine: name}))) : "");
            return kernelwatch.links.devices(main, alone.machine, common.events);
        }
        const machine = await kernelwatch.machine(parameters.get("machine")), {summary, details} = machine;
        const states = await machine.states();
        const state = {machine: parameters.get("machine"), with: parameters.get("with"), op: parameters.get("op")};
        const go = (changes) => kernelwatch.go("devices", {...state, ...changes});
        const newest = await machine.load("at/" + summary.newest);
        const facts = together(newest), with_other = parameters.get("with") === summary.name ? "" : parameters.get("with") || "";
        const conditions = conditions_of(details);
        const others = site.machines.filter((each) => each !== summary);
        const hash = text.hash(commits[summary.newest].hash);
        main.append(element("h1", {}, kernelwatch.device_name(summary)),
            element("p", {class: "quiet"}, summary.name + " \u00b7 " + (boards_of(details).length > 1 ? boards_of(details).length + " boards of this name \u00b7 " : "") + text.plural(details.commits.length, "commit") + " measured, the newest ", link(hash, "commit", {hash}, {class: "hash"}), " of " + text.date(commits[summary.newest].date)
                + (summary.behind ? ", " + text.plural(summary.behind, "commit") + " behind the branch" : "")));
        if (known.length > 1) {
            main.append(others.length ? kernelwatch.machines_table(site, commits, summary) : "", element("div", {class: "controls"}, choice("machine", known, summary.name, (name) => go({machine: name, with: ""})),
                choice("compare with", [["", "no other"], ...others.map((each) => each.name)], with_other, (name) => go({with: name}))));
        }
        if (with_other) await kernelwatch.compare(main, machine, await kernelwatch.machine(with_other), common);
        main.append(element("h2", {}, "Can its figures be trusted?"),
            element("dl", {class: "answers"}, answers(machine, states, newest, facts, conditions, common.cells, kernelwatch.failures(common.events, summary.name), commits[summary.newest].hash, commits).map(([sign, question, answer]) => [
                element("dt", {}, element("span", {class: sign === "!" ? "sign warn" : "sign good", title: sign === "!" ? "look closer" : sign ? "yes" : null}, sign), question), element("dd", {}, answer)])));
        await kernelwatch.links.devices(main, summary.name, common.events);
        over_time(main, states, conditions, commits);
        noise(main, machine, newest, summary.name);
        limited(main, newest, facts, summary.name, hash, kernelwatch.failures(common.events, summary.name, commits[summary.newest].hash));
        await energy(main, machine, common, parameters, go);
        main.append(element("h2", {}, "What it is"), element("p", {class: "quiet small"}, "As read at commit " + hash + (summary.measured_at ? ", on " + summary.measured_at.slice(0, 10) : "") + "."),
            table([{name: "What"}, {name: "Value"}], kernelwatch.facts_of(newest).map(([what, value]) => [what, element("span", {"data-fact": what}, String(value))]), {"aria-label": "Facts of the machine"}), kernelwatch.rooflines.table(kernelwatch.rooflines.roofs(machine, facts)) || "");
        if (!others.length) main.append(element("p", {class: "quiet"}, "Only this machine is recorded. With a second one, both can be compared here cell by cell."));
    });
}
