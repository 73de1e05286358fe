// The ladders: every rung of an op at every size, and how far each is from the line it is held against.
"use strict";

kernelwatch.view("ladder", async function (main, parameters) {
    const {element, text, link, ladders} = kernelwatch;
    const {site, commits, cells, events} = await kernelwatch.common();
    const machine = await kernelwatch.machine(parameters.get("machine"));
    const {LOOK, DEVICES} = ladders;
    const given = Object.fromEntries(parameters);
    const go = (changes) => kernelwatch.go("ladder", {...given, ...changes});
    const choose = (name) => (value) => go({[name]: value});

    let at = kernelwatch.commit_at(machine, commits, given.commit);
    const before = given.with ? kernelwatch.commit_at(machine, commits, given.with) : null;
    let snapshot = await machine.load("at/" + at);
    const asked = (cell) => cell.op === given.op && (!given.type || cell.type === given.type) && (!given.device || cell.device === given.device);
    if (!given.commit && given.op && !ladders.cells(snapshot, cells, given.op).some((cell) => cell.state !== "na" && asked(cell))) {
        at = (await measured_at(given.op, asked, 1))[0] ?? at;  // the newest commit may have measured other ops only
        snapshot = await machine.load("at/" + at);
    }
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

    const peak = ladders.peak(op, type, facts, device === "cpu" ? {} : kernelwatch.rooflines.roofs(machine, facts));
    const groups = ladders.groups(op, device, type, found);
    const lines = [...new Set(groups.map((group) => group.against).filter(Boolean))], named = op.against[device];
    const units_of = (against) => ladders.units(against, op.unit, peak, found);
    const units = units_of(lines.length > 1 ? "the line of each group" : lines[0]);
    const unit_name = units[given.unit] ? given.unit : "rate";
    const unit = units[unit_name], linear = given.scale === "linear";
    const published = op.rungs.some((rung) => Object.keys(rung.published_ms).length) && type === op.types[0];
    const lecture = published && given.layer === "lecture" && (unit_name === "rate" || unit_name === "seconds");

    main.append(
        element("h1", {}, op.name + ", " + type + (device_name ? ", " + device_name : "")),
        element("p", {}, "A ladder is the versions of one op, its rungs, from the naive one to the fast one. Each panel below is one size, each row one rung. ",
            lines.length ? ["The rungs are held against ", lines.map((line, index) => [index ? " or " : "", element("b", {}, line)]), op.lines.includes(lines[0]) ? ", a plain copy. It is no bound: at small sizes a launch takes most of the time, and whatever moves more bytes in a launch, or copies better, is above 100 %." : ", the vendor\u2019s library on the same work.", groups.length > 1 ? " What rungs of two groups compute differs in precision, so their rates are not comparable." : ""] : named ? named + ", which the rungs are held against, was not timed here." : "On this device there is no line that the rungs are held against."),
        element("div", {class: "controls"},
            kernelwatch.choice("op", site.ops.map((each) => each.name), op.name, (value) => go({op: value, type: "", shape: "", cache: "", unit: given.unit === "seconds" ? "seconds" : ""})),
            site.machines.length > 1 ? kernelwatch.choice("machine", site.machines.map((each) => each.name), machine.summary.name, (value) => go({machine: value, commit: "", with: ""})) : null,
            devices.length > 1 ? kernelwatch.choice("device", devices.map((each) => [each, DEVICES[each]]), device, (value) => go({device: value, type: "", shape: "", cache: ""})) : null,
            kernelwatch.choice("element type", types.includes(type) ? types : [...types, type], type, (value) => go({type: value, shape: "", cache: ""})),
            caches.length > 1 ? kernelwatch.choice("cache", [["", "cold and hot"], ...caches], cache, choose("cache")) : null,
            kernelwatch.choice("unit", Object.entries(units).map(([name, each]) => [name === "rate" ? "" : name, each.name || each.label]), unit_name === "rate" ? "" : unit_name, choose("unit")),
            kernelwatch.choice("scale", [["", "logarithmic, one for all sizes"], ["linear", "linear, each size its own"]], linear ? "linear" : "", choose("scale")),
            kernelwatch.commit_choice("commit", machine, commits, at, choose("commit")),
            kernelwatch.commit_choice("compared with", machine, commits, before, choose("with"), "no other commit"),
            published ? element("label", {}, element("input", {type: "checkbox", name: "lecture", checked: given.layer === "lecture",
                onchange: (event) => go({layer: event.target.checked ? "lecture" : ""})}), " published figures") : null));

    if (!found.some((cell) => cell.s || cell.state === "failed")) {
        const timed_types = types.filter((each) => each !== type && of_device.some((cell) => cell.type === each && cell.s));
        const others = timed_types.length ? " Measured there: " + timed_types.join(", ") + "." : "";
        const known = await measured_at(op.name, (cell) => cell.device === device && cell.type === type, 3);
        main.append(element("p", {}, "At the commit ", kernelwatch.commit_link(at, commits), ", " + op.name + " with " + type + " on the " + DEVICES[device] + " of " + machine.summary.name + " was not measured." + others,
            known.length ? [" It was last measured at ", known.map((each, index) => [index ? ", " : "", link(text.hash(commits[each].hash), "ladder", {...given, commit: text.hash(commits[each].hash)}, {class: "hash"})]), "."] : ""));
        return;
    }

    // The newest commits at which cells of an op were measured, the newest first, so many at most. Histories are read from
    // their end.
    async function measured_at(name, wanted, most) {
        const rungs = new Set(Object.values(cells).filter((cell) => cell.op === name && wanted(cell)).map((cell) => name + "/" + cell.rung));
        const files = [...rungs].flatMap((rung) => machine.details.history[rung] || []);
        const positions = new Set();
        for (const [, names] of d3.sort(d3.group(files, kernelwatch.block_of), ([block]) => -block)) {
            for (const part of await Promise.all(names.map(machine.load))) {
                for (const [key, columns] of Object.entries(part.cells)) {
                    if (cells[key] && wanted(cells[key])) columns.at.forEach((each) => positions.add(each));
                }
            }
            if (positions.size >= most) break;
        }
        return [...positions].sort((a, b) => b - a).slice(0, most);
    }

    main.append(element("p", {class: "small quiet"}, "Commit ", kernelwatch.commit_link(at, commits), facts.measured_at ? ", measured " + facts.measured_at.slice(0, 10) : "",
        " on " + machine.summary.name + (facts.nvml_driver && device !== "cpu" ? ", driver " + facts.nvml_driver : "") + (facts.compiler && device === "cpu" ? ", " + facts.compiler : "") + (facts.cores && device === "cpu" ? ", " + text.plural(facts.cores.length, "core") : "") + ". "));

    // --- the picture ---------------------------------------------------------------------------------------------
    const rows = ladders.rows(op, device, found);
    const by_key = new Map(own.map((cell) => [cell.key, cell]));
    const reference = (cell) => by_key.get(kernelwatch.key(op.name, ladders.against(op, cell), cell.type, cell.shape, cell.cache));
    const shapes = [...new Set([...(op.shapes[device] || []), ...found.map((cell) => cell.shape)])].filter((shape) => found.some((cell) => cell.shape === shape && (cell.s || cell.state === "failed")));
    const older = before === null ? new Map() : new Map(ladders.cells(await machine.load("at/" + before), cells, op.name).map((cell) => [cell.key, cell]));
    const printed = new Map(op.rungs.map((rung) => [rung.name, rung.published_ms]));

    const panels_of = ({cells, against}) => shapes.map((shape) => {
        const here = cells.filter((cell) => cell.shape === shape);
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
        const rules = against ? [...new Set(here.map(reference))].filter((cell) => cell?.s).map((cell) => ({cache: cell.cache, value: ladders.figure(unit, cell, cell)[0]})) : [];
        return {shape, marks, lectures, ticks, rules, also: [...[...rules, ...lectures].map((mark) => mark.value), ...ticks.map((mark) => mark.figure[0])]};
    }).filter((panel) => panel.marks.some((mark) => mark.figure || mark.failed));

    const heading = (group) => group.title + (group.against ? ", held against " + group.against : "");

    function hint(cell, [value, low, high]) {
        const digits = text.significant(value, low, high);
        return [cell.rung + ", " + text.shape(cell.shape) + ", " + cell.cache,
            text.digits(value, digits) + " " + unit.label + " (95 % interval " + ladders.interval([value, low, high], digits + 1) + ")",
            unit_name === "seconds" ? null : text.time(cell.s, text.significant(cell.s, cell.low, cell.high)),
            text.plural(cell.processes, "process", "processes") + (cell.clock_mhz ? ", " + text.digits(cell.clock_mhz, 4) + " MHz" : ""),
            ladders.remarks(cell) ? "! " + ladders.remarks(cell) : null].filter(Boolean).join("\n");
    }

    const picture = (group) => ladders.panels(main, panels_of(group), group.rows, {
        scale: linear ? "linear" : "log", machine: machine.summary.name,
        alt: (panel) => group.title + " at " + panel.shape + ": " + unit.label + " of " + text.plural(panel.marks.filter((mark) => mark.figure).length, "cell") + "; the table below lists the figures",
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
        unit_name === "line" ? element("p", {}, "100 % is the rate of " + lines.join(" or ") + " at the same size and in the same cache state. The intervals are those of the rungs\u2019 own times.") : null,
        given.unit && !units[given.unit] ? element("p", {}, "The unit that the address names needs a figure that this device lacks; the picture shows " + unit.label + ".") : null,
        ladders.legend([
            ...["cold", "hot"].filter((each) => drawn.includes(each)).map((each) => [each, each + ": " + LOOK[each].mean]),
            ["interval", "95 % interval of the median over processes, often narrower than its mark"],
            lines.length ? ["rule", lines.join(" or ") + " at this size" + (drawn.length > 1 ? " (dashed: hot)" : "")] : null,
            rows.some((row) => row.line) && rows.some((row) => !row.line) ? ["italic", "under the rule, in italics: lines to compare with, not rungs"] : null,
            limited.length ? ["limit", "a limit was active: " + [...new Set(limited.flatMap((cell) => cell.limits))].join("; ")] : null,
            before === null ? null : ["tick", "the same cell at " + text.hash(commits[before].hash)],
            lecture ? ["times", "what the origin prints for a square of this extent, on its own hardware"] : null,
        ].filter(Boolean)),
        groups.map((group) => [groups.length > 1 ? element("h3", {}, heading(group)) : null, element("figure", {"data-group": group.title}, picture(group))])));
    const missing = d3.rollups(found.filter((cell) => !cell.s && cell.reason), (list) => [...new Set(list.map((cell) => cell.rung))], (cell) => text.shape(cell.shape) + ", " + cell.cache + ": " + cell.reason);
    if (missing.length) {
        main.append(element("details", {}, element("summary", {}, text.plural(found.filter((cell) => !cell.s && cell.reason).length, "cell has", "cells have") + " no figure: why"),
            element("ul", {}, missing.map(([reason, names]) => element("li", {}, reason + " (" + (names.length === rows.length ? "every row" : names.join(", ")) + ")")))));
    }
    if (type !== op.types[0] && !shapes.some((shape) => shape !== op.element_shape)) {
        main.append(element("p", {class: "small quiet"}, "Types other than " + op.types[0] + " are timed at " + text.shape(op.element_shape) + " only."));
    }

    // --- the change ----------------------------------------------------------------------------------------------
    if (before !== null) await compared();

    // How a cell's time changed between the two commits. If they are those of an event, it is the event that says so.
    function change_of(cell) {
        const change = cell && ladders.change(cell, older.get(cell.key));
        const found = change && kernelwatch.changes(events, commits, machine.summary.name).find((each) => each.change.cell === cell.key && each.at === at && each.from === before
            && each.event.kind !== "environment" && each.change.state !== "refuted");
        return found ? {...change, change: found.change.size, low: found.change.interval[0] ?? change.low, high: found.change.interval[1] ?? change.high, clear: true} : change;
    }
    async function compared() {
        const changes = shapes.map((shape) => ({shape, marks: found.filter((cell) => cell.shape === shape && change_of(cell)).map((cell) => {
            const change = change_of(cell);
            const words = text.change(change.change) + " time (95 % interval " + text.change(change.low) + " to " + text.change(change.high) + ")";
            return {row: cell.rung, cache: cell.cache, cell, change, figure: [change.change, change.low, change.high].map((each) => 100 * each),
                title: cell.rung + ", " + text.shape(cell.shape) + ", " + cell.cache + "\n" + words + "\n" + (change.clear ? "exceeds" : "does not exceed") + " the minimum detectable change, " + text.percent(change.detectable, 2)};
        })})).filter((panel) => panel.marks.length);
        main.append(element("h2", {}, "Change of time against " + text.hash(commits[before].hash)));
        const [first, last] = d3.extent([at, before]);
        const turns = kernelwatch.turns(machine.details, op.name + " " + device).filter((turn) => turn.at > first && turn.at <= last);
        if (turns.length) {
            const keys = found.filter(change_of).map((cell) => cell.key);
            main.append(element("p", {class: "warn"}, "\u25c6 The conditions changed between the two: " + [...new Set(turns.flatMap((turn) => turn.why))].join(", ") + ". " + await kernelwatch.links.across(machine.summary.name, events, keys, first, last)));
        }
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
    const kinds_of = (own) => ladders.FIGURES.filter(([end]) => own.some((row) => exact.get(row.name).some((each) => each.end === end)));
    const kinds = kinds_of(rows);
    const shown = drawn.filter((each) => rows.some((row) => by_key.get(kernelwatch.key(op.name, row.name, type, shape, each))?.s));
    const has_ideas = op.rungs.some((each) => each.idea);
    const columns_of = ({rows: own, against}) => [
        {name: "rung"}, has_ideas ? {name: "idea"} : null,
        ...shown.map((each) => ({name: each + ", " + (units_of(against)[unit_name] || unit).label, number: true, title: "median over processes and its 95 % interval"})),
        unit_name !== "line" && against ? {name: "% of " + against, number: true, title: "rate as a share of " + against + " at this size, in the same cache state"} : null,
        ...(before === null ? [] : shown.map((each) => ({name: "change, " + each, number: true, title: "of time, against " + text.hash(commits[before].hash)}))),
        ...kinds_of(own).map(([, label, mean, , per]) => ({name: [label, element("div", {class: "per"}, per)], number: true, title: mean})),
    ].filter(Boolean);
    const listed_of = ({rows: own, against}) => own.map((row) => {
        const rung = op.rungs.find((each) => each.name === row.name && (each.device === device || device === "streamed" || device === "several")) || {};
        const mine = shown.map((each) => by_key.get(kernelwatch.key(op.name, row.name, type, shape, each)));
        const shares = mine.filter((cell) => cell && cell.s && reference(cell)?.s).map((cell) => ladders.share(kernelwatch.rate(cell, cell.s) / kernelwatch.rate(reference(cell), reference(cell).s)));
        return [
            [link(row.name, "rung", {op: op.name, rung: row.name, machine: given.machine}), element("div", {class: "small"},
                rung.source ? kernelwatch.source_link(site, commits[at], rung.source, rung.source.split("/").pop()) : null,
                rung.source && mine.some((cell) => cell && cell.s) ? " \u00b7 " : null,
                mine.some((cell) => cell && cell.s) ? link("history", "history", {cell: mine.filter((cell) => cell && cell.s).map((cell) => cell.key), machine: given.machine}, {"aria-label": "history of " + row.name}) : null)],
            has_ideas ? element("div", {class: "idea"}, rung.idea || (row.line ? "line to compare with" : "n/a")) : null,
            ...mine.map((cell) => (cell && cell.state === "failed" && !cell.s ? element("span", {class: "bad"}, "failed: " + (cell.reason || "no reason recorded"))
                : cell && !cell.s ? element("abbr", {title: cell.reason}, "n/a") : ladders.shown(ladders.figure(unit, cell, cell && reference(cell)), ladders.remarks(cell)))),
            unit_name !== "line" && against ? shares.join(" / ") || "n/a" : null,
            ...(before === null ? [] : mine.map((cell) => difference(cell))),
            ...kinds_of(own).map(([end]) => {
                const figure = exact.get(row.name).find((each) => each.end === end);
                return figure ? element("span", {title: figure.place}, ladders.value(figure.value) + figure.unit) : element("span", {class: "quiet"}, "\u2013");
            }),
        ].filter((cell) => cell !== null);
    });
    function difference(cell) {
        const change = change_of(cell);
        return change ? [change.clear ? element("b", {class: change.change > 0 ? "bad" : "good"}, text.change(change.change, 2) + (change.change > 0 ? " slower" : " faster")) : text.change(change.change, 2),
            element("div", {class: "small quiet"}, text.change(change.low, 2) + " to " + text.change(change.high, 2))] : "n/a";
    }
    const best_of = ({rows: own}) => shown.flatMap((each) => [false, true].map((line) => d3.greatest(own.filter((row) => row.line === line)
        .map((row) => by_key.get(kernelwatch.key(op.name, row.name, type, shape, each))).filter((cell) => cell?.s && plain(cell)), (cell) => kernelwatch.rate(cell, cell.s))).filter(Boolean)
        .map((cell) => ({...cell, line: own.find((row) => row.name === cell.rung).line})));
    function plain(cell) {  // a rung that repeats its work, or copies, is no candidate
        const rung = op.rungs.find((each) => each.name === cell.rung);
        return !rung || rung.plain;
    }
    const best_words = (best) => element("p", {class: "small", "data-best": best.map((cell) => cell.rung).join(" ")}, best.map((cell) => [cell.line ? "Best line measured" : "Best rung measured", " at this size, " + cell.cache + ": ", element("b", {}, cell.rung), ", ",
        text.rate(kernelwatch.rate(cell, cell.s), op.unit), ". "]));
    const counted = [...exact.values()].flat().find((each) => !each.place.includes(" sm_"));
    main.append(
        element("h2", {}, "Rung by rung at " + text.shape(shape)),
        element("div", {class: "controls"}, kernelwatch.choice("size", shapes.map((each) => [each, text.shape(each)]), shape, choose("shape"))),
        ...groups.map((group) => element("section", {}, groups.length > 1 ? element("h3", {}, heading(group)) : null,
            kernelwatch.table(columns_of(group), listed_of(group), {"aria-label": (groups.length > 1 ? group.title : op.name) + " at " + shape, class: "figures"}), best_words(best_of(group)))),
        element("p", {class: "small quiet"},
            "Under each figure stands its 95 % interval, the median\u2019s over processes. " + (device === "cpu" ? "" : kinds.length
                ? "Registers, spilled bytes and occupancy are those of " + architecture + ", read from the compiled kernel" + (counted ? "; sectors, wavefronts and barriers are counted at " + text.shape(counted.place.split(" ")[1]) + ", " + counted.place.split(" ")[0] + ", per request or block" : "") + ". They have no noise. A dash: the kernel makes no such access, or it was not counted, such as a library\u2019s."
                : "No exact figures (registers, sectors, ...) of " + type + " on " + architecture + " are recorded at this commit.")));
});
