// Plots: the house style on top of Observable Plot. Colors are those of Okabe and Ito, which color-blind readers can
// tell apart, and no color is the only sign of anything.
"use strict";

kernelwatch.colors = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#b8a800"];
kernelwatch.symbols = ["circle", "square", "triangle", "diamond", "star", "cross", "wye", "plus"];

// Say what a drawing by Plot shows: readers who do not see it hear one sentence, not its parts. Its groups of marks keep
// their names (the option ariaDescription of a mark) as data-mark.
kernelwatch.describe = function (drawn, alt) {
    drawn.setAttribute("role", "img");
    drawn.setAttribute("aria-label", alt);
    for (const group of drawn.querySelectorAll("g[aria-label]")) {
        group.dataset.mark = group.getAttribute("aria-description") || group.getAttribute("aria-label");
        group.removeAttribute("aria-description");
        group.removeAttribute("aria-label");
    }
    return drawn;
};

// A plot as a figure with a caption, as wide as `into` allows. `options`: those of Plot.plot; `alt`: what it shows, for
// readers who do not see it.
kernelwatch.plot = function (into, options, alt, caption) {
    const width = Math.max(300, Math.min(into.clientWidth || parseFloat(into.style.width) || 960, 1280));
    const drawn = Plot.plot({
        width,
        style: {background: "transparent", color: "currentColor", fontFamily: "inherit", fontSize: "12px", overflow: "visible"},
        ...options,
    });
    return kernelwatch.element("figure", {class: "plot"}, kernelwatch.describe(drawn, alt),
        caption ? kernelwatch.element("figcaption", {}, caption) : null);
};

// A small line of a trend, [[x, y, stretch], ...], without axes; points of two stretches are not joined. `alt`: what it
// shows.
kernelwatch.sparkline = function (points, alt, width = 140, height = 28) {
    const drawn = Plot.plot({
        width, height, margin: 3, axis: null,
        x: {axis: null}, y: {axis: null, domain: kernelwatch.domain(points.map((point) => point[1]), 0.02)},
        marks: [
            Plot.lineY(points, {x: (point) => point[0], y: (point) => point[1], z: (point) => point[2] || 0, stroke: "var(--line)", strokeWidth: 1.5}),
            Plot.dot(points.slice(-1), {x: (point) => point[0], y: (point) => point[1], fill: "var(--accent)", r: 2.5}),
        ],
        style: {background: "transparent", color: "currentColor"},
    });
    drawn.classList.add("sparkline");
    return kernelwatch.describe(drawn, alt);
};

// The range of values, at least `least` of their middle wide, so that noise does not fill a plot.
kernelwatch.domain = function (values, least) {
    const [low, high] = d3.extent(values);
    const half = Math.max((high - low) / 2, (least * Math.abs(low + high)) / 4) * 1.1;
    return [(low + high) / 2 - half, (low + high) / 2 + half];
};

// Put data- attributes on the marks of a plot, so that what is drawn can be read back. `selector`: the marks, in the
// order of `data` as Plot draws them; `attributes`: a function from a datum to {name: value}.
kernelwatch.marked = function (drawn, selector, data, attributes) {
    for (const mark of drawn.querySelectorAll(selector)) {
        const datum = data[mark.__data__];
        for (const [name, value] of Object.entries(datum ? attributes(datum) : {})) {
            if (value !== null && value !== undefined) mark.dataset[name] = value;
        }
    }
    return drawn;
};

// The sign of a change, which says its direction without a color.
kernelwatch.arrow = (change) => (change === null || change > 0 ? "\u25b2" : "\u25bc");
