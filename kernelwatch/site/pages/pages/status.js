// Status: is the newest commit all right? One card for each machine; nothing is joined across machines.
"use strict";

{
    const {element, link, text} = kernelwatch;

    const SHOWN = 6;  // open regressions
    const FEW = 4;  // machines whose cards are seen at a glance

    // The change that stands for an event: the largest of time if there is one. Changes of exact figures come last.
    const largest = (event) => event.changes.find((change) => !change.exact) || event.changes[0];

    // The regressions of a machine that were neither undone nor refuted, the largest change of time first.
    function open(events, machine) {
        const size = (event) => (largest(event).exact ? 0 : Math.abs(largest(event).change));
        return events.events.filter((event) => event.kind === "regression" && event.verdict !== "refuted" &&
            event.changes.some((change) => change.place.machine === machine.name && !change.undone)).sort((a, b) => size(b) - size(a));
    }

    const is_timed = (machine) => Object.values(machine.trend).some((points) => points.length);

    // The verdict in words, and its class.
    function verdict(machine, regressions, now, commit) {
        if (machine.failed.length) return ["bad", text.plural(machine.failed.length, "cell") + " failed at the newest measured commit."];
        if (regressions.length) {
            const sure = regressions.filter((event) => event.verdict === "confirmed").length;
            return ["bad", text.plural(regressions.length, "regression") + " open, " + sure + " of them confirmed."];
        }
        if (machine.commits < 2) return ["warn", "One commit is measured: there is nothing to compare it with yet."];
        if (machine.behind) return ["warn", "No open regression up to " + text.hash(commit.hash) + "; " + text.plural(machine.behind, "commit") + " after it " + (machine.behind === 1 ? "is" : "are") + " not measured."];
        if (!is_timed(machine)) return ["good", "No open regression in the exact figures of the newest commit; no time is recorded."];
        return ["good", "No open regression: the newest commit is measured and as fast as those before it."];
    }

    const SIGNS = {good: "\u2713", warn: "!", bad: "\u2717"};

    function trends(machine, site) {
        const rows = site.ops.flatMap((op) => ["gpu", "cpu"].map((device) => [op.name, device, machine.trend[op.name + " " + device]]))
            .filter(([, , points]) => points && points.length);
        return kernelwatch.table(
            [{name: "op"}, {name: "time of all cells", title: "geometric mean over the cells that neighboring commits have in common"},
                {name: "since the first", number: true, title: "the first commit that was measured under the newest conditions: this GPU or CPU, driver, packages and harness"}],
            rows.map(([op, device, points]) => [
                link(op + " " + device.toUpperCase(), "ladder", {op, device, machine: machine.name}),
                points.length > 1 ? kernelwatch.sparkline(points, op + " on the " + device.toUpperCase() + ": time at " + text.plural(points.length, "commit")) : machine.commits > 1 ? "one commit under the newest conditions" : "one commit",
                points.length > 1 ? text.change(points.at(-1)[1] / points[0][1] - 1) : "",
            ]), {"aria-label": "Trend of each op"});
    }

    function card(machine, all, now) {
        const commit = all.site.newest[machine.newest];
        const regressions = open(all.events, machine);
        const [kind, words] = verdict(machine, regressions, now, commit);
        const alike = all.site.machines.filter((other) => kernelwatch.device_name(other) === kernelwatch.device_name(machine)).length > 1;
        const limited = machine.limited.length;
        return element("article", {class: "card machine", "data-machine": machine.name},
            element("h2", {}, link(kernelwatch.device_name(machine), "devices", {machine: machine.name})),
            alike ? element("p", {class: "quiet small"}, machine.name) : null,
            element("p", {class: "verdict-line " + kind}, element("span", {"aria-hidden": "true", class: "sign"}, SIGNS[kind]), " " + words),
            regressions.length ? element("ul", {class: "small"}, regressions.slice(0, SHOWN).map((event) => element("li", {},
                link(event.last.subject, "regressions", {q: text.hash(event.last.hash)}), " ", (largest(event).exact ? kernelwatch.figure_name(largest(event).benchmark) + " " : "") + text.change(largest(event).change, 2), ", " + event.verdict)),
                regressions.length > SHOWN ? element("li", {}, link("all " + regressions.length, "regressions", {machine: machine.name})) : null) : null,
            element("div", {class: "columns"}, element("dl", {},
                element("dt", {}, "newest measured commit"),
                element("dd", {}, link(text.hash(commit.hash), "commit", {at: machine.newest}, {class: "hash"}), " " + commit.subject, element("br"),
                    element("span", {class: "quiet small"}, text.date(commit.date) + ", " + text.age(commit.date, now) + "; " +
                        (machine.behind ? text.plural(machine.behind, "commit") + " behind " + all.site.branch : "the newest of " + all.site.branch))),
                element("dt", {}, "recorded"),
                element("dd", {}, text.plural(machine.commits, "commit") + "; " + text.plural(machine.cells, "timed cell") + " at the newest, " + machine.failed.length + " failed, " +
                    limited + " under a clock or power limit"),
                machine.driver ? [element("dt", {}, "driver"), element("dd", {}, machine.driver)] : null,
                machine.gpu && machine.cpu ? [element("dt", {}, "host"), element("dd", {}, machine.cpu)] : null),
            is_timed(machine) ? element("div", {}, trends(machine, all.site)) : null));
    }

    // A line for each machine, those with bad news first.
    function overview(all, now) {
        const order = ["bad", "warn", "good"];
        const rows = all.site.machines.map((machine) => {
            const commit = all.site.newest[machine.newest], [kind, words] = verdict(machine, open(all.events, machine), now, commit);
            return {machine, commit, kind, words};
        }).sort((a, b) => order.indexOf(a.kind) - order.indexOf(b.kind));
        return kernelwatch.table([{name: "machine"}, {name: "verdict"}, {name: "newest"}], rows.map(({machine, commit, kind, words}) => [
            [link(kernelwatch.device_name(machine), "devices", {machine: machine.name}), element("br"), element("span", {class: "quiet small"}, machine.name)],
            element("span", {class: "verdict-line " + kind}, element("span", {"aria-hidden": "true", class: "sign"}, SIGNS[kind]), " " + words),
            element("span", {class: "whole"}, text.date(commit.date)),
        ]), {"aria-label": "All machines"});
    }

    kernelwatch.view("status", "Status", async function (main) {
        const [site, events] = await Promise.all(["site", "events"].map(kernelwatch.load)), all = {site, events};
        const {machines, published, branch, head} = all.site;
        const now = Date.parse(published);
        main.append(element("h1", {}, "Status"));
        if (!machines.length) {
            main.append(element("p", {}, "Nothing is recorded yet. Measure a commit (the command bench), then publish."));
            return;
        }
        const newest = site.newest[head];
        main.append(element("p", {class: "quiet"}, "The branch " + branch + " is at ", element("span", {class: "hash"}, text.hash(newest.hash)),
            " (" + newest.subject + ", " + text.date(newest.date) + ")."),
        ...(machines.length > FEW ? [overview(all, now)] : []),
        element("div", {class: "cards"}, machines.map((machine) => card(machine, all, now))));
    });
}
