// Points of a picture that a pointer, a finger or the keyboard reaches: the nearest is described in a box and can be opened.
"use strict";

{
    const {element} = kernelwatch;

    // One handler for all points of a picture: the nearest is described in a box and can be opened.
    kernelwatch.point_out = function (box, svg, points, x, y, describe, open) {
        if (!points.length) return;
        const tip = element("div", {class: "tip", role: "status", hidden: true});
        box.append(tip);
        const ring = d3.select(svg).append("circle").attr("r", 7).attr("fill", "none").attr("stroke", "currentColor").attr("stroke-width", 2).attr("visibility", "hidden");
        const places = points.map((point) => [x(point), y(point)]);
        let active = -1;
        function show(index) {
            active = index;
            const [px, py] = places[index];
            ring.attr("cx", px).attr("cy", py).attr("visibility", "visible");
            tip.replaceChildren(...describe(points[index]).filter(Boolean));
            tip.dataset.at = points[index].at;
            tip.hidden = false;
            const room = box.clientWidth, wide = tip.offsetWidth, high = tip.offsetHeight;
            tip.style.left = Math.max(0, px + wide + 22 > room ? (px - wide - 16 >= 0 ? px - wide - 16 : Math.min(room - wide, Math.max(0, px - wide / 2))) : px + 16) + "px";
            const beside = px + wide + 22 <= room || px - wide - 16 >= 0;
            tip.style.top = Math.max(0, beside ? py - high / 2 : py + 16) + "px";
        }
        function hide() {
            tip.hidden = true;
            ring.attr("visibility", "hidden");
            active = -1;
        }
        function nearest_to(event) {
            const [px, py] = d3.pointer(event, svg);
            let best = -1, least = Infinity;
            for (let index = 0; index < places.length; index++) {
                const distance = Math.hypot(places[index][0] - px, 0.3 * (places[index][1] - py));
                if (distance < least) [best, least] = [index, distance];
            }
            return best;
        }
        let touched = -1;
        svg.addEventListener("pointerdown", (event) => { touched = event.pointerType === "mouse" ? -2 : active; });
        svg.addEventListener("pointermove", (event) => show(nearest_to(event)));
        box.addEventListener("pointerleave", hide);
        svg.addEventListener("click", (event) => {
            const index = nearest_to(event);
            if (touched === -2 || touched === index) open(points[index]);  // a finger points first, then opens
            else show(index);
        });
        box.addEventListener("blur", hide);
        box.addEventListener("keydown", (event) => {
            if (event.key === "Enter" && active >= 0) return open(points[active]);
            if (event.key === "Escape") return hide();
            const own = active < 0 ? points[points.length - 1].series : points[active].series;
            const same = points.map((_, index) => index).filter((index) => points[index].series === own);
            const at = same.indexOf(active);
            const others = [...new Set(points.map((point) => point.series))];
            const goal = {ArrowLeft: () => same[at < 0 ? same.length - 1 : Math.max(0, at - 1)], ArrowRight: () => same[at < 0 ? 0 : Math.min(same.length - 1, at + 1)],
                Home: () => same[0], End: () => same[same.length - 1],
                ArrowDown: () => other(1), ArrowUp: () => other(-1)}[event.key];
            function other(step) {
                const next = others[(others.indexOf(own) + step + others.length) % others.length];
                const theirs = points.map((_, index) => index).filter((index) => points[index].series === next);
                return active < 0 ? theirs[theirs.length - 1] : d3.least(theirs, (index) => Math.abs(points[index].at - points[active].at));
            }
            if (!goal) return undefined;
            event.preventDefault();
            show(goal());
            return undefined;
        });
    };
}
