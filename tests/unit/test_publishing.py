"""What is published beside the code: README.md is whole on any page, and the files of .github/ have their schemas."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from readme_renderer import markdown

import scrapyd_dist

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
#: the address of the repository
(HOME,) = re.findall(
    r'^Source = "(.+)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE
)
#: how the address of a file begins: of its page, and of the file itself
FILES = (f"{HOME}/blob/main/", f"{HOME.replace('github.com', 'raw.githubusercontent.com')}/main/")
SCHEMAS = {
    ".github/workflows/*.yml": "github-workflows",
    ".github/ISSUE_TEMPLATE/[!c]*.yml": "github-issue-forms",
    ".github/ISSUE_TEMPLATE/config.yml": "github-issue-config",
    ".github/dependabot.yml": "dependabot",
    "CITATION.cff": "citation-file-format",
}


def rendered_links() -> list[str]:
    page = markdown.render(README)
    assert page
    return re.findall(r'(?:href|src)="([^"]*)"', page)


def test_the_readme_has_whole_addresses_only() -> None:
    links = rendered_links()
    assert len(links) > 5
    relative = [link for link in links if not link.startswith(("https://", "#"))]
    assert relative == [], (
        f"An index page has no such files beside it. Begin them with {FILES[0]}, pictures with {FILES[1]}"
    )


def test_an_index_page_shows_all_of_the_readme() -> None:
    written = re.findall(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"", README)
    assert set(map("".join, written)) - set(rendered_links()) == set()


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "SECURITY.md",
        ".github/ISSUE_TEMPLATE/config.yml",
        "docs/reference/stability.md",
    ],
)
def test_addresses_of_the_repository_are_those_of_its_files(name: str) -> None:
    addresses = re.findall(
        rf"{FILES[0]}[^)\s\"#>]+|{FILES[1]}[^)\s\"#>]+", (ROOT / name).read_text("utf-8")
    )
    paths = [address.removeprefix(FILES[0]).removeprefix(FILES[1]) for address in addresses]
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_one_address_is_that_of_the_repository() -> None:
    files = [
        *ROOT.glob("*.md"),
        *ROOT.glob("*.cff"),
        *(ROOT / ".github").rglob("*.yml"),
        *(ROOT / "docs").rglob("*.md"),
    ]
    owner, name = HOME.split("/")[-2:]
    found = {
        match
        for path in files
        for match in re.findall(rf"github\.com/([\w-]+/{name})\b", path.read_text("utf-8"))
    }
    assert found == {f"{owner}/{name}"}


@pytest.mark.parametrize("pattern", SCHEMAS)
def test_a_file_that_other_programs_read_has_its_schema(pattern: str) -> None:
    files = [str(path) for path in ROOT.glob(pattern)]
    assert files
    line = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        f"vendor.{SCHEMAS[pattern]}",
        *files,
    ]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_the_workflows_make_what_the_makefile_has() -> None:
    made = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    texts = [path.read_text("utf-8") for path in (ROOT / ".github" / "workflows").glob("*.yml")]
    named = {
        word
        for text in texts
        for words in re.findall(r"(?:target:|run: make) \[?([a-z ]+)", text)
        for word in words.split()
    }
    assert {"test", "acceptance", "full", "wheel", "docs", "types"} <= named <= made


def test_each_python_of_the_classifiers_is_in_the_matrix() -> None:
    classifiers = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text("utf-8"))
    (matrix,) = re.findall(
        r"python: \[(.+)\]", (ROOT / ".github/workflows/ci.yml").read_text("utf-8")
    )
    assert re.findall(r"3\.\d+", matrix) == classifiers


def test_a_citation_is_of_this_version() -> None:
    assert f"\nversion: {scrapyd_dist.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
