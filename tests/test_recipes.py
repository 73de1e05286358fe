"""The recipes for CI: valid by the published schemas, safe with the code of strangers, and their commands run.

tests/data/counted is the project that they run in: one CUDA kernel, whose accesses the emulator counts.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pip
import pytest
from markdown_it import MarkdownIt  # which rich brings

from kernelwatch import recipes
from tests import recipe_rules
from tests.recipe_rules import parse
from tests.repositories import ROOT, Project, new_project, rewrite
from tests.sums_of_rows import FAST, OTHER, OTHER_KERNEL, PLAIN, Rows
from tests.test_links import BOTH

GITHUB = [name for name in recipes.PLACES if name.startswith("github")]
SCHEMAS = {name: "vendor.github-workflows" for name in GITHUB} | {"gitlab": "vendor.gitlab-ci"}
POST = ROOT / "tests" / "post_comment.mjs"
STRIDED = {"threadIdx.x;": "threadIdx.x ^ ((threadIdx.x & 1) * 64);"}  # twice as many sectors a request
WRONG = {"= 2 * in[at]": "= 3 * in[at]"}
DATA = ROOT / "tests" / "data" / "counted"
KERNEL = "columns/scale.cu"

# --- what they say -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", recipes.PLACES)
def test_the_schema_takes_it(name: str, tmp_path: Path) -> None:
    assert set(SCHEMAS) == set(recipes.PLACES)
    good, bad = tmp_path / "good.yml", tmp_path / "bad.yml"
    good.write_text(recipes.text(name))
    bad.write_text(recipes.text(name).replace("timeout-minutes:", "timeout-minuets:").replace("rules:", "rule:"))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", SCHEMAS[name]]
    done = subprocess.run([*command, str(good), str(bad)], capture_output=True, text=True, check=False)
    assert str(bad) in done.stdout
    assert str(good) not in done.stdout, done.stdout


@pytest.mark.parametrize("name", recipes.PLACES)
def test_it_is_safe(name: str) -> None:
    rules = recipe_rules.of_gitlab if name == "gitlab" else recipe_rules.of_workflow
    assert list(rules(recipes.text(name))) == []


MISTAKES = [
    ("github", "on: pull_request", "on: pull_request_target", "pull_request_target runs"),
    ("github", "  contents: read", "  contents: write", "exact: needs no contents: write"),
    ("github", "  contents: read", "  pull-requests: write", "exact: code of a pull request with a token"),
    ("github", "permissions:\n  contents: read\n", "", "permissions are GitHub's default"),
    ("github", "persist-credentials: false", "clean: true", "exact: the checkout leaves a token"),
    ("github", "fetch-depth: 0", "fetch-depth: 1", "exact: a shallow clone"),
    ("github", "ubuntu-latest", "[self-hosted]", "exact: strangers choose what a self-hosted runner executes"),
    ("github", '"$BASE_SHA"', "${{ github.event.pull_request.base.ref }}", "exact: an expression in a script"),
    ("github", "actions/setup-python@v6", "someone/setup-python@v6", "exact: someone/setup-python@v6 is none of"),
    ("github", "actions/setup-python@v6", "actions/setup-python@main", "exact: actions/setup-python@main is"),
    ("github", "BASE_SHA: ", "TOKEN: ${{ secrets.PAT }}\n          BASE_SHA: ", "a secret"),
    ("github-label", "gpu-ephemeral", "[self-hosted, gpu]", "measure: strangers choose what a self-hosted runner"),
    ("github-label", "[labeled]", "[labeled, opened]", "measure: it starts without a maintainer's label"),
    ("github-label", "label.name == 'gpu'", "label.name != ''", "measure: it starts without a maintainer's label"),
    ("github-label", "pull_request.head.sha }}", "pull_request.head.ref }}", "measure: it measures what was pushed"),
    ("github-label", "BASE_SHA\" HEAD)\n", "{{ secrets.X }}\" HEAD)\n", "a secret"),
    ("github-label", "contents: read", "contents: write", "measure: code of a pull request with a token"),
    ("github-label", "persist-credentials: false", "clean: true", "measure: the checkout leaves a token"),
    ("github-comment", "steps:", "steps:\n      - uses: actions/checkout@v6\n        with: {}", "comment: code"),
    ("github-comment", "steps:", "steps:\n      - run: make", "comment: code beside a token that can write"),
    ("github-comment", "const MOST = 60000", "const BRANCH = '${{ github.head_ref }}'", "comment: an expression in a"),
    ("github-comment", "pull-requests: write", "contents: write", "comment: needs no contents: write"),
    ("github-gpu", "  schedule:", "  pull_request:\n  schedule:", "measure: strangers choose"),
    ("github-gpu", "cancel-in-progress: false", "cancel-in-progress: true", "measure: two runs at a time"),
    ("github-gpu", "contents: read", "contents: write", "compare: needs no contents: write"),
    ("gitlab", '"push"', '"merge_request_event"', "measure: a merge request chooses"),
    ("gitlab", "  resource_group: kernelwatch-gpu\n", "", "measure: two jobs on the GPU at a time"),
    ("gitlab", "GIT_DEPTH: \"0\"", "GIT_DEPTH: \"20\"", "a shallow clone"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "right", "mistake", "why"), MISTAKES)
def test_a_mistake_is_noticed(name: str, right: str, mistake: str, why: str) -> None:
    text = recipes.text(name)
    assert right in text
    rules = recipe_rules.of_gitlab if name == "gitlab" else recipe_rules.of_workflow
    assert any(told.startswith(why) for told in rules(text.replace(right, mistake)))


@pytest.mark.parametrize(("at", "name", "job"), [(0, "github", "exact"), (1, "github-label", "measure")])
def test_the_second_workflow_waits_for_the_first_and_takes_its_artifact(at: int, name: str, job: str) -> None:
    first, second = parse(recipes.text(name)), parse(recipes.text("github-comment"))
    assert second["on"]["workflow_run"]["workflows"][at] == first["name"]
    download = second["jobs"]["comment"]["steps"][0]
    (upload,) = [
        step for step in first["jobs"][job]["steps"] if step.get("with", {}).get("name") == download["with"]["name"]
    ]
    script = second["jobs"]["comment"]["steps"][1]
    assert script["env"]["DATA_FILE"] == f"{download['with']['path']}/{upload['with']['path']}"


def test_gitlab_measures_as_github_does() -> None:
    """The two differ in the name of the repository, and in what follows the push."""
    steps = {step.get("name"): step for step in parse(recipes.text("github-gpu"))["jobs"]["measure"]["steps"]}
    theirs = parse(recipes.text("gitlab"))["measure"]["script"]
    for own, other in zip((steps["Fetch the results"], steps["Measure"]), theirs, strict=True):
        lines = [
            [line for line in text.splitlines() if not re.match(r"git config |echo \"|mv |exit \"\$code\"", line)]
            for text in (own["run"], other.replace('"$CI_REPOSITORY_URL"', "origin"))
        ]
        assert lines[0] == lines[1]


# --- their commands ------------------------------------------------------------------------------------------------

runs_commands = pytest.mark.xdist_group("foreign")  # the tests that need the engine installed


class Forge:
    """A repository on a server, a working copy of a developer, and the folder in which a runner works."""

    def __init__(self, base: Path, programs: Path, write: Callable[[Project], None]) -> None:
        self.base, self.programs = base, programs
        self.server, self.work = new_project(base, "server.git"), base / "work"
        self.server.git("config", "core.bare", "true")
        self.developer = Project(base / "developer", base / "home")
        write(self.developer)
        self.developer.git("init", "-q", "-b", "main")
        self.developer.git("remote", "add", "origin", str(self.server.folder / ".git"))
        self.root = self.developer.git("commit-tree", "-m", "Root", self.developer.git("mktree"))
        self.developer.git("update-ref", "HEAD", self.root)
        self.start = self.commit()

    def commit(self, edits: Mapping[str, Mapping[str, str]] | None = None, branch: str = "main") -> str:
        """Commit what is there, with edits, and push it to a branch; the hash."""
        rewrite(self.developer.folder, edits or {})
        sha = self.developer.commit_all(f"For {branch}")
        self.developer.git("push", "-q", "origin", f"HEAD:{branch}")
        return sha

    def check_out(self, commit: str) -> Project:
        """What actions/checkout leaves: a clone of everything, with a commit checked out."""
        shutil.rmtree(self.work, ignore_errors=True)
        self.developer.git("clone", "-q", str(self.server.folder / ".git"), str(self.work))
        runner = Project(self.work, self.base / "home")
        runner.git("checkout", "-q", "--detach", commit)
        return runner

    def step(self, script: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        """Run a script as a runner runs it."""
        file = self.base / "step.sh"
        file.write_text(script)
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        own = {"KERNELWATCH_CACHE": str(self.base / "cache"), "RUNNER_TEMP": str(self.base)}
        runner = Project(self.work, self.base / "home")
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(file)]
        environment = {**runner.environment(PATH=path), **own, **variables}
        environment.pop("PYTHONPATH")
        return subprocess.run(
            command,
            cwd=self.work,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )


def counted(project: Project) -> None:
    shutil.copytree(DATA, project.folder, ignore=shutil.ignore_patterns("__pycache__"))


def rows(project: Project) -> None:
    """Two rungs that a CPU runs."""
    own = Rows(project.folder, project.home)
    own.describe(PLAIN + OTHER, shapes="(256, 256)")
    own.write_files({"rows/__init__.py": BOTH, "rows/sums.py": FAST, "rows/more.py": OTHER_KERNEL})


@pytest.fixture(scope="module")
def forge(tmp_path_factory: pytest.TempPathFactory, installed_engine: Path) -> Forge:
    """The engine is installed, and the recipe's own step installs the rest of what the project requires."""
    (site,) = installed_engine.parent.glob("lib/python*/site-packages")
    (site / "pip").symlink_to(Path(pip.__file__).parent)
    forge = Forge(tmp_path_factory.mktemp("a runner, größer"), installed_engine, counted)
    forge.check_out(forge.start)
    workflow = parse(recipes.text("github"))
    (script,) = [step["run"] for step in workflow["jobs"]["exact"]["steps"] if step.get("name") == "Install"]
    done = forge.step(script, **workflow["env"])
    assert done.returncode == 0, done.stderr
    return forge


@pytest.fixture(scope="module")
def timing(tmp_path_factory: pytest.TempPathFactory, installed_engine: Path) -> tuple[Forge, str]:
    """A project that a runner without a GPU can time, and the commit that makes it slower."""
    forge = Forge(tmp_path_factory.mktemp("timing"), installed_engine, rows)
    return forge, forge.commit({"rows/sums.py": {"TIMES = 4": "TIMES = 1000"}})


@pytest.fixture(scope="module")
def branches(forge: Forge) -> dict[str, str]:
    """The newest commit of each branch. Main has moved on, to a kernel that is worse."""
    commits = {}
    for name, edits in {
        "main": {KERNEL: STRIDED},
        "same": {"test_columns.py": {"The gate": "A gate"}},
        "worse": {KERNEL: STRIDED},
        "wrong": {KERNEL: WRONG},
        "broken": {KERNEL: STRIDED, "benchmarks/access.py": {"class ": "1 / 0\n\n\nclass "}},
        "failing": {KERNEL: {"scale_naive(": "scale_other("}},
    }.items():
        forge.developer.git("checkout", "-q", "-B", name, forge.start)
        commits[name] = forge.commit(edits, branch=name)
    return commits


@runs_commands
def test_the_installed_engine_prints_them(installed_engine: Path) -> None:
    def printed(*arguments: str) -> str:
        command = [str(installed_engine / "python"), "-m", "kernelwatch.recipes", *arguments]
        return subprocess.run(command, cwd=installed_engine, capture_output=True, text=True, check=True).stdout

    assert [tuple(line.split()) for line in printed().splitlines()] == list(recipes.PLACES.items())
    assert [printed(name) for name in recipes.PLACES] == [recipes.text(name) for name in recipes.PLACES]


def on_github(forge: Forge, commits: Mapping[str, str], name: str) -> tuple[int, str]:
    """Run the steps of the recipe for a pull request from a branch into main; the exit code of the step that ended the
    job, and the text of the artifact."""
    workflow = parse(recipes.text("github"))
    known = {"${{ github.event.pull_request.base.sha }}": commits["main"]}
    summary = forge.base / "summary.md"
    summary.write_text("")
    runner = forge.check_out(commits[name])
    code = 0
    for step in workflow["jobs"]["exact"]["steps"]:
        if "run" in step and step["name"] != "Install" and not code:
            own = {key: known[value] for key, value in step.get("env", {}).items()}
            variables = {**workflow["env"], **own, "GITHUB_STEP_SUMMARY": str(summary)}
            code = forge.step(step["run"], **variables).returncode
    text, data = summary.read_text(), runner.folder / "comment.json"
    assert data.exists() is bool(text)
    if text:
        (call,) = calls(data, [pull(3)], [])
        assert re.sub("[`*]", "", text.split(" (", 1)[0]) in re.sub("[`*]", "", call["body"])
    return code, text


def on_gitlab(forge: Forge, commits: Mapping[str, str], name: str) -> tuple[int, str]:
    """The same for a merge request."""
    runner = forge.check_out(commits[name])
    script = "\n".join(parse(recipes.text("gitlab"))["exact"]["script"])
    done = forge.step(script, CI_MERGE_REQUEST_DIFF_BASE_SHA=forge.start)
    text = (runner.folder / "comment.md").read_text()
    assert text in done.stdout
    return done.returncode, text


OUTCOMES = {
    "same": (0, r"\*\*no change: the only launch is the same, and nothing was timed\*\* \(BASE = "),
    "worse": (1, r"\*\*HEAD is worse than BASE: .*\n\| load_sectors [^\n]* \| 4 \| 8 \| worse \|\n"),
    "wrong": (2, r"\*\*HEAD failed\*\* .*scale/naive.*elements wrong"),
    "broken": (128, r"\*\*No comparison\*\* \(exit code 128\): the log of the job tells why\.\n$"),
    "failing": (1, "$"),  # at the gate: nothing is compared
}


@runs_commands
@pytest.mark.parametrize("name", OUTCOMES)
def test_a_pull_request_is_judged(forge: Forge, branches: dict[str, str], name: str) -> None:
    code, text = on_github(forge, branches, name)
    expected, pattern = OUTCOMES[name]
    assert code == expected, text
    assert re.match(pattern, text, re.DOTALL), text
    assert ("BASE = " in text) == (forge.start[:8] in text)  # where the branch began, not the tip of main


@runs_commands
@pytest.mark.parametrize("name", ["same", "worse"])
def test_a_merge_request_is_judged(forge: Forge, branches: dict[str, str], name: str) -> None:
    code, text = on_gitlab(forge, branches, name)
    expected, pattern = OUTCOMES[name]
    assert code == expected, text
    assert re.match(pattern, text, re.DOTALL), text


@runs_commands
def test_new_commits_are_measured_and_kept(timing: tuple[Forge, str]) -> None:
    """An earlier run ended at the root. Of the two commits since, the newer one is a regression."""
    forge, head = timing
    workflow = parse(recipes.text("github-gpu"))
    steps = {step.get("name"): step.get("run", "") for step in workflow["jobs"]["measure"]["steps"]}
    output = forge.base / "output"
    output.write_text("")
    variables = {**workflow["env"], "GITHUB_OUTPUT": str(output)}
    runner = forge.check_out(head)
    done = forge.step(steps["Fetch the results"], **variables)
    assert done.returncode == 0, done.stderr
    assert runner.git("log", "--format=%s", "refs/heads/results") == "No results yet"
    runner.git("-C", "results", "commit", "-q", "--allow-empty", "-m", f"Results up to {forge.root}")

    done = forge.step(steps["Measure"], **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert output.read_text() == "measured=yes\ncode=1\n", done.stdout
    assert f"one of {head[:8]} comes first\n" in done.stdout
    assert "1 new of 1 commits" in done.stdout
    assert re.search(f"{head[:7]} For main: 1 linked, .*\n  worse: row_sum/plain ", done.stdout), done.stdout
    assert "\nnote: new launches have nothing to be compared with: `bench --all` measures them\n" in done.stdout
    kept = runner.git("--git-dir", str(forge.server.folder / ".git"), "ls-tree", "-r", "--name-only", "results")
    names = {re.sub(r"[^/]*/|(?<=\.)[0-9a-f]{8}(?=\.)|(?<=py).*(?=\.json)", "", line) for line in kept.splitlines()}
    of_links = {f"{commit[:8]}..links.jsonl" for commit in (head, forge.start)}
    assert names >= {f"{head[:8]}-checkout-py.json", *of_links}
    assert (runner.folder / workflow["env"]["SITE"] / "index.html").is_file()
    assert forge.step(steps["Verdict"], CODE="1").returncode == 1

    forge.check_out(head)  # the next run, with nothing new
    output.write_text("")
    for name in ("Fetch the results", "Measure"):
        done = forge.step(steps[name], **variables)
        assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == f"{head} is measured\n"
    assert output.read_text() == ""
    assert list((forge.work / "results").glob(f"*/{head[:8]}-*.json"))


@runs_commands
def test_what_a_label_measured_is_merged(timing: tuple[Forge, str]) -> None:
    forge, head = timing
    workflow = parse(recipes.text("github-label"))
    steps = {step.get("name"): step.get("run", "") for step in workflow["jobs"]["measure"]["steps"]}
    runner = forge.check_out(head)
    variables = {**workflow["env"], "BASE_SHA": forge.start, "GITHUB_STEP_SUMMARY": str(forge.base / "summary.md")}
    done = forge.step(steps["Compare"], **variables)
    assert done.returncode == 1, done.stdout + done.stderr
    assert json.loads((runner.folder / "comment.json").read_text())["summary"].startswith("HEAD is worse than BASE: ")
    done = forge.step(steps["Link"], **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    (upload,) = [
        step for step in workflow["jobs"]["measure"]["steps"] if "links" in step.get("with", {}).get("name", "")
    ]
    (left,) = runner.folder.glob(upload["with"]["path"].replace("${{ env.RESULTS }}", workflow["env"]["RESULTS"]))
    artifact = forge.base / "artifact" / left.parent.name
    shutil.copytree(left.parent, artifact)
    forge.check_out(head)
    done = forge.step(f"kernelwatch merge {artifact.parent}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search("For main: 1 link.*\n1 session came, 0 were there already\n$", done.stdout), done.stdout
    assert (forge.work / "results" / left.parent.name / left.name).read_text() == (artifact / left.name).read_text()


# --- the comment ---------------------------------------------------------------------------------------------------

EVENT = {
    "name": "kernelwatch",
    "head_sha": "5" * 40,
    "head_branch": "faster",
    "head_repository": {"id": 7, "owner": {"login": "stranger"}},
    "html_url": "https://github.com/us/kernels/actions/runs/1",
}
MARK = "<!-- kernelwatch versus -->"
BOT = {"login": "github-actions[bot]"}


def pull(number: int, sha: str = "5" * 40, repository: int = 7, state: str = "open") -> dict[str, Any]:
    head = {"sha": sha, "ref": "faster", "repo": {"id": repository}, "user": {"login": "stranger"}}
    return {"number": number, "state": state, "head": head}


def comment(id: int, issue: int, body: str, user: Mapping[str, str] = BOT) -> dict[str, Any]:
    return {"id": id, "issue": issue, "user": user, "body": body}


def post(
    text: Path, pulls: list[dict[str, Any]], comments: list[dict[str, Any]], **event: str
) -> "subprocess.CompletedProcess[str]":
    """Run the script that posts, in Node.js with a stub of GitHub's API; it prints the calls that write."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed, which runs the script of actions/github-script")
    (script,) = [
        step["with"]["script"]
        for step in parse(recipes.text("github-comment"))["jobs"]["comment"]["steps"]
        if step["uses"].startswith("actions/github-script@")
    ]
    given = {"script": script, "event": EVENT | event, "pulls": pulls, "comments": comments}
    return subprocess.run(
        [node, str(POST)],
        input=json.dumps(given),
        env={"PATH": os.environ["PATH"], "DATA_FILE": str(text)},
        capture_output=True,
        text=True,
        check=False,
    )


def calls(
    text: Path, pulls: list[dict[str, Any]], comments: list[dict[str, Any]], **event: str
) -> list[dict[str, Any]]:
    done = post(text, pulls, comments, **event)
    assert done.returncode == 0, done.stderr
    written: list[dict[str, Any]] = json.loads(done.stdout)
    return written


TABLE = {"title": "", "headers": ["figure", "BASE", "HEAD"], "figures": [1, 2], "rows": [["load_sectors", "4", "8"]]}
DATA_OF: dict[str, Any] = {
    "version": 1,
    "summary": "HEAD is worse than BASE: 1 exact figure",
    "what": "BASE = main (1234567)",
    "tables": [TABLE],
    "lines": ["1 exact figure compared, 1 differs"],
}
BODY = """**`HEAD is worse than BASE: 1 exact figure`** `BASE = main (1234567)`



| `figure` | `BASE` | `HEAD` |
| --- | ---: | ---: |
| `load_sectors` | `4` | `8` |

- `1 exact figure compared, 1 differs`
"""


def data_file(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps({**DATA_OF, **changes}))
    return path


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return data_file(tmp_path / "comment.json")


def test_a_comment_is_added_once_and_then_updated(written: Path) -> None:
    (added,) = calls(written, [pull(3)], [comment(1, 3, "Looks good", {"login": "someone"})])
    assert (added["name"], added["owner"], added["repo"], added["issue_number"]) == ("create", "us", "kernels", 3)
    assert added["body"].startswith(f"{MARK}\n{BODY}")
    before = [
        *(comment(1, 3, f"{MARK}\nforged", {"login": "stranger"}), comment(2, 3, "Another workflow's")),
        comment(4, 3, added["body"]),
        comment(5, 9, added["body"]),
    ]
    data_file(written, summary="no change", tables=[], lines=[])
    (updated,) = calls(written, [pull(3)], before)
    assert (updated["name"], updated["comment_id"]) == ("update", 4)
    assert updated["body"].startswith(f"{MARK}\n**`no change`** `BASE = main (1234567)`\n")


def test_what_a_gpu_measured_is_a_comment_of_its_own(written: Path) -> None:
    name = parse(recipes.text("github-label"))["name"]
    exact = comment(1, 3, f"{MARK}\n")
    (added,) = calls(written, [pull(3)], [exact], name=name)
    assert (added["name"], added["body"][:50]) == ("create", f"<!-- kernelwatch label -->\n{BODY}"[:50])
    (updated,) = calls(written, [pull(3)], [exact, comment(2, 3, added["body"])], name=name)
    assert (updated["name"], updated["comment_id"]) == ("update", 2)


@pytest.mark.parametrize(
    "other", [pull(3, sha="6" * 40), pull(3, repository=8), pull(3, state="closed")], ids=["newer", "fork", "closed"]
)
def test_nothing_is_posted_on_another_pull_request(written: Path, other: dict[str, Any]) -> None:
    assert calls(written, [other], []) == []
    assert [call["issue_number"] for call in calls(written, [other, pull(8)], [])] == [8]


HOSTILE = [
    "[x][1]\n\n[1]: //evil",
    "[y](www.evil) ![x](https://evil) <https://evil> https&colon;//evil www.evil mail@evil.org",
    "&commat;team @team #1 GH-1 us/kernels#1 &#35;1 5555555555555555555555555555555555555555",
    "`${process.exit(3)}` <img src=x> <!-- --> <details>",
    "`[x](https://evil)` ``` @team",
    "| @team | [z](https://evil) |\n\n# @team\n\n- @team",
    "\u2028[x]: https://evil\u2029\u0085\r\n@team \u202e\u200b",
    "\\",
    "$`x`$ $$x$$ :tada: ~~~ ***",
    "",
]


@pytest.mark.parametrize("hostile", [*HOSTILE, "".join(HOSTILE), " x ".join(HOSTILE)])
def test_no_text_is_more_than_code(written: Path, hostile: str) -> None:
    """No link but to the run, no picture, no HTML but the mark; of what is no code only the words of the recipe."""
    table = {
        "title": hostile,
        "headers": [hostile, "b"],
        "figures": [hostile],
        "rows": [["a", hostile], [hostile, "b"]],
    }
    data_file(written, summary=hostile, what=hostile, tables=[table, TABLE], lines=[hostile, "last"])
    (call,) = calls(written, [pull(3)], [])
    tokens = MarkdownIt("commonmark").enable("table").parse(call["body"])
    inline = [each for token in tokens for each in token.children or ()]
    assert {token.type.removesuffix("_open").removesuffix("_close") for token in tokens} <= {
        *("html_block", "paragraph", "inline", "table", "thead", "tbody", "tr", "th", "td"),
        *("bullet_list", "list_item"),
    }
    assert [token.content for token in tokens if token.type == "html_block"] == [f"{MARK}\n"]
    assert sum(token.type == "tr_open" for token in tokens) == 3 + 2
    kinds = {"text", "code_inline", "softbreak", "strong_open", "strong_close", "link_open", "link_close"}
    assert {each.type for each in inline} <= kinds
    assert [each.attrs for each in inline if each.type == "link_open"] == [{"href": EVENT["html_url"]}]
    assert {each.content.strip() for each in inline if each.type == "text"} <= {"", "no summary", "55555555"}
    assert inline[-4].content == "last"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"version": 2}, "should be of version 1"),
        ({"summary": {"a": 1}}, "a text should be a string"),
        ({"lines": "@team"}, "its lines should be a list"),
        ({"lines": [["@team"]]}, "a text should be a string"),
        ({"tables": [{**TABLE, "rows": [["a", "b"]]}]}, "a row lacks a cell"),
        ({"tables": [None]}, "its headers should be a list"),
        ({"what": "x" * (5 << 20)}, "bytes, more than"),
    ],
)
def test_other_data_is_not_posted(written: Path, changes: dict[str, Any], why: str) -> None:
    done = post(data_file(written, **changes), [pull(3)], [])
    assert done.returncode == 1
    assert why in done.stderr
    assert done.stdout == ""


def test_a_comparison_that_failed_is_told(written: Path) -> None:
    written.write_text('{"version": 1, "code": 128}')
    (call,) = calls(written, [pull(3)], [])
    assert "**No comparison** (exit code 128): the log of the job tells why.\n" in call["body"]


def test_a_text_is_cut_at_what_github_takes(written: Path) -> None:
    data_file(written, lines=["\U0001f600@" * 150] * 1000)
    (call,) = calls(written, [pull(3)], [])
    assert 50_000 < len(call["body"].encode("utf-16-le")) // 2 < 65536
    assert "(shortened: the summary of the run has all)" in call["body"]


def test_a_link_is_not_followed(written: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    written.rename(secret)
    written.symlink_to(secret)
    done = post(written, [pull(3)], [])
    assert done.returncode == 1
    assert "comment.json is no file" in done.stderr
