"""asv plugin: plots with the legend beside them, with rates from 0, and that ask for no graph that is not there.

By itself asv draws the legend over the data, starts every axis but those of seconds and bytes at the least value, and
asks for the graph of every benchmark on every machine, which fails where that one did not measure it.

asv is patched in its pages' graphdisplay.js alone; `direction.replace` refuses one that is another.
"""

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from asv.publishing import OutputPublisher

from scripts.asv_plugins.direction import replace

HERE = Path(__file__).resolve().parent
WORDS = {
    '                position: "nw",\n': "                container: $.asv.legend_container(show_legend),\n",
    "            if (unit_list !== null) {\n                if (!zoom_y_axis) {": """\
            if (!zoom_y_axis && min >= 0) {
                options.yaxis.min = 0;
                options.yaxis.max = max * 1.1;
            }
            if (unit_list !== null) {
                if (!zoom_y_axis) {""",
}


class Plots(OutputPublisher):
    """The graphs that there are, and the script that asks for no others."""

    name = "plots"
    button_label = ""
    description = "Mend the plots"
    order = 4  # after all that writes graphs

    @classmethod
    def publish(cls, conf: Any, repo: Any, benchmarks: Any, graphs: Any, revisions: Any) -> None:
        site = Path(conf.html_dir)
        script = site / "graphdisplay.js"
        replace(script, WORDS)
        script.write_text(script.read_text(encoding="utf-8") + (HERE / "plots.js").read_text(encoding="utf-8"), "utf-8")
        there = sorted(path.relative_to(site) for path in (site / "graphs").rglob("*.json"))
        urls = ["/".join(quote(part, safe="!'()*") for part in path.parts) for path in there]  # as encodeURIComponent
        (site / "graphs.json").write_text(json.dumps(urls), encoding="utf-8")
