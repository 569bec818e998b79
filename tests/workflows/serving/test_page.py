"""The service's page in a browser, of systems that need no models."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest
import uvicorn

from sparring.components.systems.documents import InMemory
from sparring.workflows.serving.answering import Answering, Summary
from sparring.workflows.serving.application import application
from sparring.workflows.serving.deployment import free_port
from sparring.workflows.serving.marks import Marks
from sparring.workflows.serving.metrics import Metrics
from tests.support import asgi
from tests.support.axe import violations
from tests.support.chromium import Browser

pytestmark = pytest.mark.browser

MARKUP = '<img src="x" onerror="document.title = 1"> <b>bold</b> &amp; letters'
SUMMARY = Summary("demo", "letters", ["<i>one</i>", "four letters"], {"near": 0.5, "words": 2.0})
"""The systems' best score is 1: low for `words`."""


def documents() -> InMemory:
    """Long documents, the third with markup in title and text."""
    ids = [f"d{number:02d}" for number in range(asgi.COUNT)]
    texts = [f"{MARKUP if name == 'd03' else name} {'letters and more letters ' * 60}" for name in ids]
    return InMemory(pa.table({"doc_id": ids, "title": [f"<u>title</u> of {name}" for name in ids], "text": texts}))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asgi, "documents", documents)
        near, _ = asgi.system("near", dense=asgi.DENSE)
        words, _ = asgi.system("words", lexical=asgi.LEXICAL)
    answering = Answering({"near": near, "words": words}, near.documents, "near", {}, Metrics(), SUMMARY)
    marks = Marks(tmp_path_factory.mktemp("marks") / "marks.jsonl")
    served = application(answering, marks, facts={"identity": "x"}, token=None, loopback=True)
    port = free_port("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(served, port=port, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


def test_the_empty_page_is_named_after_the_collection_and_proposes_queries(page: Browser, url: str) -> None:
    page.open("about:blank")
    page.open(url)
    page.wait("document.querySelectorAll('#examples button').length === 2")
    assert page.run("document.querySelector('h1').textContent") == "Search letters"
    assert page.run("document.title") == "Search letters · Sparring"
    assert page.run("about.name && document.getElementById('about').textContent") == (
        "run demo · 30 documents · 2 systems"
    )
    page.run("document.querySelectorAll('#examples button')[1].click()")
    page.wait("document.querySelectorAll('#columns li').length === 10")
    assert page.run("document.getElementById('query').value") == "four letters"
    assert page.run("document.getElementById('start').hidden")
    assert page.run("document.getElementById('status').textContent") == "10 documents by near."
    assert page.run("document.querySelectorAll('.low').length") == 0
    assert page.errors == []


def test_markup_in_texts_is_shown_as_text(page: Browser, url: str) -> None:
    page.open("about:blank")
    page.open(f"{url}/?q=abc")
    page.wait("document.querySelectorAll('#columns li').length === 10")
    first = "document.querySelector('#columns li')"
    assert page.run(f"{first}.dataset.doc") == "d03"
    assert page.run(f"{first}.querySelector('h3').textContent") == "<u>title</u> of d03"
    assert page.run(f"{first}.querySelector('.text').textContent").startswith(MARKUP)
    assert page.run("document.querySelectorAll('#columns :is(img, u)').length") == 0
    assert page.run("document.querySelector('#examples button').textContent") == "<i>one</i>"
    assert page.run("document.title") == "abc · Search letters"
    assert page.errors == []


def test_a_button_and_enter_show_the_whole_text(page: Browser, url: str) -> None:
    page.open("about:blank")
    page.open(f"{url}/?q=abc")
    page.wait("document.querySelectorAll('#columns li').length === 10")
    button = "document.querySelector('#columns .whole')"
    assert page.run(f"{button}.getAttribute('aria-expanded')") == "false"
    page.run(f"{button}.click()")
    assert page.run(f"{button}.getAttribute('aria-expanded')") == "true"
    page.run("document.querySelector('#columns li').focus()")
    page.press("Enter")
    assert page.run(f"{button}.getAttribute('aria-expanded')") == "false"


def test_two_systems_stand_side_by_side_and_are_interleaved_on_a_phone(page: Browser, url: str) -> None:
    """Both rank the same documents: on the phone each stands once, with both ranks."""
    page.open("about:blank")
    page.open(f"{url}/?q=abc&compare=words", width=1280)
    page.wait("document.querySelectorAll('#columns section').length === 2")
    assert page.run("[...document.querySelectorAll('#columns h2')].map((head) => head.textContent)") == [
        "near",
        "words",
    ]
    assert page.run("document.querySelectorAll('#columns section:nth-child(2) .low').length") == 1
    assert page.run("document.querySelectorAll('#columns .low').length") == 1
    page.resize(390, 844)
    page.wait("document.querySelectorAll('#columns section').length === 1")
    names = page.run("[...document.querySelectorAll('#columns li')].map((item) => item.dataset.doc)")
    assert names == [f"d{number:02d}" for number in range(3, 13)]
    places = page.run("[...document.querySelectorAll('#columns li .id')].map((line) => line.textContent)")
    assert places[0] == "d03 · rank 1 of near · rank 1 of words"
    assert places[-1] == "d12 · rank 10 of near · rank 10 of words"
    assert page.run("document.documentElement.scrollWidth") <= 390
    buttons = "[...document.querySelectorAll('#columns button:not([hidden])')]"
    assert min(page.run(f"{buttons}.map((button) => button.getBoundingClientRect().height)")) >= 40
    assert page.errors == []


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("query", ["", "/?q=abc&compare=words"])
def test_axe_finds_no_fault(page: Browser, url: str, width: int, dark: bool, query: str) -> None:
    page.open("about:blank")
    page.open(f"{url}{query}", width=width)
    page.media(dark=dark)
    page.wait(f"document.querySelectorAll('{'#columns li' if query else '#examples li'}').length > 1")
    assert violations(page) == []
