"""Estimators that compare further samples of the same question."""
