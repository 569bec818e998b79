"""One file a step: each fills one directory, binding components to Ray."""
