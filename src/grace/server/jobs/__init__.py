"""Jobs of the server, their queue, and the backends that draw for them."""
