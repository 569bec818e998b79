"""Sources of documents, queries and qrels. Each format is one file and is found by the file's name."""
