"""The sections of the report: what each shows, read from the artifacts of a run."""
