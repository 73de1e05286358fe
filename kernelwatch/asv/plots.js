
// plots.py appends this file to asv's graphdisplay.js.
$(document).ready(function () {
    var load = $.asv.load_graph_data;
    var existing = null;  // a promise of the URLs of all graphs

    // asv's own function, except that a graph that does not exist fails without a request.
    $.asv.load_graph_data = function (url) {
        existing = existing || $.ajax({
            url: 'graphs.json?timestamp=' + $.asv.main_timestamp, dataType: 'json', cache: true
        }).then(function (urls) { return new Set(urls); });
        return existing.then(function (urls) { return urls.has(url) ? load(url) : $.Deferred().reject(); });
    };

    // The element where flot puts the legend: right of the plot, which becomes narrower if the legend is shown.
    $.asv.legend_container = function (shown) {
        var legend = $('#graph-legend');
        if (!legend.length) {
            legend = $('<div id="graph-legend"/>').css({
                position: 'absolute', top: 48, right: 0, bottom: 0, width: 250, overflow: 'auto', fontSize: 12
            }).appendTo('#graph');
        }
        $('#main-graph, #overview').parent().css('right', shown ? 260 : 0);
        legend.toggle(shown);
        return legend[0];
    };
});
