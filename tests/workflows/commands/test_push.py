"""`push` fills a repository of a hub, here one on loopback, and touches none with other content."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparring.workflows.command_line import main
from tests.support import hub
from tests.support.hub import Hub
from tests.support.tiny import Said


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that this process takes for the one there is."""
    from huggingface_hub import constants

    with hub.hub() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
        monkeypatch.setenv("HF_TOKEN", hub.TOKEN)
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As `export` writes a retriever, as far as it matters here."""
    folder = tmp_path / "out" / "retriever"
    for name in ("sparring.json", "README.md", "config.json", "1_Pooling/config.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}" if name.endswith("json") else "---\ntags: [sparring]\n---\n# A card\n")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_becomes_a_repository_and_is_updated(server: Hub, folder: Path, said: Said) -> None:
    """What the folder has no more goes from the repository too."""
    assert main(["push", str(folder), "me/mine", "--private"]) == 0, said()
    assert said()[0].endswith(f"{folder} is {server.url}/me/mine/commit/aaa\n")
    assert server.repositories["me/mine"]["main"] == {".gitattributes": b"", **contents(folder)}
    assert server.private == {"me/mine"}
    (folder / "config.json").unlink()
    (folder / "sparring.json").write_text('{"new": 1}')
    assert main(["push", str(folder), "me/mine"]) == 0
    assert server.repositories["me/mine"]["main"] == {".gitattributes": b"", **contents(folder)}


def test_a_branch_is_made_where_it_is_asked_for(server: Hub, folder: Path) -> None:
    assert main(["push", str(folder), "me/mine"]) == 0
    (folder / "config.json").write_text("[]")
    assert main(["push", str(folder), "me/mine", "--revision", "v2"]) == 0
    branches = server.repositories["me/mine"]
    assert branches["v2"] == {".gitattributes": b"", **contents(folder)}
    assert branches["main"]["config.json"] == b"{}"
    assert server.private == set()


def test_a_repository_with_other_content_is_left_alone(server: Hub, folder: Path, said: Said) -> None:
    expected = {
        "main": {".gitattributes": b"", "README.md": b"", "pytorch_model.bin": b"x", "a": b"", "b": b"", "c": b""}
    }
    server.repositories["me/other"] = {"main": dict(expected["main"])}
    for words in ([], ["--revision", "v2"]):
        assert main(["push", str(folder), "me/other", *words]) == 2
        assert said()[1] == (
            "error: me/other: exists with other content (a, b, c and 1 more); accepted: a new name, an empty "
            "repository, or one that this command has filled\n"
        )
    assert server.repositories["me/other"] == expected
    server.repositories["me/new"] = {"main": {".gitattributes": b"", "README.md": b"# Empty"}}
    assert main(["push", str(folder), "me/new"]) == 0
    assert server.repositories["me/new"]["main"]["README.md"] == (folder / "README.md").read_bytes()


def test_each_mistake_is_one_line(
    server: Hub, folder: Path, said: Said, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from huggingface_hub import constants

    def says(error: str, *words: str) -> None:
        assert main(["push", *words]) == 2
        assert re.fullmatch(rf"error: {error}\n", said()[1]), words

    says(r".*nowhere: there is no such folder; accepted: what `.* export` wrote, .*", str(tmp_path / "nowhere"), "a/b")
    says(r".*1_Pooling: is not a model or system of ours; accepted: .*", str(folder / "1_Pooling"), "a/b")
    says(r".*out: holds several things; push one of them: .*retriever", str(folder.parent), "a/b")
    says(r"mine: is not the id of a repository; accepted: OWNER/NAME of .*", str(folder), "mine")
    says(r"me/a\.\.b: .*Cannot have -- or \.\. in repo_id.*", str(folder), "me/a..b")
    server.closed_to.add("them")
    says(r"them/x: the token may not write there; accepted: .*", str(folder), "them/x")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    says(r"me/x: the hub does not accept the token; make one that may write, .*", str(folder), "me/x")
    monkeypatch.setenv("HF_TOKEN", "t\u00f6ken")
    says(r"push: HF_TOKEN: the token has characters that no token of the hub has; .*", str(folder), "me/x")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    says(r"push: there is no token for the hub; make one in .*, or set HF_TOKEN", str(folder), "me/x")
    monkeypatch.setenv("HF_TOKEN", hub.TOKEN)
    monkeypatch.setattr(constants, "ENDPOINT", "http://me:swordfish@127.0.0.1:9")
    says(r"me/x: http://\*\*\*@127\.0\.0\.1:9 cannot be reached: .*", str(folder), "me/x")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    says(r"me/x: nothing is sent while HF_HUB_OFFLINE is set", str(folder), "me/x")
    assert server.repositories == {}
