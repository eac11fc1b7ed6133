"""Estimators from the token log-probabilities that were recorded while sampling."""
