"""Pictures of a finished run, for the documentation: its report, its search page and its table in a terminal.

python docs/screenshots.py CONFIG "QUERY"      # also --store and --runs, as for `sparring`

The pictures go to `docs/pages/pictures`. Chromium takes them.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from urllib.parse import urlencode

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.chromium import Browser  # noqa: E402

PICTURES = ROOT / "docs" / "pages" / "pictures"
WIDTH, HEIGHT = 1280, 720
LINES = 20
"""Lines of the table that the picture of a terminal shows."""
NO_SCROLL_BAR = "document.documentElement.style.scrollbarWidth = 'none'"
TERMINAL = """<body style="margin: 0; background: #0d1117; color: #e6edf3">
<pre style="margin: 0; padding: 20px; font: 14px/1.45 'DejaVu Sans Mono', monospace">{}</pre>"""
COMPARE = """{
    const list = document.getElementById('compare');
    list.value = list.options[1].value;
    list.dispatchEvent(new Event('change'));
}"""
"""Choose the first system of the list "Compare with"."""


def sparring(places: list[str], *words: str) -> list[str]:
    """Return a command line."""
    return [sys.executable, "-m", "workflows", *places, *words]


@contextmanager
def service(places: list[str], config: str, marks: Path) -> Iterator[str]:
    """Serve a run, and give the address of its page."""
    profile = ["--cluster", "cluster/inline.yaml"]
    command = sparring(places, "serve", config, *profile, "--port", "0", "--marks", str(marks))
    with subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            ready = next(match for line in process.stdout if (match := re.search(r"http://\S+", line)))
            yield ready[0]
        finally:
            process.terminate()


def main() -> None:
    """Take all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config")
    parser.add_argument("query")
    parser.add_argument("--store", type=Path, default=ROOT / "store")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs")
    arguments = parser.parse_args()
    places = ["--store", str(arguments.store.resolve()), "--runs", str(arguments.runs.resolve())]
    config = str(Path(arguments.config).resolve())

    def save(name: str) -> None:
        """Save the visible part of the page."""
        page.run(NO_SCROLL_BAR)
        page.picture(PICTURES / f"{name}.png", whole=False)

    def output(command: str) -> str:
        """Return the output of a command about the run."""
        words = sparring(places, command, config)
        return subprocess.run(words, cwd=ROOT, text=True, check=True, capture_output=True).stdout

    [report] = re.findall(r"\S+report\.html", output("report"))
    with tempfile.TemporaryDirectory() as folder, Browser(Path(folder)) as page:
        page.open(Path(report), width=WIDTH, height=HEIGHT)
        save("report")

        terminal = Path(folder) / "terminal.html"
        lines = [f"$ sparring show {Path(config).name}", *output("show").splitlines()][:LINES]
        terminal.write_text(TERMINAL.format(escape("\n".join(lines))))
        page.open(terminal, width=WIDTH, height=HEIGHT)
        page.resize(WIDTH, page.run("document.querySelector('pre').offsetHeight"))
        save("terminal")

        with service(places, config, Path(folder) / "marks.jsonl") as address:
            page.open(f"{address}/?{urlencode({'q': arguments.query})}", width=WIDTH, height=HEIGHT)
            page.wait("document.querySelectorAll('#columns li').length > 0")
            page.run(COMPARE)
            page.wait("document.querySelectorAll('#columns section').length === 2")
            save("service")


if __name__ == "__main__":
    main()
