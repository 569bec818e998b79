"""Sources: where documents, queries and qrels come from. One file a format, found by its name."""
