// Everything about one rung in one place.
"use strict";

kernelwatch.view("rung", async function (main, parameters) {
    const {element, text, link, ladders, rooflines} = kernelwatch;
    const {site, commits, cells, events} = await kernelwatch.common();
    const machine = await kernelwatch.machine(parameters.get("machine"));
    const given = Object.fromEntries(parameters);
    const op = site.ops.find((each) => each.name === given.op);
    if (!op) throw new Error("there is no op " + (given.op || "") + "; there are " + site.ops.map((each) => each.name).join(", "));
    const full = op.name + "/" + given.rung;
    const entries = op.rungs.filter((each) => each.name === given.rung);
    const file = machine.details.history[full];
    if (!entries.length && !op.lines.includes(given.rung) && !file) {
        throw new Error("there is no rung " + (given.rung || "") + " of " + op.name + "; there are " + op.rungs.map((each) => each.name).join(", "));
    }
    const rung = entries[0] || {name: given.rung, idea: "", source: "", types: op.types, device: ""};
    const is_line = op.lines.includes(rung.name) || Object.values(op.against).includes(rung.name) || Object.values(cells).some((cell) => cell.op === op.name && cell.against === rung.name);

    // An idea may say "the same with": as the rung before it.
    const siblings = op.rungs.filter((each) => each.device === rung.device);
    const before = is_line ? null : siblings[siblings.indexOf(rung) - 1];

    main.append(
        element("h1", {}, full),
        element("p", {}, rung.idea ? element("b", {}, rung.idea[0].toUpperCase() + rung.idea.slice(1) + ". ") : null,
            is_line ? "It is a line that the rungs of " + op.name + " are compared with. " : null,
            rung.source ? ["Source: ", kernelwatch.source_link(site, commits[machine.details.commits.at(-1)], rung.source), ". "] : null,
            rung.device ? "It runs on the " + (rung.device === "cpu" ? "CPU" : "GPU") + " and takes " + rung.types.join(", ") + ". " : null,
            "See ", link("the ladder of " + op.name, "ladder", {op: op.name, machine: given.machine, device: rung.device === "cpu" ? "cpu" : ""}),
            before ? [", where it follows ", link(op.name + "/" + before.name, "rung", {op: op.name, rung: before.name, machine: given.machine})] : null, "."),
        site.machines.length > 1 ? element("div", {class: "controls"}, kernelwatch.choice("machine", site.machines.map((each) => each.name), machine.summary.name,
            (value) => kernelwatch.go("rung", {...given, machine: value}))) : "");
    if (!file) {
        main.append(element("p", {}, "No time of " + full + " is recorded on " + machine.summary.name + "."));
        await exact_figures();
        named_by_events();
        return;
    }
    const history = await machine.history(full);
    const timed = Object.keys(history).filter((key) => cells[key]);
    const newest = Math.max(...timed.map((key) => history[key].at.at(-1)));
    const snapshot = await machine.load("at/" + newest);
    const own = ladders.cells(snapshot, cells, op.name);
    const mine = own.filter((cell) => cell.rung === rung.name && cell.s);

    position();
    launched();
    roof();
    await times();
    await exact_figures();
    named_by_events();

    // --- where it stands in the ladder -----------------------------------------------------------------------------
    function position() {
        main.append(element("h2", {}, "Position in the ladder"));
        if (!mine.length) {
            main.append(element("p", {}, "At the commit ", kernelwatch.commit_link(newest, commits), " none of its cells has a figure."));
            return;
        }
        const order = (cell) => (op.shapes[cell.device] || []).indexOf(cell.shape);
        const listed = mine.map((cell) => {
            const named = ladders.against(op, cell);
            const rivals = own.filter((each) => (each.group || "") === (cell.group || "") || each.rung === named).filter((each) => each.type === cell.type && each.shape === cell.shape && each.cache === cell.cache && each.device === cell.device && each.s);
            const rungs = rivals.filter((each) => op.rungs.some((one) => one.name === each.rung && one.plain) && each.rung !== named);
            const reference = rivals.find((each) => each.rung === named);
            const rate = (each) => kernelwatch.rate(each, each.s);
            const best = d3.greatest(rungs, rate);
            const place = rungs.includes(cell) ? 1 + rungs.filter((each) => rate(each) > rate(cell)).length : null;
            return {cell, best, place, against: reference ? named : "", of: rungs.length, share: reference && rate(cell) / rate(reference), best_share: best && rate(cell) / rate(best),
                top: reference && best && rungs.length > 1 && rate(best) / rate(reference)};
        }).sort((a, b) => op.types.indexOf(a.cell.type) - op.types.indexOf(b.cell.type) || order(a.cell) - order(b.cell) || a.cell.cache.localeCompare(b.cell.cache));
        const against = [...new Set(listed.map((row) => row.against).filter(Boolean))].join(" or ");  // types may have lines of their own
        main.append(element("p", {}, "At ", kernelwatch.commit_link(newest, commits), " on " + (mine[0].device === "cpu" ? machine.summary.cpu : machine.summary.gpu) + ": its rate" + (against ? " as a share of " + against : "") + (against ? " and" : "") + " as a share of the fastest rung at the same size, type and cache state. Rungs that do other work than the op, such as a copy, or repeat it in one launch are left out of that comparison."));
        const type = op.types.find((each) => listed.some((row) => row.cell.type === each)) || listed[0].cell.type;
        const drawn = listed.filter((row) => row.cell.type === type && (against ? row.share : row.best_share));
        if (drawn.length) main.append(element("figure", {}, shares(drawn, against)), ladders.legend([
            ...["cold", "hot"].filter((cache) => drawn.some((row) => row.cell.cache === cache)).map((cache) => [cache, cache + ", " + type]),
            against && drawn.some((row) => row.top) ? ["tick", "the fastest rung at the same size"] : null, ["interval", "95 % interval"]].filter(Boolean)));
        const unit = {of: (cell, s) => kernelwatch.rate(cell, s) / 1e9, high: true};
        main.append(kernelwatch.table([{name: "type"}, {name: "size"}, {name: "cache"}, {name: op.unit, number: true, title: "median over processes and its 95 % interval"}, {name: "time", number: true},
            ...(against ? [{name: "of " + against, number: true}] : []), {name: "of the fastest rung", number: true}, {name: "rank", number: true, title: "among the rungs, lines left out"}, {name: "history"}],
        listed.map(({cell, best, place, of, share, best_share}) => [cell.type, text.shape(cell.shape), cell.cache,
            ladders.shown(ladders.figure(unit, cell), ladders.remarks(cell)),
            text.time(cell.s, text.significant(cell.s, cell.low, cell.high)),
            ...(against ? [share ? ladders.share(share) : "n/a"] : []),
            best && of > 1 ? [ladders.share(best_share), best.rung === rung.name ? "" : element("div", {class: "small quiet"}, best.rung)] : "\u2013",
            place && of > 1 ? place + " of " + of : "\u2013",
            link("history", "history", {cell: cell.key, machine: given.machine}, {"aria-label": "history of " + cell.key})]), {"aria-label": "Position of " + full, class: "figures"}));
    }

    // Shares by size: the rung as a mark with its interval, the fastest rung as a tick.
    function shares(rows, against) {
        const {LOOK} = ladders;
        const value = (row) => 100 * (against ? row.share : row.best_share);
        const sizes = [...new Set(rows.map((row) => row.cell.shape))];
        const y = (row) => sizes.indexOf(row.cell.shape);
        const width = Math.min(640, Math.max(300, parseFloat(main.style.width) || 640));
        const shift = (cache) => (rows.some((row) => row.cell.cache === "hot") ? (cache === "hot" ? 3.5 : -3.5) : 0);
        const high = Math.max(100, ...rows.map(value), ...rows.map((row) => 100 * (row.top || 0))) * 1.04;
        const picture = Plot.plot({
            width, height: 21 * sizes.length + 44, marginLeft: 14 + 7.1 * Math.max(...sizes.map((shape) => text.shape(shape).length)), marginRight: 16, marginTop: 4, marginBottom: 36,
            x: {domain: [0, high], label: "% of " + (against || "the fastest rung"), labelAnchor: "center", labelArrow: "none", ticks: 5}, y: {domain: [sizes.length - 0.4, -0.6], axis: null},
            style: {background: "transparent", color: "currentColor", fontFamily: "inherit", fontSize: "12px", overflow: "visible"},
            marks: [
                Plot.ruleY(sizes, {y: (_, at) => at, stroke: "var(--rule)", strokeOpacity: 0.6}),
                Plot.ruleX([100], {stroke: "var(--ink)", strokeWidth: 1.2}),
                Plot.text(sizes, {y: (_, at) => at, text: (shape) => text.shape(shape), frameAnchor: "left", dx: -8, textAnchor: "end"}),
                ...["cold", "hot"].flatMap((cache) => {
                    const list = rows.filter((row) => row.cell.cache === cache);
                    const interval = (row, s) => value(row) * row.cell.s / Math.max(s, row.cell.s / 1e3);
                    return list.length ? [
                        against ? Plot.ruleX(list.filter((row) => row.top), {x: (row) => 100 * row.top, y1: (row) => y(row) - 0.3, y2: (row) => y(row) + 0.3, dy: shift(cache), stroke: "var(--quiet)", strokeWidth: 2}) : null,
                        Plot.ruleY(list, {y, x1: (row) => interval(row, row.cell.high), x2: (row) => Math.min(high, interval(row, row.cell.low)), dy: shift(cache), stroke: LOOK[cache].color, strokeWidth: 2}),
                        Plot.dot(list, {y, x: value, symbol: LOOK[cache].symbol, r: 3.8, fill: LOOK[cache].color, dy: shift(cache), ariaDescription: "share " + cache}),
                    ] : [];
                }),
            ].filter(Boolean),
        });
        kernelwatch.describe(picture, "Share of " + (against || "the fastest rung") + " by size; the table below lists the figures");
        for (const cache of ["cold", "hot"]) kernelwatch.marked(picture, `[data-mark="share ${cache}"] *`, rows.filter((row) => row.cell.cache === cache), (row) => ({key: row.cell.key, value: value(row)}));
        return picture;
    }

    // --- what a launch runs ------------------------------------------------------------------------------------------
    function launched() {
        const known = mine.filter((cell) => cell.kernels);
        const noted = mine.filter((cell) => (cell.notes || []).length);
        if (!known.length && !noted.length) return;
        const place = (cell) => [cell.type, text.shape(cell.shape), cell.cache];
        main.append(element("h2", {}, "What a launch runs"));
        if (noted.length) main.append(element("ul", {class: "notes"}, noted.map((cell) => element("li", {}, place(cell).join(" ") + ": " + cell.notes.join("; ") + "."))));
        if (!known.length) return;
        main.append(element("p", {}, "The nodes of a CUDA graph of one launch, as the driver tells them."));
        const coded = known.some((cell) => cell.kernels.some((node) => node.code));  // only of packages with KERNELS
        const extents = (list) => (list || []).join(" \u00d7 ");
        main.append(kernelwatch.table([{name: "type"}, {name: "size"}, {name: "cache"}, {name: "kernel"}, {name: "grid"}, {name: "block"}, {name: "registers", number: true}, {name: "shared bytes", number: true, title: "of a block, static and dynamic"},
            {name: "resident blocks", number: true, title: "that fit on a multiprocessor"}, ...(coded ? [{name: "code", title: "a hash of its instructions"}] : [])],
        known.flatMap((cell) => cell.kernels.map((node) => [...place(cell), node.kernel ? element("code", {}, node.kernel) : node.kind, extents(node.grid), extents(node.block),
            node.registers ?? "", node.kernel ? String(node.static_shared_bytes + node.dynamic_shared_bytes) : "", node.blocks_per_multiprocessor ?? "", ...(coded ? [node.code ? element("code", {}, node.code) : ""] : [])])), {"aria-label": "Kernels of " + full, class: "figures"}));
    }

    // --- its place on the roofline ----------------------------------------------------------------------------------
    function roof() {
        const cell = mine[0];
        if (!cell) return;
        const type = op.types.find((each) => mine.some((one) => one.type === each)) || cell.type;
        const all = own.filter((each) => each.device === cell.device && each.type === type && each.s);
        const chosen = mine.filter((each) => each.type === type);
        const facts = ladders.facts(snapshot, op.name, cell.device === "cpu" ? "cpu" : "gpu");
        const neighbors = cell.device === "cpu" ? site.ops.flatMap((each) => ladders.cells(snapshot, cells, each.name)).filter((each) => each.device === "cpu" && each.type === type) : all;
        const ceilings = rooflines.ceilings(facts, type, neighbors, cell.device === "cpu" ? {} : rooflines.roofs(machine, facts));  // of a CPU, the fastest cells of all ops stand in for them
        main.append(element("h2", {}, "Place under the roof"));
        if (chosen[0].flops) {
            main.append(element("p", {}, "All sizes of this rung with " + type + "; gray dots are the other rungs. ", link("The whole roofline", "roofline", {type, machine: given.machine, device: cell.device === "cpu" ? "cpu" : ""}), "."),
                element("figure", {}, rooflines.draw(main, all, ceilings, chosen, is_line ? [rung.name] : [], "Roofline with the sizes of " + full, 340, (each) => ladders.short_shape(each.shape))));
        } else {
            main.append(element("p", {}, "Bandwidth against size with " + type + ", with the copy that bounds it. ", link("The whole picture", "roofline", {type, machine: given.machine, device: cell.device === "cpu" ? "cpu" : ""}), "."),
                element("figure", {}, rooflines.bandwidth(main, chosen, [{name: rung.name, line: is_line}], ceilings, facts, "Bandwidth of " + full + " against its compulsory bytes", Math.min(720, parseFloat(main.style.width) || 720), 280)));
        }
    }

    // --- history -----------------------------------------------------------------------------------------------------
    async function times() {
        main.append(element("h2", {}, "Time, commit by commit"));
        const count = Math.max(...timed.map((key) => history[key].at.length));
        main.append(element("p", {}, count < 2 ? "There is one commit only, so there is no history yet." : "One chart for each cell: time with its 95 % interval as a band, relative to the newest commit; the height is at least \u00b12 %. Nothing joins what was measured under other conditions, such as on another GPU; links say how launches compare all the same. A chart leads to the history of its cell."));
        const by_links = await kernelwatch.links.since(machine.summary.name, events);
        const order = (key) => [op.types.indexOf(cells[key].type), (op.shapes[cells[key].device] || []).indexOf(cells[key].shape), cells[key].cache];
        const sorted = timed.filter((key) => (history[key].s || []).some((s) => s)).sort((a, b) => d3.ascending(...[a, b].map((key) => order(key).map((part) => (typeof part === "number" ? String(100 + part) : part)).join())));
        main.append(element("ul", {class: "charts"}, sorted.map((key) => {
            const columns = history[key];
            const points = columns.at.map((commit, index) => ({commit, s: columns.s[index], low: columns.low?.[index], high: columns.high?.[index]})).filter((point) => point.s);
            const turns = kernelwatch.turns(machine.details, cells[key].op + " " + cells[key].device);
            points.forEach((point) => { point.stretch = kernelwatch.stretch(turns, point.commit); });
            const last = points.at(-1), alike = points.filter((point) => point.stretch === last.stretch), first = alike[0];
            const {type, shape, cache} = cells[key], linked = by_links(key);
            return element("li", {}, element("a", {href: kernelwatch.address("history", {cell: key, machine: given.machine})},
                element("span", {class: "chart-title"}, type + " " + ladders.short_shape(shape) + " " + cache),
                points.length > 1 ? small(points, key) : null,
                element("span", {class: "small quiet"}, text.time(last.s, text.significant(last.s, last.low, last.high)),
                    alike.length > 1 ? element("span", {"data-since": first.commit}, ", " + text.change(last.s / first.s - 1) + " since " + text.date(commits[first.commit].date)) 
                        : linked ? element("span", {"data-linked": linked.change}, ", " + text.change(linked.change, 2) + " by links from " + text.hash(linked.from) + " to " + text.hash(linked.to)) : ", one commit" + (points.length > 1 ? " under the newest conditions" : ""))));
        })));
    }

    function small(points, key) {
        const newest_s = points.at(-1).s;
        const relative = (s) => 100 * (s / newest_s - 1);
        const values = points.flatMap((point) => [point.s, point.low ?? point.s, point.high ?? point.s].map(relative));
        const reach = Math.max(2, ...values.map(Math.abs)) * 1.1;
        const index = (_, at) => at;
        const picture = Plot.plot({
            width: 165, height: 62, marginLeft: 36, marginRight: 5, marginTop: 5, marginBottom: 5,
            x: {axis: null, domain: [0, points.length - 1]}, y: {domain: [-reach, reach], axis: null},
            style: {background: "transparent", color: "currentColor", fontFamily: "inherit", overflow: "visible"},
            marks: [
                Plot.gridY([0], {stroke: "var(--rule)"}),
                Plot.axisY([-reach / 1.1, 0, reach / 1.1], {tickSize: 2, fontSize: 9.5, label: null, fill: "var(--quiet)", stroke: "var(--rule)", tickFormat: (value) => (value > 0 ? "+" : "") + text.digits(value, Math.abs(value) < 10 ? 1 : 2) + (value ? " %" : "")}),
                Plot.areaY(points, {x: index, y1: (point) => relative(point.low ?? point.s), y2: (point) => relative(point.high ?? point.s), z: "stretch", fill: "var(--cold)", fillOpacity: 0.25}),
                Plot.dot(points.filter((point) => points.filter((each) => each.stretch === point.stretch).length === 1), {x: (point) => points.indexOf(point), y: (point) => relative(point.s), fill: "var(--cold)", r: 1.4}),
                Plot.lineY(points, {x: index, y: (point) => relative(point.s), z: "stretch", stroke: "var(--cold)", strokeWidth: 1.4}),
                Plot.dot(points.slice(-1), {x: points.length - 1, y: (point) => relative(point.s), fill: "var(--cold)", r: 2.4}),
            ],
        });
        kernelwatch.describe(picture, "time of " + key + " over " + text.plural(points.length, "commit"));
        picture.dataset.key = key;
        picture.dataset.points = points.length;
        picture.dataset.stretches = new Set(points.map((point) => point.stretch)).size;
        return picture;
    }

    // --- exact figures --------------------------------------------------------------------------------------------------
    async function exact_figures() {
        main.append(element("h2", {}, "Exact figures"));
        const table = machine.details.exact[op.name] ? await machine.load(machine.details.exact[op.name]) : null;
        const series = Object.entries(table ? table.series : {}).filter(([, by_rung]) => by_rung[rung.name]);
        const architecture = kernelwatch.exact.architecture(machine);
        const found = series.flatMap(([name, by_rung]) => Object.entries(by_rung[rung.name]).map(([place, run]) => ({name, place, run: run.filter(([, value], at) => value !== null || at > 0)}))).filter((each) => each.run.length);
        if (!found.length) {
            main.append(element("p", {}, "No exact figure of " + full + " (registers, spilled bytes, occupancy, sectors, wavefronts, ...) is recorded on " + machine.summary.name + "."));
            return;
        }
        main.append(element("p", {}, "Figures without noise: read from the compiled kernel for each architecture, or counted by running it on the emulator. A value holds from its commit until the next one. \u25c6 marks a commit since which the emulator, the compiler or the packages are others: values on its two sides are not compared." + (architecture ? " The architecture of this machine\u2019s GPU, " + architecture + ", comes first; others are below." : "")));
        const foreign = (each) => architecture && / sm_\w+$/.test(each.place) && !each.place.endsWith(" " + architecture);
        const changed = found.filter((each) => !foreign(each) && new Set(each.run.map(([, value]) => value)).size > 1);
        for (const each of changed.slice(0, 12)) main.append(element("figure", {}, steps(each, table.at)));
        listing(found.filter((each) => !foreign(each)), main);
        if (found.some(foreign)) {
            const details = element("details", {}, element("summary", {}, "Other architectures"));
            listing(found.filter(foreign), details);
            main.append(details);
        }
    }

    // The name of a series of exact figures, in words.
    function named(name) {
        const known = ladders.FIGURES.find(([end]) => name.endsWith("." + end));
        if (known) return known[1].replace("\u00ad", "");
        const words = name.replace(/^.*\.(track_)?/, "").replaceAll("_", " ");
        return {moved: "bytes moved", class: "instructions by class"}[words] || words;
    }

    // One line for each figure and history; places that share both share a line.
    function listing(found, into) {
        const place = ({name}) => ladders.FIGURES.findIndex(([end]) => name.endsWith("." + end));
        const sorted = found.toSorted((a, b) => (place(a) < 0) - (place(b) < 0) || place(a) - place(b));
        const groups = d3.groups(sorted, (each) => each.name, (each) => JSON.stringify(each.run));
        const rows = groups.flatMap(([name, runs]) => runs.map(([, list], at) => {
            const {run} = list[0];
            const [since, value, why] = run.at(-1);
            const blame = (each) => (each ? " (\u25c6 " + each + ")" : "");
            const unit = site.figures[name]?.unit || "";
            return [at ? "" : element("span", {title: name}, named(name)), element("div", {class: "places"}, list.map((each) => each.place).join(", ")),
                element("b", {}, ladders.value(value)), unit === named(name) ? "" : unit,
                [link(text.hash(commits[since].hash), "commit", {hash: text.hash(commits[since].hash)}, {class: "hash"}), " " + text.date(commits[since].date), why ? element("div", {class: "small quiet places", "data-why": why}, "\u25c6 " + why) : ""],
                run.length > 1 ? run.slice(0, -1).map(([commit, older, other]) => ladders.value(older) + " since " + text.hash(commits[commit].hash) + blame(other)).join(", ") : element("span", {class: "quiet"}, "\u2013")];
        }));
        into.append(kernelwatch.table([{name: "figure"}, {name: "type and place"}, {name: "value", number: true}, {name: "unit"}, {name: "since"}, {name: "before"}], rows, {"aria-label": "Exact figures of " + full, class: "figures"}));
    }

    function steps({name, place, run}, measured) {
        const end = measured.at(-1);
        const spans = run.map(([commit, value, why], at) => ({why, from: measured.indexOf(commit), to: at + 1 < run.length ? measured.indexOf(run[at + 1][0]) : measured.indexOf(end) + 1, value, commit})).filter((span) => span.value !== null);
        const values = spans.map((span) => span.value);
        const width = Math.min(640, parseFloat(main.style.width) || 640), margins = {marginLeft: 60, marginRight: 70, marginTop: 24};
        const commit_width = (width - margins.marginLeft - margins.marginRight) / measured.length;
        const label_width = 130;  // in pixels, of "1234 since 0123abcd"
        // The table has every value; a label that the next one would cover is left out.
        const labeled = spans.filter((span, at) => at === spans.length - 1 || (spans[at + 1].from - span.from) * commit_width > label_width);
        const picture = Plot.plot({
            width, height: 110, ...margins,
            x: {domain: [0, measured.length], axis: null}, y: {domain: kernelwatch.domain(values, 0.2), label: named(name) + ", " + place, labelArrow: "none", ticks: 3},
            style: {background: "transparent", color: "currentColor", fontFamily: "inherit", fontSize: "12px", overflow: "visible"},
            marks: [Plot.gridY({ticks: 3, stroke: "var(--rule)"}), Plot.ruleX(spans.filter((span) => span.why), {x: "from", stroke: "var(--quiet)", strokeDasharray: "4 3"}),
                Plot.ruleY(spans, {y: "value", x1: "from", x2: "to", stroke: "var(--cold)", strokeWidth: 2.5, ariaDescription: "step"}),
                Plot.text(labeled, {x: "from", y: "value", dy: -9, textAnchor: "start", text: (span) => ladders.value(span.value) + " since " + text.hash(commits[span.commit].hash) + (span.why ? " \u25c6" : ""), stroke: "var(--page)", strokeWidth: 4, fill: "var(--ink)", ariaDescription: "label"})],
        });
        kernelwatch.describe(picture, named(name) + " of " + full + ", " + place + ": " + spans.map((span) => ladders.value(span.value)).join(", then "));
        return kernelwatch.marked(picture, '[data-mark="step"] *', spans, ({value}) => ({value}));
    }

    // --- events ----------------------------------------------------------------------------------------------------------
    function named_by_events() {
        main.append(element("h2", {}, "Events"));
        const positions = new Map(Object.entries(commits).map(([at, commit]) => [commit.hash, Number(at)]));
        const rows = events.events.flatMap((event) => event.changes.filter((change) => change.rung === full && kernelwatch.is_of(change.place, machine.summary.name)).map((change) => {
            const at = positions.get(event.last.hash), interval = kernelwatch.interval(change);
            const subject = change.cell ? change.cell.slice(full.length + 1) : kernelwatch.figure_name(change.benchmark) + " (" + Object.entries(change.params).filter(([name]) => name !== "rung").map(([, value]) => value.replace(/^'|'$/g, "")).join(", ") + ")";
            return [kernelwatch.event.link(event.kind, change.id, {class: event.kind === "environment" ? "warn" : kernelwatch.tone(event.kind, change), "data-id": change.id, "data-state": change.state, "data-size": change.size}),
                at === undefined ? text.hash(event.last.hash) : link(text.hash(event.last.hash), "commit", {hash: text.hash(commits[at].hash)}, {class: "hash"}), text.date(event.last.date), element("div", {class: "idea"}, event.last.subject),
                change.cell ? link(subject, "history", {cell: change.cell, machine: given.machine}) : subject,
                [kernelwatch.size(change) + (change.exact ? "" : change.size > 0 ? " slower" : " faster"), interval ? element("div", {class: "small quiet"}, interval) : ""],
                element("div", {class: "idea"}, [kernelwatch.words(change), kernelwatch.reason(change), event.why].filter(Boolean).join(": "))];
        }));
        main.append(rows.length ? kernelwatch.table([{name: "kind"}, {name: "commit"}, {name: "date"}, {name: "subject"}, {name: "cell or figure"}, {name: "change", number: true}, {name: "state"}], rows, {"aria-label": "Events of " + full, class: "figures"})
            : element("p", {}, "No event names this rung on " + machine.summary.name + "."));
    }
});
