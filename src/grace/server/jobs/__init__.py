"""What the server does for a request: jobs, their queue, and what draws for them."""
