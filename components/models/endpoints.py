"""Models behind an address: embedders with OpenAI's `/v1/embeddings`, and rerankers with the `/v1/rerank` of Jina and
Cohere.

An answer may cost money. So every answer is kept in a file as soon as it comes, and nothing is asked again that has an
answer (`Answers`). A request that fails is repeated after a pause, and is not counted.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from sparring.components.config import Config, UserError

TRIES = 10
"""Number of times that a request is made before the step gives up."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
"""Seconds before a request is repeated: they double with each failure, up to the longest pause."""
LONGEST_WAIT = 600.0
"""Most seconds of `Retry-After` that are waited for."""
TIMEOUT = 120.0
"""Seconds to wait for an answer."""
AGAIN = (408, 425, 429, 500, 502, 503, 504, 529)
"""Statuses after which the same request may succeed."""
SAID = 300
"""Number of characters of an error's text that a message quotes."""


class Price(Config):
    """Price of a vendor's answers, in any currency."""

    thousand_searches: float | None = Field(None, ge=0)
    """Price of 1,000 searches. An answer to a query is one search, unless the vendor counts it as several."""
    million_tokens: float | None = Field(None, ge=0)
    """Price of one million tokens, as the vendor counts them."""

    @model_validator(mode="after")
    def _one_unit(self) -> Self:
        if (self.thousand_searches is None) == (self.million_tokens is None):
            raise ValueError("it needs one unit; accepted: thousand_searches, or million_tokens")
        return self

    def of(self, usage: Mapping[str, Any]) -> float | None:
        """Return the price of counted answers. None if tokens are paid for and the address does not count them."""
        if self.thousand_searches is not None:
            return float(self.thousand_searches * usage["searches"] / 1e3)
        tokens = usage["tokens"]
        return None if tokens is None or self.million_tokens is None else float(self.million_tokens * tokens / 1e6)


class Endpoint(Config):
    """An address and the model there.

    Only these two are dumped. They identify the answers, and the remaining keys say how to ask.
    """

    url: str
    """Address, such as `https://api.example.com/v1/rerank`."""
    model: str | None = None
    """Name of the model at the address. If null, none is sent."""
    key_from: str | None = Field(None, exclude=True)
    """Environment variable with the key. If null, none is sent."""
    requests_per_second: float | None = Field(None, gt=0, exclude=True)
    """Most requests per second. If null, there is no limit."""
    requests_at_once: int = Field(4, ge=1, exclude=True)
    """Most requests that wait for an answer at the same time."""

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        return checked_url(url)


def checked_url(url: str) -> str:
    """Return an address. ValueError if it is none, or if it contains a password."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"got {url!r}; accepted: an address such as https://api.example.com/v1/rerank")
    if parts.username is not None or parts.password is not None:
        raise ValueError("the address contains a user or password; accepted: a key in a variable, by `key_from`")
    return url


def key_of(endpoint: Endpoint) -> str | None:
    """Return the key from the environment. UserError if it is missing or cannot be sent. No message contains it."""
    if endpoint.key_from is None:
        return None
    key = os.environ.get(endpoint.key_from, "").strip()
    if not key:
        raise UserError(
            f"key_from: the environment variable {endpoint.key_from} is not set. Put the key for {endpoint.url} there, "
            "on every machine that runs workers.",
            code="missing-key-variable",
        )
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise UserError(f"key_from: the value of {endpoint.key_from} cannot be a key: it has unprintable characters.")
    return key


class Answer(NamedTuple):
    """A parsed answer, and what it was counted as."""

    content: Any
    usage: dict[str, Any]
    """`searches`; `tokens`, None if the address does not count them; and `seconds` until the answer came."""


class Stopped(Exception):
    """Another request of the same client has failed for good."""


class Client:
    """A client of one address. Threads may share it."""

    def __init__(self, endpoint: Endpoint) -> None:
        import httpx2  # only steps that ask need it

        self._endpoint, self._key, self._httpx = endpoint, key_of(endpoint), httpx2
        headers = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        self._client = httpx2.Client(timeout=TIMEOUT, headers=headers)
        self._pace, self._next, self._stopped = threading.Lock(), 0.0, threading.Event()

    def stop(self) -> None:
        """Begin no further request, in any thread."""
        self._stopped.set()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def ask(self, body: Mapping[str, Any]) -> Answer:
        """Send a request until it is answered. UserError if it is refused, or if it fails too often."""
        endpoint, problem = self._endpoint, ""
        content = {**({} if endpoint.model is None else {"model": endpoint.model}), **body}
        for number in range(TRIES):
            self._wait_for_turn()
            began, asked_to_wait = time.monotonic(), None
            try:
                response = self._client.post(endpoint.url, json=content)
            except self._httpx.TransportError as error:
                problem = f"no answer ({type(error).__name__})"
            else:
                if response.is_success:
                    answer = self._parsed(response)
                    return Answer(answer, {**_counted(answer), "seconds": time.monotonic() - began})
                problem = self._problem(response)
                if response.status_code not in AGAIN:
                    raise UserError(f"{endpoint.url}: {problem}", key=endpoint.url, code="refused-request")
                asked_to_wait = retry_after(response.headers.get("retry-after"))
                if (asked_to_wait or 0) > LONGEST_WAIT:
                    break
            if number < TRIES - 1:
                self._wait(pause(number, asked_to_wait))
        raise UserError(
            f"{endpoint.url}: {problem}. All answers so far are kept: repeat the command later.",
            key=endpoint.url,
            code="no-answer",
        )

    def _wait_for_turn(self) -> None:
        """Wait until the rate limit allows another request."""
        if self._endpoint.requests_per_second is None:
            return
        with self._pace:
            turn = max(self._next, time.monotonic())
            self._next = turn + 1 / self._endpoint.requests_per_second
        self._wait(turn - time.monotonic())

    def _wait(self, seconds: float) -> None:
        if self._stopped.wait(max(0.0, seconds)):
            raise Stopped

    def _parsed(self, response: Any) -> dict[str, Any]:
        with suppress(ValueError):
            if isinstance(content := response.json(), dict):
                return content
        raise misread(self._endpoint, "not a JSON object")

    def _problem(self, response: Any) -> str:
        """Describe a failed request in the server's words, without the key."""
        text = " ".join(response.text.split())
        text = text if self._key is None else text.replace(self._key, "***")
        return f"status {response.status_code}{f': {text[:SAID]}' if text else ''}"


def retry_after(header: str | None) -> float | None:
    """Return the seconds that a `Retry-After` header asks to wait. Return None if there is none, or if it is unclear.

    >>> retry_after("3"), retry_after(None), retry_after("soon"), retry_after("Wed, 21 Oct 2015 07:28:00 GMT")
    (3.0, None, None, 0.0)
    """
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def pause(failures: int, asked: float | None) -> float:
    """Return the seconds to wait before a request is repeated: what the server `asked` for, or a pause that doubles.

    The pause is random, so that clients that failed together do not return together. No result depends on it.
    """
    if asked is not None:
        return asked * random.uniform(1.0, 1.1)
    return min(FIRST_PAUSE * 2.0**failures, LONGEST_PAUSE) * random.uniform(0.5, 1.0)


def misread(endpoint: Endpoint, problem: str) -> UserError:
    """Return the mistake for an answer of another form than expected."""
    return UserError(f"{endpoint.url}: the answer is {problem}.", key=endpoint.url, code="unknown-answer")


def _counted(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Read what an answer is counted as."""
    usage, billed = _mapping(answer.get("usage")), _mapping(_mapping(answer.get("meta")).get("billed_units"))
    tokens = (usage.get("total_tokens"), usage.get("prompt_tokens"), billed.get("input_tokens"))
    return {
        "searches": billed.get("search_units", 1),
        "tokens": next((count for count in tokens if count is not None), None),
    }


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def scores(client: Client, endpoint: Endpoint, query: str, documents: list[str]) -> Answer:
    """Score documents for a query. The answer's content has a score for each document, in their order."""
    answer = client.ask({"query": query, "documents": documents, "top_n": len(documents)})
    entries = _in_order(endpoint, answer.content.get("results"), "results", len(documents))
    named = [entry.get("relevance_score") for entry in entries]
    values = [float(value) for value in named if isinstance(value, int | float) and math.isfinite(value)]
    if len(values) < len(documents):
        raise misread(endpoint, "without a number as `relevance_score` of each document")
    return Answer(values, answer.usage)


def vectors(client: Client, endpoint: Endpoint, texts: list[str]) -> Answer:
    """Embed texts. The answer's content has a vector for each text, in their order."""
    answer = client.ask({"input": texts, "encoding_format": "float"})
    entries = _in_order(endpoint, answer.content.get("data"), "data", len(texts))
    values = [entry.get("embedding") for entry in entries]
    lists = [value for value in values if isinstance(value, list) and value]
    if len(lists) < len(texts) or len({len(value) for value in lists}) > 1:
        raise misread(endpoint, "without an `embedding` of one length for each text")
    return Answer(lists, answer.usage)


def _in_order(endpoint: Endpoint, entries: Any, key: str, count: int) -> list[dict[str, Any]]:
    """Return an answer's entries in the order of what was asked. Each entry names its place as `index`."""
    by_index = {entry.get("index"): entry for entry in entries or [] if isinstance(entry, dict)}
    if not isinstance(entries, list) or by_index.keys() != set(range(count)) or len(entries) != count:
        raise misread(endpoint, f"without exactly {count:,} entries in `{key}`, each with its `index`")
    return [by_index[index] for index in range(count)]


class Answers:
    """Answers of one address in a file, by key. Each is on the disk before the next request of its thread is made.

    Another process that still writes to the file is waited for, so that it asks nothing that this one asks too.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("a+b")
        with suppress(OSError):  # a filesystem without locks
            fcntl.flock(self._file, fcntl.LOCK_EX)
        self._file.seek(0)
        whole, self._kept = 0, dict[str, dict[str, Any]]()
        for line in self._file:
            if not line.endswith(b"\n"):  # it was killed while it wrote
                break
            whole += len(line)
            entry = json.loads(line)
            self._kept[entry["key"]] = entry
        self._file.truncate(whole)
        self._lock = threading.Lock()

    def close(self) -> None:
        """Let other processes ask."""
        self._file.close()

    def __contains__(self, key: str) -> bool:
        return key in self._kept

    def __getitem__(self, key: str) -> Any:
        return self._kept[key]["content"]

    def add(self, key: str, answer: Answer) -> None:
        """Keep an answer."""
        entry = {"key": key, "content": answer.content, "usage": answer.usage}
        with self._lock:
            self._file.write(json.dumps(entry).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
            self._kept[key] = entry

    def usage(self) -> dict[str, Any]:
        """Count all answers in the file."""
        return total(entry["usage"] for entry in self._kept.values())


def total(usages: Iterator[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum what answers are counted as. Tokens are None if some answer does not count them."""
    entries = list(usages)
    tokens = [entry["tokens"] for entry in entries]
    return {
        "answers": sum(entry.get("answers", 1) for entry in entries),
        "searches": sum(entry["searches"] for entry in entries),
        "tokens": None if None in tokens else sum(tokens),
        "seconds": sum(entry["seconds"] for entry in entries),
    }


def ask_all(
    endpoint: Endpoint,
    path: Path,
    requests: Mapping[str, Callable[[Client], Answer]],
    on_answer: Callable[[], object] = lambda: None,
) -> tuple[list[Any], dict[str, Any]]:
    """Make the requests that have no answer in the file yet. Return the contents of all answers in order, and their
    usage."""
    with closing(Answers(path)) as answers:
        waiting = [key for key in requests if key not in answers]
        if waiting:
            with closing(Client(endpoint)) as client, ThreadPoolExecutor(endpoint.requests_at_once) as pool:

                def request(key: str) -> None:
                    answers.add(key, requests[key](client))

                futures = [pool.submit(request, key) for key in waiting]
                try:
                    for future in as_completed(futures):
                        future.result()
                        on_answer()
                except BaseException:
                    client.stop()
                    pool.shutdown(cancel_futures=True)  # answers that are under way are kept
                    raise
        return [answers[key] for key in requests], answers.usage()
