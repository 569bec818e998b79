"""Fill an HTML template. The page is one file that needs no network, and it can be read without its scripts."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from sparring.components.evaluation.result_table import p_number, p_text, unsigned
from sparring.components.files import replacing
from sparring.components.yaml_files import yaml_text
from sparring.workflows.quantities import duration, size
from sparring.workflows.report.finished import Json
from sparring.workflows.report.verdict import in_prose, latency

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

REPORT = "report.html"
WORDS = {"compute": "computing", "files": "files", "start": "starting", "waiting": "waiting"}
"""Words for how a step spent its time, by the kinds of `components.timing`."""


def write_page(path: Path, page: Json, *, template: str = REPORT) -> None:
    """Fill a template of the folder `templates` by one atomic write."""
    environment = templates()
    numbers = {
        "duration": duration,
        "size": size,
        "percent": percent,
        "number": "{:,}".format,
        "p": p_text,
        "p_number": p_number,
        "prose": prose,
        "contents": contents,
        "latency": latency,
        "name": in_prose,
        "value": unsigned,
        "blank": lambda value: "" if value is None else value,
    }
    environment.filters |= numbers
    config = yaml_text(page["config"])
    text = environment.get_template(template).render(**{**page, "config": config}, kinds=WORDS)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def templates(*more: Path) -> "Environment":
    """Load the templates of the report, and those of other folders that extend them."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader([Path(__file__).parent / "templates", *more]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def drawing(svg: str) -> "Markup":
    """Mark an SVG drawing as safe for a template. `components.charts` escapes the texts in it."""
    from markupsafe import Markup

    return Markup(svg)


def prose(text: str) -> "Markup":
    """Escape a text of our own for a page. Text in backticks becomes code, and p stays on the line of its value.

    >>> prose("`k: 5` is < 10")
    Markup('<code>k: 5</code> is &lt; 10')
    """
    from markupsafe import Markup, escape

    kept = re.sub(r"\bp ([<=]) (?=\.)", "p\u00a0\\1\u00a0", text)
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(kept))))


def contents(text: str) -> Json:
    """Give each second-level heading of a page's text an id, and list the headings for a table of contents.

    >>> contents("<h2>Cost &amp; time</h2><p>12 s</p>")
    {'text': Markup('<h2 id="cost-time">Cost &amp; time</h2><p>12 s</p>'), 'headings': [('cost-time', 'Cost & time')]}
    """
    from markupsafe import Markup

    headings: dict[str, str] = {}

    def named(match: re.Match[str]) -> str:
        title = Markup(match[1]).striptags()
        slug = re.sub(r"[^\w@+]+", "-", title.lower()).strip("-")
        name = next(name for name in (slug, *(f"{slug}-{number}" for number in range(2, 1000))) if name not in headings)
        headings[name] = title
        return f'<h2 id="{name}">{match[1]}</h2>'

    numbered = re.sub(r"<h2>(.*?)</h2>", named, text, flags=re.DOTALL)
    return {"text": Markup(numbered), "headings": list(headings.items())}


def percent(share: float) -> str:
    """`34 %`."""
    return f"{100 * share:.0f} %"
