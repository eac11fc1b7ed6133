"""The jobs of the server: their queue, and the backends that run them."""
