// The frame of the pages: elements, addresses, navigation.
//
// The scripts are classic ones that share the object `kernelwatch`, since browsers load no modules from file://.
// A view is a function (main, parameters) that fills the element `main`; it may be asynchronous. Its address is
// index.html#/<view>?<parameters>, so that whatever a reader sees can be sent to a colleague.
"use strict";

const kernelwatch = {
    // The views, in the order of the navigation: the label there ("" for one that is reached from others only), and the
    // scripts that draw it and that not every page loads.
    views: new Map(Object.entries({
        status: {label: "Status", scripts: []},
        ladder: {label: "Ladders", scripts: ["ladders", "roofline", "ladder"]},
        history: {label: "History", scripts: ["choosing", "history"]},
        rung: {label: "", scripts: ["ladders", "roofline", "rung"]},
        regressions: {label: "Regressions", scripts: ["regressions"]},
        commit: {label: "", scripts: ["regressions", "commit"]},
        event: {label: "", scripts: ["regressions", "commit"]},
        roofline: {label: "Roofline", scripts: ["ladders", "roofline"]},
        devices: {label: "Devices", scripts: ["ladders", "roofline", "compare", "devices"]},
        search: {label: "", scripts: []},
    })),
};

// An element. `properties`: attributes, or functions for events ("onclick"); null and false leave an attribute out.
// Children are elements or texts, never HTML: the names in the data may come from strangers.
kernelwatch.element = function (tag, properties = {}, ...children) {
    const found = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
        if (typeof value === "function") found.addEventListener(name.slice(2), value);
        else if (value !== null && value !== undefined && value !== false) found.setAttribute(name, value === true ? "" : value);
    }
    found.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
    return found;
};

// Register what draws a view. A project may have no such view.
kernelwatch.view = function (name, render) {
    if (kernelwatch.views.has(name)) kernelwatch.views.get(name).render = render;
};

const scripts = new Map();  // by name, what waits for it

// Load scripts of pages/, one after the other, each once.
kernelwatch.scripts = async function (names) {
    for (const name of names) {
        if (!scripts.has(name)) {
            scripts.set(name, new Promise((resolve, reject) => {
                const script = kernelwatch.element("script", {src: "pages/" + name + ".js"});
                script.onload = resolve;
                script.onerror = () => {
                    scripts.delete(name);
                    reject(new Error("the file pages/" + name + ".js cannot be read"));
                };
                document.head.append(script);
            }));
        }
        await scripts.get(name);
    }
};

// The address of a view. Parameters that are "", null or undefined are left out; a list is one parameter, repeated.
kernelwatch.address = function (view, parameters = {}) {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(parameters)) {
        for (const each of Array.isArray(value) ? value : [value]) {
            if (each !== "" && each !== null && each !== undefined) query.append(name, each);
        }
    }
    const text = query.toString();
    return "#/" + view + (text ? "?" + text : "");
};

kernelwatch.link = function (text, view, parameters, properties = {}) {
    return kernelwatch.element("a", {href: kernelwatch.address(view, parameters), ...properties}, text);
};

// Go to a view; `replace` leaves no trace for the back button.
kernelwatch.go = function (view, parameters, replace = false) {
    const address = kernelwatch.address(view, parameters);
    if (replace) {
        history.replaceState(null, "", address);
        kernelwatch.render();
    } else {
        location.hash = address;
    }
};

// The view and its parameters (URLSearchParams) that the address names.
kernelwatch.place = function () {
    const [view, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
    return {view: view || "status", parameters: new URLSearchParams(query || "")};
};

// A labeled choice among texts, or [value, text] pairs.
kernelwatch.choice = function (label, options, value, onchange) {
    const select = kernelwatch.element("select", {onchange: () => onchange(select.value)},
        options.map((option) => {
            const [own, text] = Array.isArray(option) ? option : [option, option];
            return kernelwatch.element("option", {value: own, selected: String(own) === String(value)}, String(text));
        }));
    return kernelwatch.element("label", {}, label + " ", select);
};

// A table. `columns`: {name, number: true for right-aligned, title}; `rows`: lists of cells, each a text or an element.
kernelwatch.table = function (columns, rows, properties = {}) {
    const {element} = kernelwatch;
    const style = (column) => (column.number ? {class: "number"} : {});
    return element("div", {class: "wide", tabindex: 0, role: "region", "aria-label": properties["aria-label"] || "Table"},
        element("table", properties,
            element("thead", {}, element("tr", {}, columns.map((column) =>
                element("th", {scope: "col", title: column.title, ...style(column)}, column.name)))),
            element("tbody", {}, rows.map((row) =>
                element("tr", {}, row.map((cell, at) => element("td", style(columns[at]), cell)))))));
};

// A button that copies a text; where a browser refuses (some pages that were opened from a file), the text to copy by hand.
kernelwatch.copy = function (label, words) {
    const button = kernelwatch.element("button", {class: "small", type: "button", onclick: async () => {
        try {
            await navigator.clipboard.writeText(words);
            button.textContent = "Copied";
        } catch (error) {
            const area = kernelwatch.element("textarea", {rows: Math.min(8, words.split("\n").length), cols: 60, readonly: true, "aria-label": label}, words);
            button.replaceWith(area);
            area.select();
        }
    }}, label);
    return button;
};

let turn = 0;  // of rendering: a view that is overtaken by the next one shows nothing

// Show what the address names. The attribute data-shown of <main> tells when all of it is there.
kernelwatch.render = async function () {
    const own = ++turn;
    const {view, parameters} = kernelwatch.place();
    const main = document.getElementById("main");
    const fresh = kernelwatch.element("div", {class: "view " + view});
    delete main.dataset.shown;
    for (const link of document.querySelectorAll("#nav a:not(.project)")) {
        const current = link.getAttribute("href").replace(/\?.*/, "") === "#/" + view;
        if (current) link.setAttribute("aria-current", "page");
        else link.removeAttribute("aria-current");
    }
    const known = kernelwatch.views.get(view);
    try {
        if (!known) throw new Error("there is no page " + view);
        const {paddingLeft, paddingRight} = getComputedStyle(main);
        fresh.style.width = main.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight) + "px";  // plots fit in it before they are shown
        await kernelwatch.scripts(known.scripts);
        await known.render(fresh, parameters);
    } catch (error) {
        fresh.replaceChildren(kernelwatch.element("h1", {}, "This page cannot be shown"),
            kernelwatch.element("p", {class: "error"}, error.message),
            kernelwatch.element("p", {}, kernelwatch.link("To the status page", "status")));
        if (known) console.error(error);
    }
    if (own !== turn) return;
    fresh.style.width = "";
    main.replaceChildren(fresh);
    main.dataset.shown = view;
    const heading = fresh.querySelector("h1");
    document.title = (heading ? heading.textContent + " \u2013 " : "") + kernelwatch.project;
};
