"""A model in this process: loading, batches, the token loop, and scoring of given responses."""
