"""Recognition of the collection in a folder, by the names of files and columns."""
