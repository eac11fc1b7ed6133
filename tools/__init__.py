"""Scripts that make files of the package or of the documentation."""
