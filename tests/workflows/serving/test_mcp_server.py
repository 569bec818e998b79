"""The tools of `serve --mcp`, called by the protocol's own client."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from sparring.components.config import UserError
from sparring.workflows import ROOT
from sparring.workflows.serving import mcp_server
from sparring.workflows.serving.answering import Answering, Summary
from sparring.workflows.serving.marks import Marks
from sparring.workflows.serving.metrics import Metrics
from tests.support import asgi, tiny
from tests.support.asgi import DENSE, LEXICAL
from tests.support.tiny import Place, Said


def served(folder: Path) -> tuple[Any, Marks]:
    """Make a server of two systems that need no models."""
    near, words = asgi.system("near", dense=DENSE)[0], asgi.system("words", lexical=LEXICAL)[0]
    systems = {"near": near, "words": words}
    answering = Answering(systems, near.documents, "near", {}, Metrics(), Summary("demo", "letters"))
    marks = Marks(folder / "marks.jsonl")
    return mcp_server.server(answering, marks), marks


def call(server: Any, name: str, **arguments: Any) -> Any:
    """Call a tool within this process."""

    async def ask() -> Any:
        async with Client(server) as client:
            return await client.call_tool(name, arguments)

    return asyncio.run(ask())


def test_search_and_mark(tmp_path: Path) -> None:
    server, marks = served(tmp_path)
    result = call(server, "search", query=" one ", k=2).structured_content
    assert (result["query"], [row["doc_id"] for row in result["documents"]]) == ("one", ["d03", "d04"])
    assert result["documents"][0]["text"] == "d03"
    assert len(call(server, "search", query="one").structured_content["documents"]) == 10
    words = call(server, "search", query="one", k=1, system="words").structured_content
    assert set(words["documents"][0]["scores"]) == {"lexical"}
    for relevant in (True, False):
        call(server, "mark", query="one", doc_id="d03", relevant=relevant)
        assert [(mark.doc_id, mark.relevant) for mark in marks.all()] == [("d03", relevant)]
    call(server, "mark", query="one", doc_id="d03", relevant=None)
    assert marks.all() == Marks(tmp_path / "marks.jsonl").all() == []


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("search", {"query": "one", "system": "no"}, "system: there is none called 'no'; accepted: near, words"),
        ("search", {"query": "one", "k": 31}, "k: got 31, but the collection has 30 documents."),
        ("search", {"query": " "}, "at least 1 character"),
        ("mark", {"query": "one", "doc_id": "no", "relevant": True}, "doc_id: no document is called 'no'"),
        ("mark", {"query": "one", "doc_id": "d03"}, "relevant"),
    ],
)
def test_mistakes_are_told_to_the_assistant(tmp_path: Path, tool: str, arguments: Any, message: str) -> None:
    server, marks = served(tmp_path)
    result = call(server, tool, **arguments)
    assert result.is_error
    assert message in result.content[0].text
    assert marks.all() == []


def test_the_tools_and_the_systems_are_described(tmp_path: Path) -> None:
    async def ask() -> None:
        async with Client(served(tmp_path)[0]) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert {name: set(tool.input_schema["properties"]) for name, tool in tools.items()} == {
                "search": {"query", "k", "system"},
                "mark": {"query", "doc_id", "relevant"},
            }
            assert all(tool.description and tool.output_schema for tool in tools.values())
            assert "letters" in str(client.instructions)
            assert "near, words" in str(client.instructions)

    asyncio.run(ask())


def test_an_assistant_starts_the_command_itself(played: Place, tmp_path: Path, said: Said) -> None:
    """Standard output has the protocol alone, whatever Java and the models print."""
    assert played("export", str(tmp_path / "out"), "--system", "BM25") == 0
    folder = tmp_path / "out" / "system"
    tiny.write(tmp_path / "inline.yaml", tiny.INLINE)
    words = ["serve", str(folder), "--cluster", str(tmp_path / "inline.yaml"), "--mcp"]
    parameters = StdioServerParameters(command=sys.executable, args=["-m", "workflows", *words], cwd=ROOT)

    async def ask() -> Any:
        async with Client(parameters) as client:
            result = await client.call_tool("search", {"query": "barami comi", "k": 3})
            doc_id = result.structured_content["documents"][0]["doc_id"]
            await client.call_tool("mark", {"query": "barami comi", "doc_id": doc_id, "relevant": True})
            return result.structured_content

    result = asyncio.run(ask())
    said()
    wanted = tiny.main(["search", str(folder), "barami comi", "-k", "3", "--cluster", str(tmp_path / "inline.yaml")])
    assert wanted == 0
    lines = [line for line in said()[0].splitlines() if not line.startswith("   ")]
    assert [row["doc_id"] for row in result["documents"]] == [line.split()[-1] for line in lines]
    (mark,) = map(json.loads, (folder / "marks.jsonl").read_text().splitlines())
    assert (mark["doc_id"], mark["relevant"]) == (result["documents"][0]["doc_id"], True)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.setattr(mcp_server, "find_spec", lambda name: None)
    with pytest.raises(UserError) as caught:
        mcp_server.check_package()
    assert caught.value.code == "missing-package"
    assert "pip install 'mcp>=2'" in str(caught.value)


@pytest.mark.parametrize("words", [("--port", "9"), ("--host", "0.0.0.0"), ("--without-token",)])
def test_a_port_needs_no_protocol(played: Place, said: Said, words: tuple[str, ...]) -> None:
    assert played("serve", "--mcp", *words) == 2
    assert said()[1].startswith(f"error: {words[0]}: --mcp opens no port")
