"""Estimators trained on the backbone's hidden states."""
