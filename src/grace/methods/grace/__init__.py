"""Our method: one convex fit of rows and token probabilities."""
