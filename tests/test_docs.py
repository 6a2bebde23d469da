"""The documents are true: commands have the flags and settings that are written, Python runs, links lead somewhere."""

import ast
import functools
import html.parser
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
from helpers import ROOT

import traces_jax
from traces_jax import config as config_lib

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
# What was seen, with the settings of its time.
HISTORY = ("CHANGELOG.md", "docs/journal.md", "docs/results.md")
# Before a block that no test can run, with the reason: <!-- not run: needs a finished run -->
NOT_RUN = "<!-- not run: "
# Programs of others that the documents tell to call.
OTHERS = ("apt", "pip", "python3", ".venv/bin/pip", "export", "taskset", "git", "cd")


def name(page: pathlib.Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: pathlib.Path) -> list[tuple[str, str, bool, int]]:
    """Language, text, whether it is marked as not run, and line of each fenced block."""
    found = []
    lines = page.read_text().splitlines()
    number = 0
    while number < len(lines):
        opening = re.fullmatch(r"\s*```(\w*)", lines[number])
        if opening:
            end = next(later for later in range(number + 1, len(lines)) if lines[later].strip() == "```")
            marked = number > 0 and lines[number - 1].startswith(NOT_RUN)
            found.append((opening[1], "\n".join(lines[number + 1 : end]), marked, number + 1))
            number = end
        number += 1
    return found


def all_blocks(*languages: str) -> list:
    return [
        pytest.param(text, marked, id=f"{name(page)}:{line}")
        for page in PAGES
        for language, text, marked, line in blocks(page)
        if language in languages
    ]


def test_every_block_is_of_a_kind_that_is_tested_or_says_why_not():
    for page in PAGES:
        for language, text, marked, line in blocks(page):
            assert marked or language in ("sh", "python") or drawing(text) or is_shell(text), f"{name(page)}:{line}"


def drawing(text: str) -> bool:
    """Whether a block is a picture made of lines, such as that of ARCHITECTURE.md."""
    return any(sign in text for sign in "─►")


def is_shell(text: str) -> bool:
    return text.startswith(("python -m ", "make ", "pip "))


@functools.cache
def flags_of(module: str) -> tuple[frozenset[str], frozenset[str]]:
    """Flags that a command's file defines, and those without a value. Read, not imported: absl's are global."""
    file = ROOT / f"{module.replace('.', '/')}.py"
    file = file if file.exists() else file.with_suffix("") / "__main__.py"
    assert file.exists(), f"there is no command {module}"
    tree = ast.parse(file.read_text())
    names, switches = set(), set()
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        attribute = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        constants = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        if attribute.startswith("DEFINE_") and constants:
            names.add(constants[0])
            switches |= {constants[0]} if attribute == "DEFINE_boolean" else set()
        if attribute == "add_argument":
            names |= {one.lstrip("-") for one in constants if one.startswith("--")}
    return frozenset(names), frozenset(switches)


def check_command(line: str) -> None:
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words = words[1:]
    if not words or words[0] in OTHERS:
        check_extras(line)
        return
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(word for word in words[1:] if "=" not in word) <= set(targets), line
        return
    if words[0] == "traces-jax":
        words = ["python", "-m", f"traces_jax.{words[1]}", *words[2:]] if not words[1].startswith("-") else []
    if not words:
        return
    assert words[:1] in (["python"], [".originals/bin/python"]), f"nothing checks {line!r}"
    if words[1] == "-c":
        return
    assert words[1] == "-m", line
    check_flags(words[2], words[3:], line)


def check_extras(line: str) -> None:
    for extras in re.findall(r"(?:traces_jax|\.)\[([\w,]+)\]", line):
        known = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
        assert set(extras.split(",")) <= set(known), line


def check_flags(module: str, words: list[str], line: str) -> None:
    if not module.startswith(("traces_jax", "benchmarks")):
        return
    known, switches = flags_of(module)
    settings: dict[str, str] = {}
    experiment = None
    while words:
        word, *words = words
        if not word.startswith("--"):
            assert not word.startswith(("experiments/", "examples/")) or (ROOT / word).exists(), line
            continue
        flag, given, value = word[2:].partition("=")
        if flag.startswith("config."):
            settings[flag.removeprefix("config.")] = value if given else words.pop(0)
            continue
        plain = flag if flag in known else flag.removeprefix("no")
        assert plain in known or flag == "help", f"{module} has no --{flag}: {line}"
        if not given and plain not in switches and words and not words[0].startswith("--"):
            value = words.pop(0)
        experiment = value if flag == "config" else experiment
    check_settings(experiment, settings, line)


def check_settings(experiment: str | None, settings: dict[str, str], line: str) -> None:
    """The experiment is there, and its settings with these changes are accepted."""
    if experiment is None:
        return
    file = next((path for path in places(experiment) if path.exists()), None)
    assert file, f"no experiment {experiment}: {line}"
    space: dict = {}
    exec(compile(file.read_text(), str(file), "exec"), space)
    tree = space["get_config"]().to_dict()
    for path, text in settings.items():
        field = config_lib.check_path(path)
        assert field is not None, line
        # Three dots and capitals stand for something of the reader's.
        if text in ("...", "FILE.pt"):
            continue
        group = tree
        *parents, last = path.split(".")
        for parent in parents:
            group = group[parent]
        group[last] = (
            text if field.type is str else ast.literal_eval({"true": "True", "false": "False"}.get(text, text))
        )
    config_lib.from_dict(tree)


def places(experiment: str) -> list[pathlib.Path]:
    folders = (ROOT / "experiments", ROOT / "examples", ROOT / "traces_jax" / "experiments")
    return [ROOT / experiment, *(folder / f"{experiment}.py" for folder in folders)]


@pytest.mark.parametrize(("text", "marked"), all_blocks("sh", ""))
def test_commands_have_these_flags_and_settings(text: str, marked: bool):
    if marked or drawing(text):
        return
    for line in text.replace("\\\n", " ").splitlines():
        for command in line.split(" && "):
            check_command(command)


@pytest.mark.parametrize("line", [
    "python -m traces_jax.train --config ball_run --config.seed=2x", "python -m traces_jax.train --config nothing",
    "python -m traces_jax.train --config ball_run --config.ppo.clap=0.1",
    "python -m traces_jax.trains --config ball_run",
    "python -m traces_jax.evaluate --run runs/ant --episode 100", "make coffee", "pip install 'traces_jax[coffee]'",
    "python -m traces_jax.train --config ball_run --config.constraint.d=2", "coffee --milk",
])  # fmt: skip
def test_wrong_commands_are_noticed(line: str):
    with pytest.raises((AssertionError, config_lib.ConfigError, ValueError, SyntaxError)):
        check_command(line)


@pytest.mark.parametrize(("text", "marked"), all_blocks("python"))
def test_python_runs(text: str, marked: bool, tmp_path, monkeypatch):
    """Blocks that are not run are Python at least, and name what there is."""
    monkeypatch.chdir(tmp_path)
    code = compile(text, "a block", "exec")
    if not marked:
        exec(code, {"__name__": "a_block"})
        return
    names = {
        node.attr
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "traces_jax"
    }
    package = {path.stem for path in (ROOT / "traces_jax").iterdir()}
    assert names <= {*dir(traces_jax), *package}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_settings_in_the_text_exist(page: pathlib.Path):
    if name(page) in HISTORY:
        return
    for path in re.findall(r"--config\.((?:\w+\.)*\w+)(?=[=`\s])", page.read_text()):
        assert config_lib.check_path(path) is not None, path


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: pathlib.Path):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset|href)="([^"]+)"', text)
    for link in links:
        if link.startswith("http"):
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target) if target else page
        assert file.exists(), link
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), link


def anchors(page: pathlib.Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


class References(html.parser.HTMLParser):
    """What a page loads when it is opened; not what its links lead to."""

    def __init__(self, text: str):
        super().__init__()
        self.loaded: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        loads = {"src", "srcset", "data"} | ({"href"} if tag == "link" else set())
        self.loaded += [value for key, value in attrs if key in loads and value]


def test_the_site_is_built_without_a_warning_and_loads_nothing_from_outside(tmp_path):
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) >= len(list((ROOT / "docs").rglob("*.md")))
    for page in pages:
        loaded = References(page.read_text()).loaded
        assert loaded and not [one for one in loaded if re.match(r"(https?:)?//", one)], page.name
        missing = [one for one in loaded if not one.startswith("data:") and not target(page, one).exists()]
        # The page for wrong addresses names its parts from the root of a server.
        assert not missing or page.name == "404.html", page.name
    assert not [one for one in tmp_path.rglob("*.css") if "@import" in one.read_text() or "//fonts." in one.read_text()]


def target(page: pathlib.Path, reference: str) -> pathlib.Path:
    return page.parent / reference.partition("?")[0].partition("#")[0]
