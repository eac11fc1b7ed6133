"""A model on a server: requests, what its API says, and samples as they arrive."""
