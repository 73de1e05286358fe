// The Regressions page: it shows what regressions.py wrote and replaces asv's script of the same name. Strings from the
// data are set as text, never as HTML.
'use strict';

$(document).ready(function () {
    var SHOWN = 8;  // series shown for an event; the others can be unfolded
    var loaded = null;

    function percent(part, digits) {
        return part === null ? 'n/a' : (100 * part).toFixed(digits).replace('-', '\u2212') + ' %';
    }

    function change_text(change) {
        if (change.change === null) return 'from 0';
        return (change.change > 0 ? '+' : '') + percent(change.change, Math.abs(change.change) < 0.1 ? 2 : 1);
    }

    function smallest_text(series) {
        return series.smallest === 0 ? 'any' : percent(series.smallest, 2);
    }

    function element(tag, text, css) {
        var node = $('<' + tag + '/>').text(text);
        return css ? node.addClass(css) : node;
    }

    function short_hash(hash) {
        return hash.slice(0, $.asv.main_json.hash_length);
    }

    function commit_link(hash) {
        var base = $.asv.main_json.show_commit_url;
        var text = short_hash(hash);
        if (!/^https?:\/\//.test(base)) return element('span', text, 'hash');
        return element('a', text, 'hash').attr('href', base + hash);
    }

    // The parameters that distinguish series of several machines, branches and so on.
    function place_of(series) {
        var place = {};
        $.each(series.place, function (name, value) {
            if (($.asv.main_json.params[name] || []).length > 1) place[name] = value;
        });
        return place;
    }

    function series_text(series) {
        var values = $.map(series.params, function (value) { return $.asv.convert_benchmark_param_value(value); });
        var place = $.map(place_of(series), function (value, name) { return name === 'machine' ? value : name + ' ' + value; });
        return series.benchmark + (values.length ? ' (' + values.join(', ') + ')' : '') +
            (place.length ? ' on ' + place.join(', ') : '');
    }

    // A link to the plot of a series, zoomed so that a small step is visible; `commits` are marked.
    function series_link(series, commits) {
        var params = {'y-axis-scale': ['zoom']};
        $.each(place_of(series), function (name, value) { params[name] = [value]; });
        $.each(series.params, function (name, value) { params['p-' + name] = [value]; });
        if (commits) params.commits = [commits];
        return element('a', series_text(series)).attr(
            'href', $.asv.format_hash_string({location: [encodeURIComponent(series.benchmark)], params: params}));
    }

    function table(columns, rows) {
        var head = $('<tr/>');
        $.each(columns, function (i, name) { head.append(element('th', name, i ? 'number' : '')); });
        return $('<table class="table"/>').append($('<thead/>').append(head), $('<tbody/>').append(rows));
    }

    // What measuring both commits again in turns said of a change.
    function verdict_text(verdict) {
        if (verdict.change === null) return verdict.word + (verdict.why ? ': ' + verdict.why : '');
        return verdict.word + ': ' + change_text(verdict) + ' (' + percent(verdict.low, 2) + ' to ' +
            percent(verdict.high, 2) + ') in ' + verdict.turns + ' turns' + (verdict.why ? ', ' + verdict.why : '');
    }

    function change_row(event, change) {
        var benchmark = $.asv.main_json.benchmarks[change.benchmark];
        function value(x) { return element('td', $.asv.pretty_unit(x, benchmark.unit), 'number'); }
        var name = $('<td/>').append(series_link(change, short_hash(change.from) + '-' + short_hash(change.to)));
        if (!event.gradual && (change.from !== event.before || change.to !== event.last.hash)) {
            name.append(element('span', 'after ' + short_hash(change.from) + ', by ' + short_hash(change.to), 'note'));
        }
        if (change.undone) name.append(element('span', 'since undone', 'note'));
        if (change.verdict) name.append(element('span', verdict_text(change.verdict), 'note'));
        if (change.limits.length) name.append(element('span', change.limits.join(', '), 'note'));
        return $('<tr/>').append(
            name, element('td', change_text(change), 'number change'), value(change.before), value(change.after),
            value(change.now), element('td', smallest_text(change), 'number'));
    }

    function event_box(event) {
        var date = $.asv.format_date_yyyymmdd(new Date(event.last.date));
        var about = $('<div class="about"/>').append(
            commit_link(event.last.hash), document.createTextNode(' by ' + event.last.author + ', ' + date));
        if (event.gradual) {
            about.append(document.createTextNode('; many small changes since '), commit_link(event.first.hash));
        } else if (event.commits > 1) {
            var unmeasured = (event.commits - 1) + ' unmeasured commits before it, after ';
            about.append(document.createTextNode('; or one of the ' + unmeasured), commit_link(event.before));
        }
        var subject = event.last.subject;
        if (event.kind === 'environment') {  // no commit is to blame
            about.prepend(document.createTextNode('seen at '));
            about.append(document.createTextNode(': ' + subject));
            subject = event.why.charAt(0).toUpperCase() + event.why.slice(1);
        }
        var title = element('div', subject, 'subject');
        if (event.kind !== 'environment') title.append(element('span', event.verdict, 'verdict'));
        var box = $('<div class="event"/>').append(title, about);
        var columns = ['series', 'change', 'before', 'after', 'now', 'minimum detectable change'];
        var rows = $.map(event.changes, function (change) { return change_row(event, change); });
        box.append(table(columns, rows.slice(0, SHOWN)));
        if (rows.length > SHOWN) {
            var rest = $('<details/>').append(element('summary', (rows.length - SHOWN) + ' more series'));
            box.append(rest.append(table(columns, rows.slice(SHOWN))));
        }
        return box;
    }

    function section(data, kind, heading, explained) {
        var events = $.grep(data.events, function (event) {
            return (event.verdict === 'refuted' ? 'disturbed' : event.kind) === kind;
        });
        var box = $('<section/>').addClass(kind).append(
            element('h2', heading + ' (' + events.length + ')'), element('div', explained, 'explained'));
        return box.append(events.length ? $.map(events, event_box) : element('div', 'None.'));
    }

    function turns(data) {
        var rows = $.map(data.turns, function (turn) {
            return $('<tr/>').append(
                element('td', turn.why),
                $('<td class="number"/>').append(commit_link(turn.before), ' .. ', commit_link(turn.commit)),
                element('td', turn.series, 'number'));
        });
        if (!rows.length) return $();
        return $('<div class="turns"/>').append(
            element('p', 'What changed between measurements, with or without a visible step. No commit is blamed ' +
                    'for a step across such a change: only measuring both commits again together can decide.', 'explained'),
            table(['what', 'between', 'series'], rows));
    }

    function judged(data) {
        var rows = $.map(data.series, function (series) {
            return $('<tr/>').append(
                $('<td/>').append(series_link(series)), element('td', series.commits, 'number'),
                element('td', smallest_text(series), 'number'));
        });
        return $('<section/>').append(
            element('h2', 'Judged series'),
            element('div', 'Each judged series and its minimum detectable change; n/a if the series is too short since ' +
                    'the environment last changed.',
                    'explained'),
            $('<details/>').append(element('summary', rows.length + ' series'),
                                   table(['series', 'commits', 'minimum detectable change'], rows)));
    }

    function show(data) {
        $('#regressions-body').empty().append(
            $('<div class="feed-div"><a class="btn" href="regressions.xml">Feed (Atom)</a></div>'),
            section(data, 'regression', 'Regressions',
                    'What got worse by more than its noise, while the machine and the version of the harness stayed as they were. ' +
                    'Newest first; changes of several series at one commit are one event. Confirmed: both commits were ' +
                    'measured again in turns, and differ; or the figure is exact.'),
            section(data, 'improvement', 'Improvements', 'What got better, found in the same way.'),
            section(data, 'disturbed', 'Disturbed runs',
                    'Steps that measuring both commits again, in turns, did not show: something disturbed the run.'),
            section(data, 'environment', 'Changes of the environment',
                    'Steps that the commit did not cause: the GPU, the driver, packages or the version of the harness ' +
                    'changed at the same time, or the binary did not change at all.').append(turns(data)),
            judged(data));
    }

    $.asv.register_page('regressions', function () {
        $('#title').text('Regressions');
        $('#regressions-display').show();
        if (loaded !== null) return;
        loaded = $.ajax({
            url: 'regressions.json?timestamp=' + $.asv.main_timestamp, dataType: 'json', cache: true
        }).done(show).fail($.asv.ui.network_error);
    });
});
