"""The two methods, in a folder each, and the adapter directories that both write."""
