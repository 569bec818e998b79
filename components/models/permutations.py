"""Listwise reranking by a prompt: a language model orders documents in windows (RankGPT; Sun et al., 2023).

The prompts, the windows and the repair of answers are those of section 3 and of the public code.
"""

import re
from collections.abc import Sequence

from sparring.components.models.endpoints import Answer, Client, Endpoint, misread

WINDOW, STEP = 20, 10
"""Number of documents in a window, and of places by which it moves towards the first document (section 3.2)."""
WORDS = 300
"""Number of first words of a document that a prompt has."""

SYSTEM = "You are RankGPT, an intelligent assistant that can rank passages based on their relevancy to the query."
FIRST = (
    "I will provide you with {count} passages, each indicated by number identifier []. \n"
    "Rank the passages based on their relevance to query: {query}."
)
LAST = (
    "Search Query: {query}. \nRank the {count} passages above based on their relevance to the search query. The "
    "passages should be listed in descending order using identifiers. The most relevant passages should be listed "
    "first. The output format should be [] > [], e.g., [1] > [2]. Only response the ranking results, do not say any "
    "word or explain."
)


def windows(count: int) -> list[tuple[int, int]]:
    """Return the windows over a list, as pairs of its first place and the place after its last. They move from the end
    to the beginning.

    >>> windows(45), windows(3)
    ([(25, 45), (15, 35), (5, 25), (0, 20)], [(0, 3)])
    """
    starts = [*range(count - WINDOW, 0, -STEP), 0]
    return [(start, min(count, start + WINDOW)) for start in starts]


def messages(query: str, documents: Sequence[str]) -> list[dict[str, str]]:
    """Write the conversation that asks for the order of a window's documents."""
    count = len(documents)
    conversation = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": FIRST.format(count=count, query=query)},
        {"role": "assistant", "content": "Okay, please provide the passages."},
    ]
    for number, document in enumerate(documents, 1):
        words = " ".join(document.split()[:WORDS])
        conversation += [
            {"role": "user", "content": f"[{number}] {words}"},
            {"role": "assistant", "content": f"Received passage [{number}]."},
        ]
    return [*conversation, {"role": "user", "content": LAST.format(count=count, query=query)}]


def permutation(text: str, count: int) -> list[int]:
    """Read the order of `count` documents from an answer, as places from 0.

    As in the public code, all numbers are read. Repeated and unknown numbers are left out, and documents that the
    answer does not name follow in their old order.

    >>> permutation("[3] > [1] > [3] > [9]", 4)
    [2, 0, 1, 3]
    """
    named = dict.fromkeys(int(number) - 1 for number in re.findall(r"[0-9]+", text) if len(number) < 10)
    return list(dict.fromkeys([*(place for place in named if 0 <= place < count), *range(count)]))


def ordered(client: Client, endpoint: Endpoint, query: str, documents: Sequence[str]) -> Answer:
    """Let a language model order a window's documents. The answer's content has their places, best first."""
    answer = client.ask({"messages": messages(query, documents), "temperature": 0})
    try:
        text = answer.content["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        text = None
    if not isinstance(text, str):
        raise misread(endpoint, "without a text as `content` of the first of its `choices`")
    return answer._replace(content=permutation(text, len(documents)))
