// Which cell a history shows: what each part of a key can be, and the cell in which a reader who names none is interested.
"use strict";

{
    const PARTS = ["op", "rung", "type", "shape", "cache"];

    // What each part of a cell can be, given the parts before it, and the cell that is nearest to what is wanted.
    function nearest(cells, site, details, wanted) {
        let left = Object.values(cells).filter((cell) => cell.op + "/" + cell.rung in details.history);
        const options = {}, found = {};
        for (const part of PARTS) {
            const op = site.ops.find((each) => each.name === found.op);
            const values = [...new Set(left.map((cell) => cell[part]))];
            if (part === "rung" && op) {
                const order = [...op.order.gpu, ...op.order.cpu];
                values.sort((a, b) => order.indexOf(a) - order.indexOf(b));
            }
            const top = part === "rung" && op && op.rungs.filter((rung) => rung.plain && values.includes(rung.name) && !op.lines.includes(rung.name) && !Object.values(op.against).includes(rung.name))
                .sort((a, b) => values.indexOf(a.name) - values.indexOf(b.name)).findLast((rung, _, all) => rung.device === all[0].device);
            const usual = {shape: op && op.element_shape, cache: "cold", type: op && op.types[0], rung: top && top.name}[part];
            options[part] = values;
            found[part] = values.includes(wanted[part]) ? wanted[part] : values.includes(usual) ? usual : values[0];
            left = left.filter((cell) => cell[part] === found[part]);
        }
        return {options, found, key: left.length ? kernelwatch.key(...PARTS.map((part) => found[part])) : ""};
    }

    // The cell in which a reader who names none is likely interested: that of the newest event, with the largest change.
    function eventful(common, machine) {
        const found = kernelwatch.changes(common.events, common.commits, machine.summary.name).filter(({event, change, at}) => at !== undefined && change.cell in common.cells
            && event.kind !== "environment" && event.verdict !== "refuted");
        const newest = d3.max(found, ({at}) => at);
        const largest = d3.greatest(found.filter(({at}) => at === newest), ({change}) => Math.abs(change.change));
        return largest ? largest.change.cell : "";
    }

    // Short names that tell cells apart: the parts in which they differ.
    function short_names(keys, cells) {
        const differ = PARTS.filter((part) => new Set(keys.map((key) => cells[key][part])).size > 1);
        return keys.map((key) => differ.map((part) => cells[key][part]).join(" ") || cells[key].rung);
    }

    kernelwatch.choosing = {PARTS, nearest, eventful, short_names};
}
