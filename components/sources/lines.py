"""Texts without queries: a text file, plain or .gz, in which every line is a document, for example a sentence.

The document's id is the line number. Empty lines are skipped.
"""

from collections.abc import Iterator
from pathlib import Path

from sparring.components.sources import base
from sparring.components.sources.reading import plain_or_gz, read_lines
from sparring.components.sources.records import Bad, Document, document


class Source(base.Source):
    """The keys of `format: lines`."""

    path: str
    """File or URL. `$SPARRING_DATA`, if set, replaces a leading `data/`."""

    def files(self) -> dict[str, Path]:
        """Return the file."""
        path = plain_or_gz(base.locate(self.path))
        return {path.name: path}

    def read_documents(self) -> Iterator[Document | Bad]:
        """Yield a document for each line that is not empty."""
        for path in self.files().values():
            for line in read_lines(path):
                yield line if isinstance(line, Bad) else document(str(line.number), "", line.text, line.place)
