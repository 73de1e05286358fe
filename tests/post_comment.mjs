// Runs the script of actions/github-script against a stub of GitHub's API, and prints what it called.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const { script, event, pulls, comments } = JSON.parse(readFileSync(0, "utf8"));
const calls = [];
const record = (name) => async (parameters) => void calls.push({ name, ...parameters });
const github = {
    rest: {
        pulls: {
            list: async ({ head, state }) =>
                pulls.filter((pull) => pull.state === state && `${pull.head.user.login}:${pull.head.ref}` === head),
        },
        issues: {
            listComments: async ({ issue_number }) => comments.filter((comment) => comment.issue === issue_number),
            createComment: record("create"),
            updateComment: record("update"),
        },
    },
    paginate: (method, parameters) => method(parameters),
};
const context = { payload: { workflow_run: event }, repo: { owner: "us", repo: "kernels" } };
const AsyncFunction = Object.getPrototypeOf(async () => {}).constructor;
const run = new AsyncFunction("github", "context", "core", "require", script);
await run(github, context, { info: () => {} }, createRequire(import.meta.url));
console.log(JSON.stringify(calls));
