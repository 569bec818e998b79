"""What README and the documentation say is so: their commands parse, their configs read, their links lead somewhere."""

from __future__ import annotations

import doctest
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sparring.components.sources.records import Bad
from sparring.components.yaml_files import yaml_text
from sparring.workflows import command_line as command_line
from sparring.workflows.experiments import loading
from sparring.workflows.program import located
from sparring.workflows.steps.tokenize import TokenizeConfig, tokenize
from sparring.workflows.steps.train import train
from tests.support import tiny, toy
from tests.support.tiny import ROOT
from tests.support.trainings import groups

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SKILL.md")),
    *sorted((ROOT / "docs" / "pages").rglob("*.md")),
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
PROGRAMS = ("sparring ", "python -m workflows ")
SEARCHED = ("install", "reranker", "cross-encoder", "elasticsearch", "how long", "gpu", "click")
"""Words that newcomers search for. A title has each."""


def place(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(language: str) -> list[tuple[str, str]]:
    """Fenced blocks of a language, with the page that each is on."""
    result = [(place(page), block) for page in PAGES for block in BLOCK.findall(page.read_text())]
    return [(page, text) for page, (kind, text) in result if kind == language]


def commands() -> list[tuple[str, str]]:
    """List our commands in blocks of commands, without the `&` of a shell's background job."""
    lines = [
        (page, line.removesuffix(" &")) for page, text in blocks("") for line in text.replace("\\\n", " ").splitlines()
    ]
    result = [
        (page, line[line.index(program) + len(program) :].removesuffix("&"))
        for page, line in lines
        for program in PROGRAMS
        if re.match(rf"\s*(\w+=\S+ )*{program}", line)
    ]
    return list(dict.fromkeys(result))


@pytest.mark.parametrize(("page", "command"), commands())
def test_a_command_parses_and_its_config_is_there(page: str, command: str) -> None:
    words = shlex.split(command, comments=True)
    arguments = command_line.parser().parse_args(words)
    config = getattr(arguments, "config", None)
    if config is not None and str(config).startswith("configs/"):
        assert located(Path(config)).is_file(), page


@pytest.mark.parametrize(("page", "text"), blocks("yaml"))
def test_a_config_reads(page: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = yaml.safe_load(text)
    if not tree.keys() & {"recipe", "base"} or str(tree.get("recipe")).startswith("my_package"):
        pytest.skip("part of a config, or of another test")
    if "base" in tree:
        tree["base"] = str((ROOT / "configs" / "tune" / tree["base"]).resolve())
    file = tmp_path / "page.yaml"
    file.write_text(yaml_text(tree))
    monkeypatch.chdir(ROOT)
    loading.read_config(file, [])


GUIDES = sorted((ROOT / "docs" / "pages" / "guides").glob("extending*.md"))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """`my_package` as it stands on the pages, whose text is returned."""
    page = "\n".join(guide.read_text() for guide in GUIDES)
    for name, text in re.findall(r"^`my_package/(\w+).py`.*?^```python\n(.*?)^```", page, re.M | re.S):
        (tmp_path / "my_package").mkdir(exist_ok=True)
        (tmp_path / "my_package" / "__init__.py").touch()
        (tmp_path / "my_package" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return page


def test_the_reader_of_the_guide_reads_its_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "pages" / "guides" / "extending-formats.md").read_text()
    [text] = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    (tmp_path / "reader_of_the_guide.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    source_class = importlib.import_module("reader_of_the_guide").Source
    tables = {"docs": "id,text\nd1,a red cat\n", "questions": "id,text,split\nq1,cat,test\n"}
    tables["links"] = "question,doc\nq1,d1\nq1,\n"
    for name, table in tables.items():
        (tmp_path / f"{name}.csv").write_text(table)
    source = source_class(format="questions", path=str(tmp_path))
    assert [path.name for path in source.files().values()] == ["docs.csv", "questions.csv", "links.csv"]
    assert [(record.doc_id, record.text) for record in source.read_documents()] == [("d1", "a red cat")]
    assert [(record.query_id, record.split) for record in source.read_queries()] == [("q1", "test")]
    good, bad = source.read_qrels()
    assert (good.query_id, good.doc_id, good.split) == ("q1", "d1", "test")
    assert isinstance(bad, Bad)
    assert bad.place.endswith("links.csv:3")


def test_the_objective_of_the_guide_trains_a_ranker(package: str, encoder: Path, tmp_path: Path) -> None:
    data, model = toy.write_data(tmp_path / "data"), toy.ranker_config(encoder, pooling="mean")
    ranker, rows = toy.started(tmp_path / "ranker", model), toy.write_groups(tmp_path / "groups", groups(8))
    tokens, out = tmp_path / "tokens", tmp_path / "out"
    tokens.mkdir(), out.mkdir()
    tokenize(tokens, toy.INLINE, data=data, model=ranker, config=TokenizeConfig())
    config = toy.train_config(updates=2, losses=[{"function": "binary_cross_entropy"}])
    inputs = {"rows": rows, "dev": None, "data": data, "tokens": tokens, "start": ranker, "seed": [1]}
    assert train(out, toy.INLINE, objective="my_package.pointwise", config=config, **inputs)["updates"] == 2


def test_the_package_of_ones_own_is_run(package: str, beir: Path, encoder: Path, tmp_path: Path) -> None:
    """The loss, the objective, the kind and the recipes of the guides, as they stand there."""
    page = package
    assert doctest.testmod(importlib.import_module("my_package.losses")) == (0, 6)
    [contract] = re.findall(r"^SPARRING_TEST_LOSSES=(?:.*\\\n)*.*", page, re.M)
    for written, folder in {"/path/to/its/parent": str(tmp_path), ".venv/bin/python": sys.executable}.items():
        contract = contract.replace(written, folder)
    done = subprocess.run(["sh", "-c", f"{contract} -n 0"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert re.search(r"^\d\d passed", done.stdout, re.M), done.stdout
    small = tiny.dpr(beir, encoder)
    wanted = {"pretrain": {"SimCSE"}, "two-rounds": {"first", "second", "start model"}, "bm25-only": set[str]()}
    for name, systems in wanted.items():
        [text] = re.findall(rf"^`{name}.yaml`.*?^```yaml\n(.*?)^```", page, re.M | re.S)
        config = yaml.safe_load(text)
        config |= {key: small[key] for key in ("data", "k", "encode", "retriever") if key in config or key == "k"}
        for part in [config] if "train" in config else [config[key] for key in ("first", "second") if key in config]:
            part["train"] |= {"updates": 2, "batch": 4}
        place = tiny.place(tmp_path / name, config)
        assert place("run") == 0
        assert {row["system"] for row in place.metrics()["rows"]} >= {"BM25", *systems}
        assert place("clean") == place("export", str(tmp_path / f"{name} exported")) == 0
    kind = {"kind": "my_package.manhattan", "model": small["retriever"]["model"]}
    place = tiny.place(tmp_path / "manhattan", small | {"retriever": kind})
    assert place("run") == 0
    assert {"start model", "retriever"} <= {row["system"] for row in place.metrics()["rows"]}


def test_a_link_leads_to_a_file() -> None:
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())]
    lost = [
        (place(page), link)
        for page, link in links
        if not link.startswith("https://") and "reference/" not in link and not (page.parent / link).exists()
    ]
    assert lost == []


def test_the_files_of_the_walks_through_the_code_are_there() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    files = re.findall(r"`(\w+/\w+\.py)`", page.partition("## Follow one thing")[2].partition("\n## ")[0])
    assert len(files) > 30
    code = [path for folder in ("components", "workflows") for path in (ROOT / folder).rglob("*.py")]
    assert [file for file in files if not any(path.as_posix().endswith(f"/{file}") for path in code)] == []


def test_an_anchor_that_the_readme_names_is_on_its_page() -> None:
    """MkDocs checks the anchors between pages."""
    links = re.findall(r"\]\((docs/[^)#]+)#([^)]+)\)", (ROOT / "README.md").read_text())

    def anchors(page: Path) -> set[str]:
        text = page.read_text()
        headings = [re.sub(r"[^\w\s-]", "", line).strip().lower() for line in re.findall(r"^#+ (.*)", text, re.M)]
        return {*(re.sub(r"\s+", "-", heading) for heading in headings), *re.findall(r'id="([^"]+)"', text)}

    assert [link for link in links if link[1] not in anchors(ROOT / link[0])] == []


def test_the_picture_of_the_readme_differs_in_colours_alone() -> None:
    light, dark = ((ROOT / f"docs/pages/pictures/overview-{mode}.svg").read_text() for mode in ("light", "dark"))
    style = re.compile(r"<style>.*?</style>", re.S)
    assert light != dark
    assert style.sub("", light) == style.sub("", dark)


def test_an_error_that_is_explained_is_one_that_is_said() -> None:
    text = (ROOT / "docs" / "pages" / "errors.md").read_text()
    explained = re.findall(r"^### `(.+)`$", text, re.M)
    assert len(explained) > 10
    code = [path for folder in ("workflows", "components", "cluster") for path in (ROOT / folder).rglob("*.py")]
    code.append(ROOT / "cluster" / "find-python.sh")
    message = "\n".join(path.read_text() for path in [*code, ROOT / "Makefile"])
    assert [line for line in explained if line not in message] == []


def test_the_documentation_builds_and_needs_no_network(tmp_path: Path) -> None:
    """Without a warning, with a page for each recipe and each loss."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", "docs/mkdocs.yml", "-d", str(tmp_path)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=quiet)
    assert done.returncode == 0, done.stderr  # also for a link or an anchor that leads nowhere
    html = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*.html")}
    assert {f"reference/configs/{name}.html" for name in loading.recipe_names()} <= html.keys()
    assert "same_tower" in html["reference/losses.html"]
    assert "update_seconds" in html["reference/profile.html"]
    assert "max_tokens_per_pass" in html["errors.html"]
    titles = [
        entry["title"].lower() for entry in json.loads((tmp_path / "search/search_index.json").read_text())["docs"]
    ]
    assert [words for words in SEARCHED if not any(words in title for title in titles)] == []
    undescribed = [
        (name, row)
        for name, text in html.items()
        if name.startswith("reference/")
        for row in re.findall(r"<tr>.*?</tr>", text, re.S)
        if re.search(r"<t[dh]>\s*</t[dh]>\s*</tr>", row)
    ]
    assert undescribed == []
    fetched = [
        (name, url)
        for name, text in html.items()
        for url in re.findall(r'<(?:script|img|link)[^>]*"(https?:[^"]+)"', text)
    ]
    assert fetched == []
