"""Data that steps read and write: tables, groups, vectors and token stores."""
