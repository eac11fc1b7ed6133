"""A model in this process: batches, decoding token by token, and reading given responses."""
