"""asv plugin: plots with the legend beside the data and rate axes from 0, which request only graphs that exist.

By itself, asv draws the legend over the data, starts every axis except those of seconds and bytes at the minimum, and
requests the graph of every benchmark on every machine, which fails if that machine did not measure it.
"""

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from asv.publishing import OutputPublisher

from kernelwatch.asv.patches import replace_words

HERE = Path(__file__).resolve().parent
PASSAGES = {  # of graphdisplay.js: asv's code -> the code that replaces it
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
    """Write the list of existing graphs and the script that requests no others."""

    name = "plots"
    button_label = ""
    description = "Correct the plots"
    order = 4  # after everything that writes graphs

    @classmethod
    def publish(cls, conf: Any, repo: Any, benchmarks: Any, graphs: Any, revisions: Any) -> None:
        site = Path(conf.html_dir)
        script = site / "graphdisplay.js"
        replace_words(script, PASSAGES)
        script.write_text(script.read_text(encoding="utf-8") + (HERE / "plots.js").read_text(encoding="utf-8"), "utf-8")
        graph_paths = sorted(path.relative_to(site) for path in (site / "graphs").rglob("*.json"))
        # The quoting of encodeURIComponent.
        urls = ["/".join(quote(part, safe="!'()*") for part in path.parts) for path in graph_paths]
        (site / "graphs.json").write_text(json.dumps(urls), encoding="utf-8")
