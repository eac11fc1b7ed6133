"""Apricot: a small text model that estimates confidence from question and response."""
