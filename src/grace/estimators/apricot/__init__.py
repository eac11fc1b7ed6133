"""Apricot: a small text model that rates question and response."""
