// Status: is the newest commit all right? One card for each machine; nothing is joined across machines.
"use strict";

{
    const {element, link, text} = kernelwatch;

    const SHOWN = 6;  // open regressions
    const LINES = 6;  // on no configured branch
    const FEW = 4;  // machines whose cards are seen at a glance

    // The regressions of a machine with a change that `is_wanted`, the largest change of time first, those of exact
    // figures last. `branch`: by default any that is configured.
    function regressions_of(events, machine, branch, is_wanted) {
        const size = (event) => (kernelwatch.largest(event, machine).exact ? 0 : Math.abs(kernelwatch.largest(event, machine).size));
        return events.events.filter((event) => event.kind === "regression" && (branch === undefined ? event.configured : event.branch === branch) &&
            event.changes.some((change) => kernelwatch.is_of(change.place, machine) && is_wanted(change))).sort((a, b) => size(b) - size(a));
    }

    const open = (events, machine, branch) => regressions_of(events, machine, branch, (change) => change.open);

    // Those that are accepted and not open.
    const accepted = (events, machine, branch) => regressions_of(events, machine, branch, (change) => change.state === "accepted")
        .filter((event) => !event.changes.some((change) => kernelwatch.is_of(change.place, machine) && change.open));

    const is_timed = (machine) => Object.values(machine.trend).some((points) => points.length);

    // What speaks against green, as [class, words]; null if nothing does. `cells`: how many failed at the newest commit.
    // `noun`: of what fails as a whole. `launches`: those that fail as links tell.
    function against(cells, suites, regressions, noun, launches = []) {
        const failed = [suites.length ? text.plural(suites.length, noun) : "", cells ? text.plural(cells, "cell") : ""].filter(Boolean).join(" and ");
        const told = [failed ? failed + " failed at the newest measured commit" : "",
            launches.length ? (kernelwatch.described ? text.plural(launches.length, "launch fails", "launches fail") : text.plural(launches.length, "benchmark fails", "benchmarks fail")) + " since " + [...new Set(launches.map((each) => text.hash(each.hash)))].slice(0, 3).join(", ") : ""].filter(Boolean);
        if (told.length) return ["bad", told.join("; ") + (regressions.length ? "; " + text.plural(regressions.length, "regression") + " open" : "") + "."];
        if (!regressions.length) return null;
        const sure = regressions.filter((event) => event.state === "confirmed").length;
        return ["bad", text.plural(regressions.length, "regression") + " open" + (noun === "suite" ? ", " + sure + " of them confirmed." : ".")];
    }

    // What fails as a whole: a suite, or a benchmark of a project without a description.
    const noun_of = (site) => (site.described ? "suite" : "benchmark");

    // What is judged, as [class, words]; null if all series are.
    function partly({series, judged}, hash) {
        if (!series) return ["warn", "No judged series has a figure: nothing is judged."];
        if (!judged) return ["warn", "Nothing is judged at " + text.hash(hash) + ": none of " + text.plural(series, "series", "series") + " could show a regression there."];
        return judged < series ? ["warn", "No open regression in " + judged + " of " + text.plural(series, "series", "series") + "; the others are not judged at " + text.hash(hash) + "."] : null;
    }

    // The launches that fail as links tell, unless a full run came later: `newest` is the position of its commit.
    const failing = (reach, newest = -1) => (reach ? reach.failed.filter((each) => each.at > newest) : []);

    const failing_list = (launches) => (launches.length ? element("ul", {class: "small"}, launches.map((each) => element("li", {"data-failed": each.cell},
        element("b", {}, each.cell), " since ", link(text.hash(each.hash), "commit", {hash: text.hash(each.hash)}, {class: "hash"}), ": " + each.why))) : null);

    // What the links say if no regression is open, as [class, words].
    function linked(reach) {
        const gaps = kernelwatch.links.gaps(reach, true), range = text.hash(reach.first) + " to " + text.hash(reach.newest);
        if (gaps.length) return ["warn", "No open regression among the " + (kernelwatch.described ? "launches" : "benchmarks") + " that were linked from " + range + "; " + gaps.join("; ") + "."];
        const words = "No open regression: every " + (kernelwatch.described ? "launch that changed" : "benchmark") + " from " + range + " was measured against the one before it";
        return kernelwatch.beside ? ["warn", words + "; links do not measure benchmarks of asv\u2019s own."] : ["good", words + "."];
    }

    // The verdict in words, and its class.
    function verdict(machine, all, commit) {
        const reach = kernelwatch.links.reach(all.events, machine.name);
        const bad = against(machine.failed.length, kernelwatch.failures(all.events, machine.name, commit.hash), open(all.events, machine.name), noun_of(all.site), failing(reach, machine.newest));
        if (bad) return bad;
        const by_links = reach ? linked(reach) : null;
        if (by_links && (by_links[0] === "good" || machine.commits < 2)) return by_links;
        const [kind, words] = by_full_runs(machine, all, commit);
        return by_links && kind === "warn" ? [kind, by_links[1] + " Full runs: " + words[0].toLowerCase() + words.slice(1)] : [kind, words];
    }

    // What the full runs say if no regression is open, as [class, words].
    function by_full_runs(machine, all, commit) {
        if (machine.commits < 2) return ["warn", "One commit is measured: there is nothing to compare it with yet."];
        const known = kernelwatch.evidence(all.events, machine.name), some = partly(known, commit.hash), fine = accepted(all.events, machine.name).length;
        if (some) return some;
        if (machine.behind) return ["warn", "No open regression up to " + text.hash(commit.hash) + "; " + text.plural(machine.behind, "commit") + " after it " + (machine.behind === 1 ? "is" : "are") + " not measured."];
        if (all.site.described && !is_timed(machine)) return ["good", "No open regression in the exact figures of the newest commit; no time is recorded."];
        return ["good", "No open regression: the newest commit is measured, and none of " + text.plural(known.series, "series", "series") + " is worse than before" + (fine ? ", but for " + text.plural(fine, "accepted regression") : "") + "."];
    }

    const verdict_line = ([kind, words]) => element("p", {class: "verdict-line " + kind}, element("span", {"aria-hidden": "true", class: "sign"}, SIGNS[kind]), " " + words);

    // The suites that failed, each with its reason.
    const failures_list = (failures) => (failures.length ? element("ul", {class: "small"}, failures.map((told) => element("li", {"data-suite": told.suite},
        element("b", {}, told.suite), ": " + told.reason, told.log ? [" (", element("code", {}, told.log), ")"] : ""))) : null);

    // A regression, with its largest change on a machine and its state.
    function regression_item(event, machine) {
        const change = kernelwatch.largest(event, machine), words = kernelwatch.words(event), reason = kernelwatch.reason(event, true);
        return element("li", {"data-event": event.id, "data-state": event.state, "data-size": change.size}, link(event.last.subject, "event", {id: event.id}), " ",
            (change.exact ? kernelwatch.figure_name(change.benchmark) + " " : "") + kernelwatch.size(change), words ? ", " + words : "", reason ? element("span", {class: "quiet"}, " (" + reason + ")") : "");
    }

    const items = (regressions, machine) => [...regressions.slice(0, SHOWN).map((event) => regression_item(event, machine)),
        regressions.length > SHOWN ? element("li", {}, link("all " + regressions.length, "regressions", {machine})) : ""].filter(Boolean);

    // The open regressions, and below them those that are accepted.
    function regressions_list(events, machine, branch) {
        const bad = open(events, machine, branch), fine = accepted(events, machine, branch);
        return [bad.length ? element("ul", {class: "small"}, items(bad, machine)) : "",
            fine.length ? element("div", {class: "accepted small"}, element("span", {class: "quiet"}, text.plural(fine.length, "regression") + " accepted:"), element("ul", {}, items(fine, machine))) : ""];
    }

    // How many series are judged, and why the others are not.
    function judged_words(known) {
        if (!known.series) return "none";
        return known.judged + " of " + text.plural(known.series, "series", "series") + (known.unjudged.length ? "; not judged: " + kernelwatch.unjudged_words(known) : "");
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
        const failures = kernelwatch.failures(all.events, machine.name, commit.hash);
        const alike = all.site.machines.filter((other) => kernelwatch.device_name(other) === kernelwatch.device_name(machine)).length > 1;
        const limited = machine.limited.length, reach = kernelwatch.links.reach(all.events, machine.name);
        return element("article", {class: "card machine", "data-machine": machine.name},
            element("h2", {}, all.site.described ? link(kernelwatch.device_name(machine), "devices", {machine: machine.name}) : machine.name),
            alike && all.site.described ? element("p", {class: "quiet small"}, machine.name) : null,
            verdict_line(verdict(machine, all, commit)),
            failures_list(failures),
            failing_list(failing(reach, machine.newest)),
            regressions_list(all.events, machine.name),
            element("div", {class: "columns"}, element("dl", {},
                element("dt", {}, "newest measured commit"),
                element("dd", {}, link(text.hash(commit.hash), "commit", {hash: text.hash(commit.hash)}, {class: "hash"}), " " + commit.subject, element("br"),
                    element("span", {class: "quiet small"}, text.date(commit.date) + ", " + text.age(commit.date, now) + "; " +
                        (machine.behind ? text.plural(machine.behind, "commit") + " behind " + all.site.branch : "the newest of " + all.site.branch))),
                element("dt", {}, "recorded"),
                element("dd", {}, text.plural(machine.commits, "commit") + (all.site.described ? "; " + text.plural(machine.cells, "timed cell") + " at the newest, " + machine.failed.length + " failed, " +
                    limited + " under a clock or power limit" : failures.length ? "" : "; no benchmark failed at the newest") + (failures.length ? "; " + text.plural(failures.length, noun_of(all.site)) + " failed" + (all.site.described ? " as a whole" : "") : "")),
                reach ? [element("dt", {}, "linked"), element("dd", {"data-links": reach.links}, kernelwatch.links.listed(reach))] : null,
                element("dt", {}, reach ? "judged by full runs" : "judged"),
                element("dd", {}, judged_words(kernelwatch.evidence(all.events, machine.name))),
                machine.driver ? [element("dt", {}, "driver"), element("dd", {}, machine.driver)] : null,
                machine.gpu && machine.cpu ? [element("dt", {}, "host"), element("dd", {}, machine.cpu)] : null),
            element("div", {}, reach ? kernelwatch.links.compared(reach, machine) : null,
                is_timed(machine) && !(reach && Object.values(machine.trend).every((points) => points.length < 2)) ? trends(machine, all.site) : null)));
    }

    // A machine that has links and no full run.
    function linked_card(reach, all) {
        const regressions = open(all.events, reach.machine);
        return element("article", {class: "card machine", "data-machine": reach.machine},
            element("h2", {}, link(reach.machine, "devices", {machine: reach.machine})), element("p", {class: "quiet small"}, kernelwatch.links.ALONE),
            verdict_line(against(0, [], regressions, noun_of(all.site), failing(reach)) || linked(reach)), failing_list(failing(reach)), regressions_list(all.events, reach.machine),
            element("dl", {}, element("dt", {}, "linked"), element("dd", {"data-links": reach.links}, kernelwatch.links.listed(reach))), kernelwatch.links.compared(reach));
    }

    // A machine on which only asv's own benchmarks were measured, beside a description.
    function beside_card({machine, branch, newest}, all) {
        const regressions = open(all.events, machine, branch), failures = kernelwatch.failures(all.events, machine, newest), known = kernelwatch.evidence(all.events, machine, branch);
        return element("article", {class: "card machine", "data-machine": machine}, element("h2", {}, machine), element("p", {class: "quiet small"}, "No kernel is measured there, only benchmarks of asv\u2019s own."),
            verdict_line(against(0, failures, regressions, noun_of(all.site)) || partly(known, newest) || ["good", "No open regression up to " + text.hash(newest) + "."]), failures_list(failures), regressions_list(all.events, machine, branch),
            element("dl", {}, element("dt", {}, "judged"), element("dd", {}, judged_words(known))));
    }

    // A line of measured commits that lies on no configured branch, on one machine.
    function stray(line, machine, all, now) {
        const {branch} = all.site, known = kernelwatch.evidence(all.events, machine, line.name);
        const regressions = open(all.events, machine, line.name), failures = kernelwatch.failures(all.events, machine, line.tip.hash);
        const newest = all.events.evidence.find((each) => each.machine === machine && each.branch === line.name).newest;
        const found = against(0, failures, regressions, noun_of(all.site)) || partly(known, newest) || ["good", "No open regression up to " + text.hash(newest) + "."];
        return element("article", {class: "card line", "data-line": line.name, "data-machine": machine},
            element("h3", {}, line.name, element("span", {class: "verdict"}, "not on a configured branch")),
            element("p", {class: "quiet small"}, machine),
            verdict_line(found), failures_list(failures), regressions_list(all.events, machine, line.name),
            element("dl", {}, element("dt", {}, "newest measured commit"),
                element("dd", {}, element("span", {class: "hash"}, text.hash(line.tip.hash)), " " + line.tip.subject, element("br"), element("span", {class: "quiet small"}, text.date(line.tip.date) + ", " + text.age(line.tip.date, now))),
                element("dt", {}, "judged along its own first parents"), element("dd", {}, judged_words(known)),
                element("dt", {}, "apart from " + branch), element("dd", {}, text.plural(line.commits.length, "measured commit") + (line.fork ? " after " + text.hash(line.fork.hash) + " (" + line.fork.subject + ")" : ""))));
    }

    // A line of commits off the configured branches that was linked and has no full run, on one machine.
    function linked_line(line, reach, all) {
        const regressions = open(all.events, reach.machine, line.name);
        return element("article", {class: "card line", "data-line": line.name, "data-machine": reach.machine},
            element("h3", {}, line.name, element("span", {class: "verdict"}, "not on a configured branch")), element("p", {class: "quiet small"}, reach.machine),
            verdict_line(against(0, [], regressions, noun_of(all.site), failing(reach)) || linked(reach)), failing_list(failing(reach)), regressions_list(all.events, reach.machine, line.name),
            element("dl", {}, element("dt", {}, "linked"), element("dd", {"data-links": reach.links}, kernelwatch.links.listed(reach))), kernelwatch.links.compared(reach));
    }

    // Measured commits on no configured branch: those that are not merged in full, the others as a number.
    function strays(all, now) {
        const own = all.events.lines.filter((line) => !line.configured), open_lines = own.filter((line) => !line.merged).sort((a, b) => b.tip.date - a.tip.date);
        if (!own.length && !all.events.unknown.length) return [];
        const cards = open_lines.flatMap((line) => {
            const known = all.events.evidence.filter((each) => each.branch === line.name);
            const reaches = all.events.links.filter((each) => each.branch === line.name && !known.some(({machine}) => kernelwatch.is_of(each, machine)));
            return [...known.map((each) => stray(line, each.machine, all, now)), ...reaches.map((reach) => linked_line(line, reach, all))];
        });
        const merged = own.length - open_lines.length, unknown = all.events.unknown.length;
        return [element("h2", {}, "On no configured branch"),
            element("p", {class: "quiet small"}, "Measured commits that “branches” in asv.conf.json does not reach, judged along their own first parents.",
                merged ? " " + text.plural(merged, "line") + " of such commits " + (merged === 1 ? "was" : "were") + " merged since; the Regressions page has what was found there." : "",
                unknown ? " " + text.plural(unknown, "measured commit") + " " + (unknown === 1 ? "is" : "are") + " unknown to this repository (it is shallow, or its history was rewritten) and not judged: " + all.events.unknown.slice(0, 5).map(text.hash).join(", ") + (unknown > 5 ? ", ..." : "") + "." : ""),
            element("div", {class: "cards"}, cards.slice(0, LINES)),
            cards.length > LINES ? element("details", {}, element("summary", {}, "older: " + text.plural(cards.length - LINES, "line")), element("div", {class: "cards"}, cards.slice(LINES))) : ""];
    }

    // A line for each machine, those with bad news first.
    function overview(all) {
        const order = ["bad", "warn", "good"];
        const rows = all.site.machines.map((machine) => {
            const commit = all.site.newest[machine.newest], [kind, words] = verdict(machine, all, commit);
            return {machine, commit, kind, words};
        }).sort((a, b) => order.indexOf(a.kind) - order.indexOf(b.kind));
        return kernelwatch.table([{name: "machine"}, {name: "verdict"}, {name: "newest"}], rows.map(({machine, commit, kind, words}) => [
            [all.site.described ? link(kernelwatch.device_name(machine), "devices", {machine: machine.name}) : "", all.site.described ? element("br") : "", element("span", {class: "quiet small"}, machine.name)],
            element("span", {class: "verdict-line " + kind}, element("span", {"aria-hidden": "true", class: "sign"}, SIGNS[kind]), " " + words),
            element("span", {class: "whole"}, text.date(commit.date)),
        ]), {"aria-label": "All machines"});
    }

    // Measured commits that the repository of these pages lacks; null if it has them all.
    function lacking({site, events}) {
        const count = events.unknown.length;
        return count ? element("p", {class: "warn", "data-unknown": count}, "! " + text.plural(count, "measured commit") + " " + (count === 1 ? "is" : "are") + " not shown here and not judged: the repository from which these pages were made lacks " + (count === 1 ? "it" : "them") + ". ",
            site.shallow ? ["It is a shallow clone. Run ", element("code", {}, "git fetch --unshallow"), " in it and publish again."] : "Its history was rewritten, or a branch was not fetched.") : null;
    }

    kernelwatch.view("status", async function (main) {
        const [site, events] = await Promise.all(["site", "events"].map(kernelwatch.load)), all = {site, events};
        const {machines, published, branch, head} = all.site;
        const now = Date.parse(published);
        main.append(...[element("h1", {}, "Status"), kernelwatch.damaged(events), kernelwatch.unread(events), kernelwatch.retired(events), lacking(all)].filter(Boolean));
        const alone = kernelwatch.links.alone(site, events);
        const configured = new Set(events.lines.filter((line) => line.configured).map((line) => line.name));
        const beside = site.described ? events.evidence.filter((each) => configured.has(each.branch) && !machines.some(({name}) => kernelwatch.is_of(each, name))) : [];
        if (!machines.length && !alone.length && !beside.length) {
            main.append(element("p", {}, events.lines.length > events.lines.filter((line) => line.configured).length ? "No commit of the branch " + branch + " is measured."
                : "Nothing is recorded yet. Measure a commit (" + (site.described ? "the command bench" : "asv run") + "), then publish."), ...strays(all, now));
            return;
        }
        const newest = site.newest[head];
        main.append(element("p", {class: "quiet"}, "The branch " + branch + " is at ", element("span", {class: "hash"}, text.hash(newest.hash)),
            " (" + newest.subject + ", " + text.date(newest.date) + ")."),
        ...(machines.length > FEW ? [overview(all)] : []),
        element("div", {class: "cards"}, machines.map((machine) => card(machine, all, now)), alone.map((reach) => linked_card(reach, all)), beside.map((each) => beside_card(each, all))), ...strays(all, now));
    });
}
