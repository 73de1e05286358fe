"""What the recipes for CI must keep to, so that the code of strangers never meets a token that can write."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ruamel.yaml import YAML

ACTIONS = {
    f"actions/{name}"
    for name in (
        *("checkout", "setup-python", "upload-artifact", "download-artifact", "github-script"),
        *("upload-pages-artifact", "deploy-pages"),
    )
}
# A permission to write -> what a job that has it must do with it.
WRITES = {
    "contents": "git push origin refs/heads/results",
    "pull-requests": "actions/github-script",
    "pages": "actions/deploy-pages",
    "id-token": "actions/deploy-pages",
}
LABELED = "github.event.label.name == 'gpu'"
STRANGERS = {"pull_request", "pull_request_target", "issue_comment", "issues", "fork", "workflow_run"}

Workflow = Mapping[str, Any]


def parse(text: str) -> Any:
    """A YAML file; a key such as `on` stays a text."""
    return YAML(typ="safe", pure=True).load(text)


def triggers(workflow: Workflow) -> set[str]:
    on = workflow["on"]
    return {on} if isinstance(on, str) else set(on)


def _scripts(job: Workflow) -> Iterator[str]:
    for step in job["steps"]:
        yield from filter(None, (step.get("run"), step.get("with", {}).get("script")))


def of_workflow(text: str) -> Iterator[str]:
    """What is wrong with a workflow of GitHub's."""
    workflow = parse(text)
    on = triggers(workflow)
    if "pull_request_target" in on:
        yield "pull_request_target runs with a token that can write"
    if re.search(r"\bsecrets\b(?!\.GITHUB_TOKEN\b)", re.sub("(^| )#.*", "", text, flags=re.MULTILINE)):
        yield "a secret"
    if "permissions" not in workflow:
        yield "permissions are GitHub's default"
    for name, job in workflow["jobs"].items():
        yield from (f"{name}: {why}" for why in _of_job(job, workflow, on))


def _of_job(job: Workflow, workflow: Workflow, on: set[str]) -> Iterator[str]:
    granted = job.get("permissions", workflow.get("permissions", {}))
    writes = {what for what, level in granted.items() if level == "write"}
    done = "\n".join([*_scripts(job), *(step.get("uses", "") for step in job["steps"])])
    for what in writes:
        if what not in WRITES or WRITES[what] not in done:
            yield f"needs no {what}: write"
    if "pull_request" in on:
        yield from _of_pull_request(job, workflow, writes)
    if "self-hosted" in job["runs-on"] and on & STRANGERS:
        yield "strangers choose what a self-hosted runner executes"
    if "self-hosted" in job["runs-on"] and workflow.get("concurrency", {}).get("cancel-in-progress") is not False:
        yield "two runs at a time, or one that is cancelled"
    if any("${{" in script for script in _scripts(job)):
        yield "an expression in a script: whoever chooses its value writes the script"
    if "timeout-minutes" not in job:
        yield "no limit of time"
    for step in job["steps"]:
        action, _, version = step.get("uses", "").partition("@")
        if action and (action not in ACTIONS or not re.fullmatch(r"v\d+", version)):
            yield f"{step['uses']} is none of GitHub's own actions in a major version"
        if "workflow_run" in on and (action == "actions/checkout" or "run" in step):
            yield "code beside a token that can write"
        keeps = step.get("with", {}).get("persist-credentials") is not False
        if action == "actions/checkout" and keeps and "contents" not in writes:
            yield "the checkout leaves a token behind that the job does not need"
        if action == "actions/checkout" and step["with"].get("fetch-depth") != 0:
            yield "a shallow clone"


def _of_pull_request(job: Workflow, workflow: Workflow, writes: Collection[str]) -> Iterator[str]:
    """What is wrong with a job that runs a pull request's code."""
    if writes:
        yield "code of a pull request with a token that can write"
    if job["runs-on"] == "ubuntu-latest":
        return
    if workflow["on"] != {"pull_request": {"types": ["labeled"]}} or job.get("if") != LABELED:
        yield "it starts without a maintainer's label"
    refs = [step["with"].get("ref") for step in job["steps"] if "actions/checkout@" in step.get("uses", "")]
    if refs != ["${{ github.event.pull_request.head.sha }}"]:
        yield "it measures what was pushed after the label"


def of_gitlab(text: str) -> Iterator[str]:
    """What is wrong with a pipeline of GitLab's."""
    pipeline = parse(text)
    if pipeline["variables"].get("GIT_DEPTH") != "0":
        yield "a shallow clone"
    for name, job in pipeline.items():
        if name == "variables" or name.startswith("."):
            continue
        if not job.get("rules"):
            yield f"{name}: runs in every pipeline"
        requests = any("merge_request" in str(rule) for rule in job.get("rules", ()))
        if requests and "tags" in job:
            yield f"{name}: a merge request chooses what the tagged runner executes"
        if "tags" in job and "resource_group" not in job:
            yield f"{name}: two jobs on the GPU at a time"
        if not requests and "image" in job:
            yield f"{name}: an image on a runner of the project"
