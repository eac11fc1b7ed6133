"""GrACE."""
