"""One reader a format. A source's `format` is the name of its file here."""
