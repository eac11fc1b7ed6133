"""A model on a server: the client, the APIs of the servers, and samples as they arrive."""
