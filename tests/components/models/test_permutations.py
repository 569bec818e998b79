"""Prompts for an order of documents, and the orders that language models write."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from sparring.components.models.endpoints import Client, Endpoint
from sparring.components.models.permutations import STEP, WINDOW, WORDS, messages, ordered, permutation, windows
from tests.support.endpoint import Endpoint as Server
from tests.support.errors import refused


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("[2] > [1] > [3]", [1, 0, 2]),
        ("2, 3, 1", [1, 2, 0]),
        ("[3] > [3] > [2]", [2, 1, 0]),
        ("[0] > [4] > [2]", [1, 0, 2]),
        ("I cannot rank these.", [0, 1, 2]),
        ("", [0, 1, 2]),
        ("9" * 5_000 + " > [2]", [1, 0, 2]),
    ],
)
def test_answers_are_repaired_as_in_the_public_code(text: str, order: list[int]) -> None:
    """Repeated and unknown numbers are left out. Documents that are missing follow in their old order."""
    assert permutation(text, 3) == order


@pytest.mark.parametrize("count", [1, 2, 19, 20, 21, 30, 45, 50, 100])
def test_windows_reach_every_document_and_overlap(count: int) -> None:
    spans = windows(count)
    assert {place for start, stop in spans for place in range(start, stop)} == set(range(count))
    assert spans[0][1] == count
    assert spans[-1][0] == 0
    assert all(stop - start <= WINDOW for start, stop in spans)
    for (start, _), (before, end) in pairwise(spans):
        assert 0 < start - before <= STEP <= end - start


def test_a_conversation_numbers_the_documents() -> None:
    conversation = messages("why?", ["because", "word " * 2 * WORDS])
    texts = [message["content"] for message in conversation]
    assert [message["role"] for message in conversation] == ["system", "user", *["assistant", "user"] * 3]
    assert texts[3:6] == ["[1] because", "Received passage [1].", "[2] " + " ".join(["word"] * WORDS)]
    assert "2 passages" in texts[1]
    assert texts[-1].startswith("Search Query: why?. \nRank the 2 passages above")


@pytest.mark.parametrize("answer", [{}, {"choices": []}, {"choices": [{"message": {"content": None}}]}])
def test_an_answer_without_a_text_is_refused(endpoint: Server, answer: dict[str, Any]) -> None:
    endpoint.spoil = lambda _: answer
    url = f"{endpoint.url}/chat/completions"
    address = Endpoint(url=url, key_from="RERANK_KEY")
    client = Client(address)
    with refused(url, "unknown-answer"):
        ordered(client, address, "q", ["a", "b"])
    client.close()
