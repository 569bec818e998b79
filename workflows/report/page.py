"""Filling an HTML template: one file that needs no network, and whose scripts add to what can be read without."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from sparring.components.evaluation.result_table import CLEAR, p_number, p_text
from sparring.components.files import replacing
from sparring.components.yaml_files import yaml_text
from sparring.workflows.quantities import duration, size
from sparring.workflows.report.finished import Json

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

REPORT = "report.html"
WORDS = {"compute": "computing", "files": "files", "start": "starting", "waiting": "waiting"}
"""What a reader is told that a step spent its time on, by the kinds of `components.timing`."""


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
        "blank": lambda value: "" if value is None else value,
    }
    environment.filters |= numbers
    config = yaml_text(page["config"])
    text = environment.get_template(template).render(**{**page, "config": config}, clear=CLEAR, kinds=WORDS)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def templates(*more: Path) -> "Environment":
    """The templates of the report, and those of other folders that build on them."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader([Path(__file__).parent / "templates", *more]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def drawing(svg: str) -> "Markup":
    """An SVG drawing that a template puts in as it is: `components.charts` escape the texts in it."""
    from markupsafe import Markup

    return Markup(svg)


def prose(text: str) -> "Markup":
    """A text of our own for a page: what stands in backticks is code.

    >>> prose("`k: 5` is < 10")
    Markup('<code>k: 5</code> is &lt; 10')
    """
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def percent(share: float) -> str:
    """`34 %`."""
    return f"{100 * share:.0f} %"
