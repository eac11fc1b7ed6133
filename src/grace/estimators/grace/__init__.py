"""GrACE itself, and its two halves alone: the rows and the evidence."""
