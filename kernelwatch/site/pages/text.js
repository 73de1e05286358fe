// Figures as people read them. Every number carries its unit; what is not known is "n/a".
"use strict";

kernelwatch.text = {
    // Seconds with so many significant digits.
    time(seconds, digits = 4) {
        if (seconds === null || seconds === undefined) return "n/a";
        const [unit, scale] = [["s", 1], ["ms", 1e-3], ["\u00b5s", 1e-6], ["ns", 1e-9]].find(
            ([, scale]) => Math.abs(seconds) >= scale) || ["ns", 1e-9];
        return kernelwatch.text.digits(seconds / scale, digits) + " " + unit;
    },

    // Bytes or operations per second.
    rate(rate, unit, digits = 4) {
        return rate === null || rate === undefined ? "n/a" : kernelwatch.text.digits(rate / 1e9, digits) + " " + unit;
    },

    // A number with so many significant digits, never as 1e+5.
    digits(value, digits = 4) {
        if (value === null || value === undefined) return "n/a";
        if (value === 0) return "0";
        const before = Math.floor(Math.log10(Math.abs(value))) + 1;
        return value.toFixed(Math.max(0, Math.min(12, digits - before))).replace("-", "\u2212");
    },

    // How many significant digits of a figure its interval supports: the first that is uncertain is the last one shown.
    significant(value, low, high) {
        if (!value || low === undefined || high === undefined || low === null || high === null || high <= low) return 4;
        return Math.max(2, Math.min(6, Math.ceil(Math.log10(Math.abs(value) / ((high - low) / 2)))));
    },

    // An interval of seconds, its unit named once.
    bounds(low, high, digits = 5) {
        if (low === null || low === undefined || high === null || high === undefined) return "";
        const [first, last] = [low, high].map((seconds) => kernelwatch.text.time(seconds, digits));
        const [number, unit] = first.split(" ");
        return (last.endsWith(" " + unit) ? number : first) + " \u2013 " + last;
    },

    // A figure without noise: whole numbers as they are, others with so many significant digits but no zeros at their end.
    exact(value, digits = 5) {
        const whole = Math.max(digits, Math.floor(Math.log10(Math.abs(value) || 1)) + 1);
        return kernelwatch.text.digits(value, whole).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
    },

    // A share as percent.
    percent(share, digits = 1) {
        return share === null || share === undefined || !isFinite(share) ? "n/a"
            : (100 * share).toFixed(digits).replace("-", "\u2212") + " %";
    },

    // A relative change with its sign.
    change(change, digits) {
        if (change === null || change === undefined || !isFinite(change)) return "from 0";
        return (change > 0 ? "+" : "") + kernelwatch.text.percent(change, digits === undefined ? (Math.abs(change) < 0.1 ? 2 : 1) : digits);
    },

    bytes(bytes) {
        const [unit, scale] = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]].find(([, scale]) => bytes >= scale) || ["B", 1];
        return kernelwatch.text.digits(bytes / scale, 3) + " " + unit;
    },

    date(milliseconds) {
        return new Date(milliseconds).toISOString().slice(0, 10);
    },

    // How many days ago by their dates, in words, as of the moment at which the pages were published.
    age(milliseconds, now) {
        const [then, day] = [milliseconds, now].map((each) => Math.floor(each / 86400000));
        const days = day - then;
        if (days < 1) return "today";
        return days === 1 ? "a day ago" : days < 60 ? days + " days ago" : Math.round(days / 30.4) + " months ago";
    },

    // The shape of a cell, "4096x4096", as people write it: 4096 \u00d7 4096; a lone extent with its thousands apart.
    shape(shape) {
        return shape.includes("x") ? shape.replaceAll("x", " \u00d7 ") : Number(shape).toLocaleString("en-US");
    },

    hash(hash) {
        return hash.slice(0, 8);
    },

    plural(count, word, words) {
        return count + " " + (count === 1 ? word : words || word + "s");
    },
};
