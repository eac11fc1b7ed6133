"""GrACE, and each of its two parts alone: the rows and the evidence."""
