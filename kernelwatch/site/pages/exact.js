// The exact figures of a rung (docs/glossary.md) over commits: what changed, in words and as steps on the axis of a history.
"use strict";

{
    const {element, text, link} = kernelwatch;
    const exact = (kernelwatch.exact = {});

    // The architecture of a machine's GPU, as the places of compiled figures name it; "" without one.
    exact.architecture = ({summary}) => (summary.compute_capability ? "sm_" + summary.compute_capability : "");

    // The exact figures that changed at a commit of a machine: {changed: [{op, rung, benchmark, place, before, after, why}],
    // first}, `why`: what changed if no commit is to blame; `first`: how many were recorded for the first time.
    exact.changed_at = async function (machine, at) {
        const changed = [];
        let first = 0;
        for (const [op, file] of Object.entries(machine.details.exact)) {
            for (const [benchmark, rungs] of Object.entries((await machine.load(file)).series)) {
                for (const [rung, places] of Object.entries(rungs)) {
                    for (const [place, run] of Object.entries(places)) {
                        const index = run.findIndex((entry) => entry[0] === at);
                        if (index < 0 || run[index][1] === null) continue;
                        const old = run.slice(0, index).reverse().find((entry) => entry[1] !== null);
                        if (old) changed.push({op, rung, benchmark, place, before: old[1], after: run[index][1], why: run[index][2] || ""});
                        else first += 1;
                    }
                }
            }
        }
        return {changed, first};
    };

    // Those that may explain a change of a cell's time at that commit, judged ones first: not what an instrument did.
    exact.causes = async function (machine, at, cell) {
        const {changed} = await exact.changed_at(machine, at), {figures} = await kernelwatch.load("site");
        return changed.filter((each) => !each.why && each.op === cell.op && each.rung === cell.rung && belongs(each.place, cell, exact.architecture(machine)))
            .sort((a, b) => Boolean((figures[b.benchmark] || {}).judged) - Boolean((figures[a.benchmark] || {}).judged));
    };

    // Changes of exact figures in a sentence; null if there is none. `about`: what stands before it.
    exact.told = function (changes, site, about = "Exact figures that changed with it: ") {
        if (!changes || !changes.length) return null;
        return [about, changes.map((change, index) => {
            const name = figure_title(change), unit = (site.figures[change.benchmark] || {}).unit || "";
            return [index ? ", " : "", element("span", {"data-benchmark": change.benchmark, "data-place": change.place, "data-before": change.before, "data-after": change.after},
                name + " ", element("b", {}, text.exact(change.before) + " \u2192 " + text.exact(change.after)), unit_of(name, unit))];
        }), ". "];
    };

    // Whether figures of a place ("float32 sm_90", "float32 256x256") are those of a cell's type and of an architecture.
    function belongs(place, cell, architecture) {
        const [first, second] = place.split(" ");
        return (second === undefined || first === cell.type) && (!(second || first).startsWith("sm_") || (second || first) === architecture);
    }

    // The exact figures of a rung that belong to a cell: those of its element type, and compiled ones only for the
    // machine's own architecture. [{benchmark, place, run, group}]
    function figures_of(table, cell, architecture) {
        const found = [];
        for (const [benchmark, rungs] of Object.entries((table || {series: {}}).series)) {
            for (const [place, run] of Object.entries(rungs[cell.rung] || {})) {
                if (belongs(place, cell, architecture)) found.push({benchmark, place, run, group: cell.op + " " + (benchmark.startsWith('static.') ? "static" : "access")});
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

    // Steps of an exact figure over commits: [{at, value, why, stretch}], where it changed, and at both ends. What is not
    // compared, since an instrument changed, belongs to two stretches.
    function steps_of(run, first, last) {
        const start = kernelwatch.value_at(run, first);
        const steps = [...(start ? [{at: first, value: start[1], why: ""}] : []),
            ...run.filter(([at]) => at > first && at <= last).map(([at, value, why]) => ({at, value, why: why || ""}))];
        let stretch = 0;
        return steps.map((step) => ({...step, stretch: step.why ? ++stretch : stretch}));
    }

    exact.part = function (into, main, cell, table, architecture, how, common) {
        const figures = figures_of(table, cell, architecture);
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
    };

    function step_chart(main, figure, how, common) {
        const known = figure.steps.map((step) => ({...step, x: how.place(step.at)}));
        const end = how.place(how.shown[how.shown.length - 1]);
        const line = known.flatMap((step, index) => [step, ...(index + 1 === known.length || known[index + 1].why ? [{...step, x: index + 1 < known.length ? known[index + 1].x : end}] : [])]);
        const moved = known.filter((step) => step.why);
        const unit = (common.site.figures[figure.benchmark] || {}).unit || "";
        const values = line.map((step) => step.value).filter((value) => value !== null);
        const [low, high] = d3.extent(values), room = (high - low || 1) * 0.25;
        const name = figure_title(figure), title = name + (name.endsWith(unit) ? "" : ", " + unit) + ", " + figure.place;
        const drawn = kernelwatch.plot(main, {
            height: 64, marginLeft: how.left, marginRight: how.right, marginTop: 8, marginBottom: 8,
            x: {...how.x, axis: null}, y: {axis: null, domain: [low - room, high + room]},
            marks: [
                Plot.ruleX(how.events, {x: "x", stroke: "var(--rule)"}),
                Plot.axisY([...new Set(values)].slice(0, 4), {label: null, tickSize: 3, tickFormat: (value) => text.exact(value)}),
                Plot.ruleX(moved, {x: "x", stroke: "var(--quiet)", strokeDasharray: "4 3"}),
                Plot.lineY(line, {x: "x", y: "value", z: "stretch", curve: "step-after", stroke: "var(--ink)", strokeWidth: 1.5}),
                Plot.dot(known, {x: "x", y: "value", r: 3, fill: "var(--ink)", className: "step"}),
            ],
        }, title + ": " + known.filter((step) => step.value !== null).map((step) => text.hash(common.commits[step.at].hash) + " " + step.value).join(", "));
        kernelwatch.marked(drawn, ".step circle", known, (step) => ({benchmark: figure.benchmark, place: figure.place, at: step.at, value: step.value}));
        drawn.prepend(element("div", {class: "small"}, title, moved.map((step) => element("span", {class: "quiet", "data-why": step.why}, "; \u25c6 since " + text.hash(common.commits[step.at].hash) + " " + step.why))));
        return drawn;
    }
}
