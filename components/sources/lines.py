"""Texts without queries: a text file, plain or .gz, whose every line is a document, such as a sentence a line. The
document's id is the line's number. Empty lines are left out."""

from collections.abc import Iterator
from pathlib import Path

from sparring.components.sources import base
from sparring.components.sources.reading import plain_or_gz, read_lines
from sparring.components.sources.records import Bad, Document, document


class Source(base.Source):
    """The keys of `format: lines`."""

    path: str
    """The file. A leading `data/` is replaced by `$SPARRING_DATA`, if that is set."""

    def files(self) -> dict[str, Path]:
        """Return the file."""
        path = plain_or_gz(base.locate(self.path))
        return {path.name: path}

    def read_documents(self) -> Iterator[Document | Bad]:
        """Yield a document for each line that is not empty."""
        for path in self.files().values():
            for line in read_lines(path):
                yield line if isinstance(line, Bad) else document(str(line.number), "", line.text, line.place)
