"""Recognition of a folder's collection by the names of files and columns."""
