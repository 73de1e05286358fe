"use strict";
kernelwatch.view("status", "Status", async function (main) { main.append(kernelwatch.element("h1", {}, "Status")); });
