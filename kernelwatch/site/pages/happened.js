// What happened between commits: events and changed conditions, as labels above a history and as a list below it.
"use strict";

{
    const {element, text, link} = kernelwatch;
    const happenings = (kernelwatch.happenings = {});

    // Rows for labels beside their lines, 0 next to the picture: no line crosses the label of another. `labels`: [{px, width,
    // flipped}], by px; a flipped one stands left of its line. Returns how many rows there are.
    happenings.rows_of = function (labels) {
        for (let index = labels.length - 1; index >= 0; index--) {
            const own = labels[index];
            const crossed = labels.slice(index + 1).filter((other) => (other.flipped ? other.px - other.width : other.px) < own.px + (own.flipped ? 0 : own.width) + 8);
            own.row = crossed.length ? 1 + d3.max(crossed, (other) => other.row) : 0;
        }
        return labels.length ? 1 + d3.max(labels, (label) => label.row) : 0;
    };

    happenings.width_of = (words) => 6.6 * words.length + 4;

    // The tests that a change passed, folded away; nothing of an exact figure, of which any difference is told.
    happenings.tests = function (change) {
        const say = {
            share: (value) => text.percent(value, 2),
            odds: (value) => "10^" + value.toFixed(1) + " to 1",
        };
        const lines = change.tests.map(({name, value, bound, unit}) => {
            const number = say[unit] || ((each) => text.exact(each, 3) + " " + unit);
            return element("div", {class: "quiet"}, name + ": " + number(value) + ", at least " + number(bound) + " needed");
        });
        return lines.length ? element("details", {class: "small"}, element("summary", {}, "why it was flagged"), lines) : null;
    };

    // What was found at these commits, in words.
    happenings.list = function (happened, common, said, one) {
        if (!happened.length) return element("p", {}, "No change was found between these commits, and the conditions stayed the same.");
        const commit = (at) => [link(text.hash(common.commits[at].hash), "commit", {hash: text.hash(common.commits[at].hash)}, {class: "hash"}), " " + text.date(common.commits[at].date) + ", ", element("span", {class: "subject"}, common.commits[at].subject)];
        return element("section", {}, element("h2", {}, "What happened"), element("ul", {class: "happened"}, [...happened].reverse().map((mark) => {
            if (mark.kind === "turn") {
                return element("li", {"data-kind": "turn", "data-at": mark.at}, element("b", {}, "\u25c6 Conditions of " + kernelwatch.group_name(mark.group) + " changed: "), mark.why.join(", "), ". Since ", commit(mark.at),
                    mark.joined ? ". Figures of full runs stop there; links go on." : ". Figures on its two sides are not compared.");
            }
            const {event, change, series} = mark;
            const sign = kernelwatch.arrow(change.size), how = said(series), reason = kernelwatch.reason(change);
            const interval = kernelwatch.interval(change), {verdict} = change;
            const turns = !verdict || verdict.change === null ? "" : verdict.word === "confirmed" ? " in " + text.plural(verdict.turns, "turn")
                : ": " + text.change(verdict.change, 2) + " (" + kernelwatch.interval({interval: [verdict.low, verdict.high]}) + ") in " + text.plural(verdict.turns, "turn");
            return element("li", {"data-kind": mark.kind, "data-at": mark.at, "data-change": change.size, "data-id": change.id, "data-state": change.state},
                element("b", {class: kernelwatch.tone(event.kind, change)}, (mark.kind === "environment" ? "\u25c7 " : sign + " ") + (change.size < 0 ? "faster" : "slower") + ", time " + kernelwatch.size(change)), (interval ? " (" + interval + ")" : "") + ", " + (mark.kind === "environment" ? "" : mark.kind + ", "),
                element("b", {}, kernelwatch.words(change)), (verdict && verdict.word !== change.state ? "; " + verdict.word : "") + turns + ". ", reason ? reason + ". " : "", element("span", {class: "quiet"}, (one ? "" : series.key + ": ") + how.say(change.before) + " \u2192 " + how.say(change.after) + ". "),
                kernelwatch.exact.told(mark.causes, common.site),
                event.why ? event.why[0].toUpperCase() + event.why.slice(1) + ". " : "", event.gradual ? "Many small changes since " + text.hash(event.first.hash) + ". " : event.commits > 1 && mark.kind !== "environment" ? text.plural(event.commits - 1, "commit") + " before it " + (event.commits > 2 ? "were" : "was") + " not measured and may be the cause. " : "",
                change.limits.length ? "Limits met: " + change.limits.join(", ") + ". " : "", "At ", commit(mark.at), ". ", kernelwatch.event.link("The event\u2019s page", change.id), ".");
        })), element("p", {class: "small"}, link("All events", "regressions")));
    };
}
