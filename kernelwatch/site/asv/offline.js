// Lets asv's pages read their data from file://, where browsers refuse XMLHttpRequest.
//
// For every x.json, offline.py also writes a script x.json.js, which passes the same text to the script element
// that loads it. Over http nothing changes.
if (location.protocol === "file:") {
    jQuery.ajaxTransport("json", function (options) {
        var script = document.createElement("script");
        return {
            send: function (headers, complete) {
                script.onload = function () { complete(200, "OK", {text: script.json}); };
                script.onerror = function () { complete(404, "Not Found"); };
                script.src = options.url.replace(/\?|$/, ".js$&");
                document.head.appendChild(script).remove();
            },
            // A script that is loading cannot be canceled, only ignored.
            abort: function () { script.onload = script.onerror = null; }
        };
    });

    // asv fetches swallow.ico to distinguish "no data for this graph" from "the server is gone". No server is involved
    // here, so the fetch always succeeds.
    jQuery.ajaxTransport("text", function () {
        return {
            send: function (headers, complete) { complete(200, "OK", {text: ""}); },
            abort: jQuery.noop
        };
    });
}
