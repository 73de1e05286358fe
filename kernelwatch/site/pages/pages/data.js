// The data files (docs/data.md), and questions that several pages ask of them.
"use strict";

{
    const loaded = new Map();

    // A data file, by its name without ".json". It is loaded as a script, which browsers allow from file:// as well.
    kernelwatch.load = function (name) {
        if (!loaded.has(name)) {
            loaded.set(name, new Promise((resolve, reject) => {
                const script = document.createElement("script");
                script.onload = () => resolve(JSON.parse(script.json));
                script.onerror = () => {
                    loaded.delete(name);
                    reject(new Error("the file data/" + name + ".json.js cannot be read"));
                };
                script.src = "data/" + name.split("/").map(encodeURIComponent).join("/") + ".json.js";
                document.head.append(script);
                script.remove();
            }));
        }
        return loaded.get(name);
    };

    // What most pages need: {site, commits, cells, events}.
    kernelwatch.common = async function () {
        const [site, commits, cells, events] = await Promise.all(["site", "commits", "cells", "events"].map(kernelwatch.load));
        return {site, commits, cells, events};
    };

    // The machine that the address names, by default the one with the newest commit: {summary, details, load}.
    kernelwatch.machine = async function (name) {
        const {machines} = await kernelwatch.load("site");
        if (!machines.length) throw new Error("nothing is recorded yet: measure a commit (the command bench), then publish");
        const summary = name ? machines.find((machine) => machine.name === name) : machines[0];
        if (!summary) throw new Error("there is no machine " + name + "; there are " + machines.map((each) => each.name).join(", "));
        const load = (file) => kernelwatch.load(summary.folder + "/" + file);
        return {summary, details: await load("machine"), load};
    };

    // A machine's device in words: the GPU if it has one.
    kernelwatch.device_name = (machine) => machine.gpu || machine.cpu || machine.name;

    // The work of a cell: operations if it computes, else the compulsory bytes; null if it is not known.
    kernelwatch.work = (cell) => cell.flops || cell.bytes;

    // Operations or bytes per second of a cell that takes so many seconds.
    kernelwatch.rate = (cell, seconds) => (kernelwatch.work(cell) && seconds ? kernelwatch.work(cell) / seconds : null);

    // The key of a cell.
    kernelwatch.key = (op, rung, type, shape, cache) => op + "/" + rung + " " + type + " " + shape + " " + cache;

    // The op whose suite has this name ("VectorAdd", "VectorAddMix"), "" if there is none. It needs data/site.
    kernelwatch.op_of_suite = function (suite) {
        const plain = suite.replace(/Mix$/, "").toLowerCase();
        return kernelwatch.ops.find((op) => op.replaceAll("_", "") === plain) || "";
    };

    // The value of an exact figure at a commit: [commit since which it holds, value], or null. `run`: [[commit, value], ...].
    kernelwatch.value_at = function (run, commit) {
        let found = null;
        for (const entry of run || []) if (entry[0] <= commit) found = entry;
        return found;
    };

    // The commit of a machine that an address names, by its position or by the beginning of its hash; the newest one by
    // default.
    kernelwatch.commit_at = function (machine, commits, name) {
        const known = machine.details.commits;
        if (!name) return known[known.length - 1];
        const found = known.find((at) => String(at) === name) ?? known.find((at) => commits[at].hash.startsWith(name));
        if (found === undefined) throw new Error("the commit " + name + " was not measured on " + machine.summary.name);
        return found;
    };

    // A choice among a machine's commits, the newest one first. `none`: the text of an entry for no commit, if there is one.
    kernelwatch.commit_choice = function (label, machine, commits, value, onchange, none) {
        const options = machine.details.commits.toReversed().map((at) => {
            const {hash, date, subject} = commits[at];
            return [at, kernelwatch.text.hash(hash) + " " + kernelwatch.text.date(date) + " " + subject];
        });
        return kernelwatch.choice(label, none ? [["", none], ...options] : options, value ?? "", onchange);
    };

    // A link to a commit: its hash, date and subject.
    kernelwatch.commit_link = function (at, commits) {
        const {hash, date, subject} = commits[at];
        return kernelwatch.element("span", {},
            kernelwatch.link(kernelwatch.text.hash(hash), "commit", {at}, {class: "hash"}),
            " (" + kernelwatch.text.date(date) + ", " + subject + ")");
    };

    // The source of a rung at a commit: a link if the repository's host is known, else its path. `words`: less than the path.
    kernelwatch.source_link = function (site, commit, path, words = path) {
        const {element} = kernelwatch;
        return element("code", {title: path}, site.source_url ? element("a", {href: site.source_url + commit.hash + "/" + path}, words) : words);
    };
}
