"""The search and the marks as tools of the Model Context Protocol, for an assistant that starts this program and talks
to it over standard input and output."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from sparring.components.config import UserError, listing
from sparring.workflows.serving.answering import Answering
from sparring.workflows.serving.marks import Marks
from sparring.workflows.serving.questions import Identifier, K, Mark, Query, Question, Result


def check_package() -> None:
    """Raise UserError if the protocol's package is not installed."""
    if find_spec("mcp") is None:
        raise UserError(
            "--mcp: the package mcp is not installed. Install it: pip install 'mcp>=2'",
            code="missing-package",
        )


def run(answering: Answering, marks: Marks) -> None:
    """Answer the calls of an assistant until it closes standard input."""
    server(answering, marks).run()


def server(answering: Answering, marks: Marks) -> Any:
    """Make the server with its two tools."""
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

    described = answering.described()
    where = f" in {described.collection}" if described.collection else ""
    tools = MCPServer(
        "sparring",
        instructions=f"Search the documents{where}. Systems: {listing(answering.systems)}. The default system is "
        f"{answering.default}.",
        log_level="WARNING",
    )

    @tools.tool()
    async def search(query: Query, k: K | None = None, system: Identifier | None = None) -> Result:
        """Find the documents that answer a query, best first. `k` is their number, 10 if it is missing. `system` is
        the name of a system; without it the default system searches."""
        try:
            answer = await answering.answer(Question(queries=[query], k=k, system=system))
        except UserError as error:
            raise ToolError(str(error)) from None
        return answer.results[0]

    @tools.tool()
    def mark(query: Query, doc_id: Identifier, relevant: bool | None) -> Mark:
        """Keep a person's judgement of a document for a query: true if it is right, false if it is wrong. Null removes
        the judgement."""
        judgement = Mark(query=query, doc_id=doc_id, relevant=relevant)
        try:
            answering.check_document("doc_id", doc_id)
            marks.add(judgement)
        except UserError as error:
            raise ToolError(str(error)) from None
        except OSError as error:
            raise ToolError(f"the marks cannot be written: {error.strerror}") from error
        return judgement

    return tools


@contextmanager
def quiet_output() -> Iterator[None]:
    """Send what this process and Java print to standard error until the block ends. Standard output has nothing but
    messages of the protocol."""
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(output, 1)
        os.close(output)
