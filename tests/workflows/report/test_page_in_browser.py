"""The report in a headless Chromium: what its scripts do, with the mouse and with the keyboard."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.chromium import Browser
from tests.support.tiny import Place

pytestmark = pytest.mark.browser
SVG = "{http://www.w3.org/2000/svg}"
COLUMN = "[...document.querySelectorAll('table')[0].tBodies[0].rows].map(row => row.cells[{at}].innerText)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as output:
        yield output


@pytest.fixture
def page(browser: Browser, played: Place) -> Browser:
    """The report of a finished run, opened anew. Whatever a test does, nothing is asked for and nothing complains."""
    browser.open(played.runs / "tiny/report.html")
    return browser


@pytest.fixture(autouse=True)
def nothing_is_wrong(browser: Browser) -> Iterator[None]:
    yield
    assert browser.errors == []
    assert browser.requests == []


def test_tables_are_sorted_by_keyboard_and_back(page: Browser) -> None:
    page.run("document.querySelectorAll('table')[0].tHead.rows[0].cells[1].querySelector('button').focus()")
    state = "document.querySelectorAll('table')[0].tHead.rows[0].cells[1].getAttribute('aria-sort')"
    before = page.run(COLUMN.format(at=0))
    page.press("Enter")
    assert page.run(state) == "descending"
    values = [float(text.split()[0]) for text in page.run(COLUMN.format(at=1))]
    assert values == sorted(values, reverse=True)
    page.press(" ")
    assert page.run(state) == "ascending"
    values = [float(text.split()[0]) for text in page.run(COLUMN.format(at=1))]
    assert values == sorted(values)
    page.press("Enter")
    assert page.run(state) == "none"
    assert page.run(COLUMN.format(at=0)) == before


def test_totals_stay_last_and_names_are_sorted_as_words(page: Browser) -> None:
    table = "[...document.querySelectorAll('table')].find(one => one.querySelector('.total'))"
    page.run(f"{table}.tHead.rows[0].cells[0].querySelector('button').click()")
    names = page.run(f"[...{table}.tBodies[0].rows].map(row => row.cells[0].innerText)")
    assert names[-1] == "total"
    assert names[:-1] == sorted(names[:-1])


def test_a_query_from_right_to_left_leaves_the_numbers_beside_it_in_their_order(page: Browser) -> None:
    page.run("document.querySelector('.found b').textContent = '\\u202eabc \\u05d0\\u05d1'")
    rest, right = page.run("""(() => {
        const { childNodes } = document.querySelector('.found span');
        const place = (from, to) => {
            const range = document.createRange();
            range.setStart(childNodes[0], from);
            range.setEnd(childNodes[0], to);
            return range.getBoundingClientRect().left;
        };
        return [place(0, 5), place(5, childNodes[0].length)];
    })()""")
    assert page.run("document.querySelector('.found b').getBoundingClientRect().right") <= rest < right
    tip = page.run("document.querySelector('#queries .bar title').textContent")
    assert tip.startswith("\u2068")
    assert "\u2069: " in tip


def test_every_table_is_saved_as_csv(page: Browser) -> None:
    count = page.run("document.querySelectorAll('table').length")
    buttons = "[...document.querySelectorAll('button.save')].filter(one => one.textContent === 'CSV')"
    assert page.run(f"{buttons}.length") == count
    page.run(f"{buttons}[0].click()")
    rows = list(csv.reader(io.StringIO(page.downloaded("tiny-how-good-each-system-is.csv"))))
    heads = page.run("[...document.querySelectorAll('table')[0].tHead.rows[0].cells].map(one => one.innerText.trim())")
    assert [name for name in rows[0] if not name.endswith((" half", " deviation"))] == heads
    assert len(rows) == 1 + page.run("document.querySelectorAll('table')[0].tBodies[0].rows.length")
    assert all(0 <= float(row[rows[0].index("RR@10")]) <= 1 for row in rows[1:])
    assert all(float(row[rows[0].index("RR@10 half")]) >= 0 for row in rows[1:])


def test_charts_are_saved_as_they_look_on_light_paper(page: Browser) -> None:
    page.media(dark=True)
    figure = "[...document.querySelectorAll('figure')].find(one => one.querySelector('.chart.small'))"
    title = page.run(f"titleOf({figure}) + '-' + {figure}.querySelector('figcaption').innerText")
    page.run(f"{figure}.querySelector('button.save').click()")
    name = "tiny-" + "".join(letter if letter.isalnum() else "-" for letter in title.lower())
    drawn = ElementTree.fromstring(page.downloaded(f"{name}.svg"))
    assert drawn.get("width") == "340"
    line = next(path for path in drawn.iter(f"{SVG}path") if path.get("stroke") == "rgb(11, 98, 196)")
    assert line.get("fill") == "none"
    assert not any(item.get("class") for item in drawn.iter())
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"  # dark as it was


def test_the_page_is_light_or_dark_as_the_system_or_the_button_says(page: Browser) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    assert page.run(paper) == "rgb(255, 255, 255)"
    page.media(dark=True)
    assert page.run(paper) == "rgb(20, 23, 27)"
    page.run("new Promise(done => requestAnimationFrame(() => setTimeout(done, 100)))")  # the page is told in a frame
    assert page.run("document.querySelector('.theme').innerText") == "Light"
    page.run("document.querySelector('.theme').focus()")
    page.press("Enter")
    assert page.run(paper) == "rgb(255, 255, 255)"
    page.run("document.querySelector('.theme').click()")
    page.media(dark=True, paper=True)
    assert page.run(paper) == "rgb(255, 255, 255)"


def test_any_two_systems_are_compared_query_by_query(page: Browser) -> None:
    data = json.loads(page.run("document.getElementById('queries-data').textContent"))
    [place] = data["places"]
    assert page.run("[...document.querySelector('.pick select').options].map(one => one.text)") == place["systems"]
    first, two = place["systems"].index("retriever 1"), place["systems"].index("BM25")
    page.run(f"""(() => {{
        const [first, second] = document.querySelectorAll('.pick select');
        first.value = {first}; second.value = {two};
        second.dispatchEvent(new Event('change'));
    }})()""")
    differences = [a - b for a, b in zip(place["values"][first][0], place["values"][two][0], strict=True)]
    assert page.run("document.querySelectorAll('#queries .bar.won').length") == sum(d > 0 for d in differences)
    assert page.run("document.querySelectorAll('#queries .bar.lost').length") == sum(d < 0 for d in differences)
    text = page.run("document.querySelector('#queries [aria-live]').innerText")
    assert text.startswith(f"retriever 1 is better than BM25 on {sum(d > 0 for d in differences)} queries")
    best = max(range(len(differences)), key=lambda position: (differences[position], -position))
    assert page.run("document.querySelector('.found b').innerText") == place["queries"][best]
    page.run("document.querySelector('.found summary').focus()")
    page.press("Enter")
    page.run("new Promise(done => setTimeout(done, 100))")
    heads = page.run("[...document.querySelectorAll('.found[open] h4')].map(one => one.innerText)")
    ranks = [place["ranks"][system][best] for system in (first, two)]
    assert heads == [
        f"{name}: {'not retrieved' if rank is None else f'rank {rank}'}"
        for name, rank in zip(("retriever 1", "BM25"), ranks, strict=True)
    ]
    title = place["documents"][place["first"][first][best][0]][1].split()[0]
    assert title in page.run("document.querySelector('.found[open] p.document').innerText")


def test_a_bar_opens_its_query_and_words_narrow_the_list(page: Browser) -> None:
    page.run("document.querySelector('#queries .bar:last-child').dispatchEvent(new MouseEvent('click'))")
    assert page.run("document.querySelector('.found').open") is True
    text = page.run("document.querySelector('#queries .bar:last-child title').textContent")
    query = page.run("document.querySelector('.found b').innerText")
    assert text.lstrip("\u2068").startswith(query)
    page.run(f"""(() => {{
        const field = document.querySelector('.pick input');
        field.value = {json.dumps(query)};
        field.dispatchEvent(new Event('input'));
    }})()""")
    assert query in page.run("[...document.querySelectorAll('.found b')].map(one => one.innerText)")
    count = page.run("document.querySelectorAll('#queries .bar').length")
    data = json.loads(page.run("document.getElementById('queries-data').textContent"))
    assert count < len(data["places"][0]["queries"])


@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_is_wider_than_the_page(page: Browser, played: Place, width: int) -> None:
    page.open(played.runs / "tiny/report.html", width=width)
    assert page.run("document.documentElement.scrollWidth") <= width


def test_it_prints(page: Browser, tmp_path: Path) -> None:
    page.media(paper=True)
    assert page.run("getComputedStyle(document.querySelector('button.save')).display") == "none"
    assert page.run("getComputedStyle(document.querySelector('button.sort')).display") != "none"  # the column's name
    page.paper(tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")


def test_two_runs_on_one_page(browser: Browser, played: Place, tmp_path: Path) -> None:
    from sparring.workflows.report.comparison import write_comparison
    from sparring.workflows.report.runs import read_runs

    place = played.copy(tmp_path / "place")
    assert place("run", "--set", "rerank.depth=5") == 0
    first, second = read_runs(sorted(place.runs.iterdir()), place.runs, place.where)
    write_comparison(tmp_path / "two.html", first, second)
    browser.open(tmp_path / "two.html", width=360)
    assert browser.run("document.querySelector('h1').innerText") == f"{second.name} against tiny"
    assert browser.run("document.querySelectorAll('#queries .bar').length") > 0
    assert browser.run("document.documentElement.scrollWidth") <= 360
