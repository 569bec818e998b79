"""What steps read and write: tables, groups, vectors, token stores, and TREC files."""
