// The series of asv's own benchmarks: a benchmark with its parameters, on a machine and in an environment. What other
// pages ask of them, and their page History.
"use strict";

{
    const {element, text, link, choice, table, happenings} = kernelwatch;
    const values = (kernelwatch.values = {});
    const ROWS = 200;  // of the table
    const DOTS = 240;  // more points than these have no dots
    const HIDDEN = ["machine", "branch"];  // of a place: chosen or named elsewhere

    // The parameters of a series as asv files them are Python literals.
    const plain = (value) => String(value).replace(/^'(.*)'$/, "$1");

    // The benchmark and its parameters.
    values.name = function (series) {
        const params = Object.values(series.params).map(plain);
        return series.benchmark + (params.length ? " (" + params.join(", ") + ")" : "");
    };

    // The series that a change or an entry is about: its place in the list `all`.
    const id = (series) => JSON.stringify([series.benchmark, series.params, series.place]);
    const ids = new WeakMap();
    values.of = function (all, series) {
        if (!ids.has(all)) ids.set(all, new Map(all.map((each) => [id(each), each])));
        return ids.get(all).get(id(series));
    };

    // What tells the environments of a machine apart: {name: values} of the places that differ.
    values.environments = function (all, machine) {
        const own = all.filter((each) => each.place.machine === machine && each.configured);
        const names = [...new Set(own.flatMap((each) => Object.keys(each.place)))].filter((name) => !HIDDEN.includes(name));
        return names.filter((name) => new Set(own.map((each) => each.place[name] ?? "")).size > 1);
    };

    const environment = (series, names) => names.map((name) => name + " " + (series.place[name] || "none")).join(", ");

    // Seconds as people read them, bytes as KiB or MiB, any other unit as it is.
    values.say = function (value, unit, digits = 4) {
        if (value === null || value === undefined) return "n/a";
        if (unit === "seconds") return text.time(value, digits);
        if (unit === "bytes") return text.bytes(value);
        return text.exact(value, digits) + (unit && unit !== "unit" ? " " + unit : "");
    };

    values.link = (series, words) => link(words || values.name(series), "history", {series: id(series)});

    // The points of a series: [{at, value, low, high}].
    values.points = async function (series) {
        if (!series.file) return [];
        const columns = (await kernelwatch.load(series.file)).series[series.index];
        return columns.at.map((at, index) => ({at, value: columns.value[index], low: columns.low ? columns.low[index] : null, high: columns.high ? columns.high[index] : null}));
    };

    // The series that an address names, by itself or by its parts; the one with the newest event by default.
    function asked(parameters, all, common) {
        const configured = all.filter((each) => each.file);
        const named = parameters.get("series") && configured.find((each) => id(each) === parameters.get("series"));
        if (named) return named;
        if (parameters.get("benchmark")) {
            const found = configured.find((each) => each.benchmark === parameters.get("benchmark"));
            if (!found) throw new Error("no benchmark " + parameters.get("benchmark") + " is recorded");
            return found;
        }
        const changes = common.events.events.filter((event) => event.configured && event.kind !== "environment").flatMap((event) => event.changes);
        return changes.map((change) => values.of(all, change)).find((series) => series && series.file) || configured[0];
    }

    // A choice for each of the parts in which the series of a benchmark differ; choosing one keeps as many of the others as
    // there are.
    function controls(series, all, site, go) {
        const configured = all.filter((each) => each.file);
        const benchmarks = [...new Set(configured.map((each) => each.benchmark))];
        const own = configured.filter((each) => each.benchmark === series.benchmark);
        const parts = (each) => ({machine: each.place.machine, ...each.place, ...Object.fromEntries(Object.entries(each.params).map(([name, value]) => ["\0" + name, value]))});
        const names = Object.keys(parts(series)).filter((name) => name !== "branch" && new Set(own.map((each) => parts(each)[name] ?? "")).size > 1);
        const mine = parts(series);
        const nearest = (list, fixed) => d3.greatest(list, (each) => {
            const theirs = parts(each);
            return (theirs[fixed[0]] === fixed[1] ? 1000 : 0) + Object.keys(mine).filter((name) => theirs[name] === mine[name]).length;
        });
        return element("div", {class: "controls", role: "group", "aria-label": "Series"},
            choice("benchmark", benchmarks, series.benchmark, (name) => go(nearest(configured.filter((each) => each.benchmark === name), []))),
            names.map((name) => choice(name.replace("\0", ""), [...new Set(own.map((each) => parts(each)[name] ?? ""))].map((value) => [value, plain(value || "none")]), mine[name] ?? "",
                (value) => go(nearest(own, [name, value])))));
    }

    function listed(changes, common, unit) {
        if (!changes.length) return element("p", {}, "No change was found between these commits.");
        const commit = (hash) => {
            const at = common.at.get(hash);
            return at === undefined ? text.hash(hash) : kernelwatch.commit_link(at, common.commits);
        };
        return element("section", {}, element("h2", {}, "What happened"), element("ul", {class: "happened"}, changes.toReversed().map(({event, change}) => {
            const interval = kernelwatch.interval(change);
            return element("li", {"data-kind": event.kind, "data-change": change.size, "data-state": change.state}, element("b", {class: kernelwatch.tone(event.kind, change)}, kernelwatch.arrow(change.size) + " " + kernelwatch.size(change)),
                interval ? " (" + interval + ")" : "", ", " + [event.kind, kernelwatch.words(change), kernelwatch.reason(change)].filter(Boolean).join(", ") + ": ",
                values.say(change.before, unit) + " \u2192 " + values.say(change.after, unit) + ". ", event.commits > 1 && event.kind !== "environment" ? text.plural(event.commits - 1, "commit") + " before it " + (event.commits > 2 ? "were" : "was") + " not measured and may be the cause. " : "",
                event.gradual ? "Many small changes since " + text.hash(event.first.hash) + ". " : "", "At ", commit(change.to), ". ", kernelwatch.event.link("The event\u2019s page", change.id), ".");
        })), element("p", {class: "small"}, link("All events", "regressions")));
    }

    function rows_of(points, common, unit) {
        return points.map((point, index) => [point, points[index - 1]]).toReversed().slice(0, ROWS).map(([point, before]) => {
            const commit = common.commits[point.at];
            return [link(text.hash(commit.hash), "commit", {hash: text.hash(commit.hash)}, {class: "hash"}), text.date(commit.date), element("span", {class: "subject"}, commit.subject),
                element("span", {"data-at": point.at, "data-value": point.value}, values.say(point.value, unit)), point.low === null ? "" : values.say(point.low, unit) + " \u2013 " + values.say(point.high, unit),
                before && before.value ? text.change(point.value / before.value - 1) : ""];
        });
    }

    kernelwatch.values.history = async function (main, parameters) {
        const common = await kernelwatch.common(), {site, commits, events} = common, all = events.series;
        const at = (common.at = kernelwatch.positions(commits));
        const series = asked(parameters, all, common);
        if (!series) {
            main.append(element("h1", {}, "History"), element("p", {}, "No series is recorded yet: run asv run, then asv publish."));
            return;
        }
        const {unit} = site.figures[series.benchmark] || {};
        const recorded = await values.points(series), newest = Number(parameters.get("last")) || 0;
        const points = newest ? recorded.slice(-newest) : recorded;
        const state = {series: id(series), last: newest || "", x: parameters.get("x")};
        const go = (changes) => kernelwatch.go("history", {...state, ...changes});
        const dated = parameters.get("x") === "dated";
        const names = values.environments(all, series.place.machine);
        main.append(element("h1", {class: "series"}, values.name(series)),
            element("p", {class: "quiet"}, series.place.machine + (names.length ? " \u00b7 " + environment(series, names) : "") + " \u00b7 " + (unit && unit !== "unit" ? unit : "value") + (!recorded.some((point) => point.low !== null) ? "" : series.place.links ? ", by links, with their 95 % interval" : ", median of asv\u2019s samples with the 95 % interval of that median")),
            controls(series, all, site, (each) => go({series: id(each)})),
            element("div", {class: "controls", role: "group", "aria-label": "Axes"},
                choice("commits", [["", "all " + recorded.length], ...[30, 100, 300].filter((count) => count < recorded.length).map((count) => [count, "newest " + count])], newest || "", (last) => go({last})),
                choice("spaced", [["", "evenly"], ["dated", "by date"]], dated ? "dated" : "", (x) => go({x}))));
        const place = dated ? (point) => new Date(commits[point.at].date) : (point) => points.indexOf(point);
        points.forEach((point) => { point.x = place(point); });
        const shown = new Map(points.map((point) => [point.at, point]));
        const changes = events.events.flatMap((event) => event.changes.filter((change) => values.of(all, change) === series).map((change) => ({event, change, point: shown.get(at.get(change.to))})))
            .filter((each) => each.point).sort((a, b) => a.point.at - b.point.at);
        draw(main, series, points, recorded, changes, {unit, dated, commits, at, go});
        main.append(listed(changes, common, unit), element("h2", {}, "Values"),
            element("details", {class: "values"}, element("summary", {}, "Values at " + text.plural(points.length, "commit") + ", newest first" + (points.length > ROWS ? ", the newest " + ROWS : "")),
                table([{name: "Commit"}, {name: "Date"}, {name: "Subject"}, {name: "Value", number: true}, {name: "95 % interval", number: true}, {name: "Change", number: true}], rows_of(points, common, unit), {"aria-label": "Values of " + values.name(series)})));
    };

    function draw(main, series, points, recorded, changes, {unit, dated, commits, at}) {
        const width = Math.max(300, Math.min(main.clientWidth || parseFloat(main.style.width) || 960, 1280)), small = width < 600;
        const known = points.map((point) => point.value), middle = Math.abs(d3.median(known));
        const [label, scale] = unit === "seconds" ? [["s", 1], ["ms", 1e-3], ["\u00b5s", 1e-6], ["ns", 1e-9]].find(([, each]) => middle >= each) || ["ns", 1e-9]
            : unit === "bytes" ? [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["bytes", 1]].find(([, each]) => middle >= each) || ["bytes", 1] : [unit && unit !== "unit" ? unit : "value", 1];
        const [since, until] = [at.get(series.since), at.get(series.until)];
        const under = recorded.filter((point) => point.at >= since && point.at <= until), drawn_under = points.filter((point) => point.at >= since && point.at <= until);
        const level = d3.median(under, (point) => point.value);
        const unseen = series.smallest > 0 && level && drawn_under.length > 1
            ? {x1: drawn_under[0].x, x2: drawn_under[drawn_under.length - 1].x, low: level - Math.abs(level) * series.smallest, high: level + Math.abs(level) * series.smallest} : null;
        const ends = [...known, ...(unseen ? [unseen.low, unseen.high] : [])].map((value) => value / scale);
        const [lowest, highest] = kernelwatch.domain(ends, 0.01), domain = lowest === highest ? [lowest - 1, highest + 1] : [lowest, highest];
        const limit = (value) => Math.min(domain[1], Math.max(domain[0], value / scale));
        const left = 62, right = 34;
        const extent = d3.extent(points, (point) => point.x);
        const x = {type: dated ? "utc" : "linear", domain: +extent[0] === +extent[1] ? (dated ? [-1, 1].map((days) => new Date(+extent[0] + days * 86400000)) : [-1, 1]) : extent};
        const scale_x = (dated ? d3.scaleUtc : d3.scaleLinear)(x.domain, [left, width - right]);
        for (const mark of changes) {
            mark.label = kernelwatch.arrow(mark.change.size) + " " + kernelwatch.size(mark.change) + (small ? "" : ", " + [mark.event.kind, kernelwatch.words(mark.change)].filter(Boolean).join(", "));
            mark.width = happenings.width_of(mark.label);
            mark.px = scale_x(mark.point.x);
            mark.flipped = mark.px + mark.width > width - 4;
        }
        const top = 24 + 17 * happenings.rows_of(changes), height = (small ? 250 : 330) + top;
        const every = Math.max(1, Math.ceil(points.length / Math.max(2, Math.floor((width - left - right) / 92))));
        const ticks = points.map((_, index) => index).filter((index) => (points.length - 1 - index) % every === 0);
        const color = kernelwatch.colors[0], spread = points.filter((point) => point.low !== null);
        const alt = values.name(series) + " over " + text.plural(points.length, "commit") + ", newest " + values.say(known[known.length - 1], unit);
        const figure = kernelwatch.plot(main, {
            height, marginLeft: left, marginRight: right, marginTop: top + 14, marginBottom: 42,
            x: {...x, axis: null}, y: {domain, label: null},
            marks: [
                Plot.gridY({stroke: "var(--rule)", strokeOpacity: 0.6}),
                unseen ? Plot.rect([unseen], {x1: "x1", x2: "x2", y1: limit(unseen.low), y2: limit(unseen.high), fill: "var(--quiet)", fillOpacity: 0.13, className: "unseen"}) : null,
                Plot.ruleX(changes, {x: (mark) => mark.point.x, stroke: "var(--quiet)", strokeOpacity: 0.7}),
                spread.length ? Plot.areaY(spread, {x: "x", y1: (point) => limit(point.low), y2: (point) => limit(point.high), fill: color, fillOpacity: 0.22, className: "band"}) : null,
                Plot.lineY(points, {x: "x", y: (point) => point.value / scale, stroke: color, strokeWidth: 1.6, className: "line"}),
                points.length > DOTS ? null : Plot.dot(points, {x: "x", y: (point) => point.value / scale, r: 3, fill: color, className: "point"}),
                dated ? Plot.axisX({label: "date of the commit", labelArrow: "none", ticks: small ? 4 : 8})
                    : Plot.axisX(ticks, {label: small ? "commits" : "commit, measured ones evenly spaced", labelArrow: "none", tickFormat: (index) => text.hash(commits[points[index].at].hash)}),
            ].filter(Boolean),
        }, alt);
        const svg = figure.querySelector("svg"), picture = d3.select(svg), scale_y = svg.scale("y");
        kernelwatch.marked(svg, ".point > *", points, (point) => ({at: point.at, value: point.value}));
        picture.append("text").attr("class", "amount").attr("x", 4).attr("y", top).attr("text-anchor", "start").attr("fill", "var(--quiet)").text(label);
        for (const mark of changes) {
            picture.append("text").attr("class", "mark").attr("x", mark.px + (mark.flipped ? -5 : 5)).attr("y", top - 20 - 17 * mark.row).attr("text-anchor", mark.flipped ? "end" : "start")
                .attr("fill", "var(--" + (kernelwatch.tone(mark.event.kind, mark.change) || "quiet") + ")").attr("data-kind", mark.event.kind).text(mark.label);
            picture.insert("path", "g").attr("d", "M" + mark.px + "," + (top - 32 - 17 * mark.row) + "V" + (top + 14)).attr("stroke", "var(--quiet)").attr("stroke-opacity", 0.7);
        }
        const box = element("div", {class: "pointed", tabindex: 0, role: "group", "aria-label": "Commits of the picture: arrow keys go from commit to commit, Enter opens one"});
        box.append(figure);
        const last = points[points.length - 1];
        main.append(element("p", {}, "Newest: ", element("b", {}, values.say(last.value, unit)), " at ", link(text.hash(commits[last.at].hash), "commit", {hash: text.hash(commits[last.at].hash)}, {class: "hash"}), "."), box,
            element("p", {class: "quiet small"}, unseen ? "The gray stripe is the minimum detectable change, \u00b1" + text.percent(series.smallest, 2) + " about the median of the commits under it, those since the last change: smaller steps are not told from noise."
                : series.smallest === null ? "The minimum detectable change is not known: too few commits are measured." : ""));
        kernelwatch.point_out(box, svg, points.map((point) => ({...point, series})), (point) => scale_x(point.x), (point) => scale_y.apply(point.value / scale), (point) => [
            element("div", {}, element("b", {}, values.say(point.value, unit))),
            element("div", {}, element("span", {class: "hash"}, text.hash(commits[point.at].hash)), " " + text.date(commits[point.at].date)),
            element("div", {class: "subject"}, commits[point.at].subject)], (point) => kernelwatch.go("commit", {hash: text.hash(commits[point.at].hash)}));
    }

    // What was measured and what changed at a commit, for each machine.
    kernelwatch.values.measured = async function (main, at, common) {
        const {site, commits, events} = common, {hash} = commits[at];
        for (const machine of site.machines) {
            const own = events.events.flatMap((event) => event.changes.filter((change) => change.to === hash && change.place.machine === machine.name).map((change) => ({event, change})));
            const failures = kernelwatch.failures(events, machine.name, hash);
            main.append(element("section", {"data-machine": machine.name}, element("h2", {}, machine.name),
                own.length ? element("ul", {class: "happened"}, own.map(({event, change}) => {
                    const series = values.of(events.series, change);
                    return element("li", {"data-kind": event.kind, "data-change": change.size, "data-state": change.state}, element("b", {class: kernelwatch.tone(event.kind, change)}, kernelwatch.arrow(change.size) + " " + kernelwatch.size(change)),
                        ", " + [event.kind, kernelwatch.words(change), kernelwatch.reason(change)].filter(Boolean).join(", ") + ": ", series && series.file ? values.link(series) : values.name(change));
                })) : element("p", {}, "No change was found at this commit."),
                failures.length ? [element("h3", {}, "Failed benchmarks"), kernelwatch.failures_table(failures)] : ""));
        }
    };
}
