"""Steps and their fingerprints, artifacts and their records, and the store that keeps them, on disk or on S3."""
