"""Filling an HTML template: one file that needs no network, and whose scripts add to what can be read without."""

from pathlib import Path
from typing import TYPE_CHECKING

from components.evaluation.result_table import CLEAR, p_number, p_text
from components.files import replacing
from components.yaml_files import yaml_text
from workflows.report.finished import Json

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


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min 05 s`, `2 h 07 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def percent(share: float) -> str:
    """`34 %`."""
    return f"{100 * share:.0f} %"


def size(count: int) -> str:
    """`12 kB`, `3.4 MB`."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}" if count < 10 * scale else f"{count / scale:.0f} {unit}"
    return f"{count} B"
