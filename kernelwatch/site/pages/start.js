// Draw the frame, then the page that the address names, again whenever the address changes.
"use strict";

(async function () {
    const {element, text} = kernelwatch;
    let site;
    try {
        site = await kernelwatch.load("site");
    } catch (error) {
        document.getElementById("main").append(element("h1", {}, "Nothing to show"), element("p", {class: "error"}, error.message));
        return;
    }
    kernelwatch.project = site.project;
    kernelwatch.described = site.described;
    kernelwatch.beside = site.described && Object.values(site.figures).some(({judged}) => judged === "value");  // asv's own benchmarks, beside suites of the engine
    kernelwatch.ops = site.ops.map((op) => op.name);
    if (!site.described) for (const name of ["ladder", "roofline", "devices", "rung"]) kernelwatch.views.delete(name);
    const find = element("input", {type: "search", name: "q", placeholder: site.described ? "rung, cell, commit, series" : "benchmark, commit", "aria-label": "Search"});
    document.getElementById("nav").append(
        kernelwatch.link(site.project, "status", {}, {class: "project"}),
        ...[...kernelwatch.views].filter(([, view]) => view.label).map(([name, view]) => kernelwatch.link(view.label, name)),
        element("form", {role: "search", onsubmit: (event) => {
            event.preventDefault();
            kernelwatch.go("search", {q: find.value});
        }}, find));
    document.getElementById("footer").append(
        "Published " + site.published.replace("T", " ").replace("+00:00", " UTC") + " \u00b7 ",
        element("a", {href: "asv/index.html"}, "asv\u2019s grid and list"), " \u00b7 ",
        element("a", {href: "regressions.xml"}, "feed of regressions"),
        site.machines.length ? " \u00b7 " + text.plural(site.machines.length, "machine") : "");
    addEventListener("hashchange", () => {
        kernelwatch.render().then(() => document.getElementById("main").focus({preventScroll: true}));
        scrollTo(0, 0);
    });
    let width = innerWidth, waiting = 0;
    addEventListener("resize", () => {  // plots are drawn for a width
        clearTimeout(waiting);
        waiting = setTimeout(() => {
            if (innerWidth !== width) kernelwatch.render();
            width = innerWidth;
        }, 200);
    });
    await kernelwatch.render();
})();
