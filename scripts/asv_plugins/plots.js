
// What plots.py adds to asv's graphdisplay.js.
$(document).ready(function () {
    var load = $.asv.load_graph_data;
    var there = null;

    // asv's own, but a graph that is not there fails without being asked for.
    $.asv.load_graph_data = function (url) {
        there = there || $.ajax({
            url: 'graphs.json?timestamp=' + $.asv.main_timestamp, dataType: 'json', cache: true
        }).then(function (urls) { return new Set(urls); });
        return there.then(function (urls) { return urls.has(url) ? load(url) : $.Deferred().reject(); });
    };

    // Where flot puts the legend: right of the plot, which makes room for it.
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
