// The Regressions page of this engine takes the place of asv's own, which this script replaces.
'use strict';

$(document).ready(function () {
    $.asv.register_page('regressions', function () {
        location.replace('../index.html#/regressions');
    });
});
