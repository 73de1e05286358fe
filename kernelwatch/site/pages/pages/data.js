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
}
