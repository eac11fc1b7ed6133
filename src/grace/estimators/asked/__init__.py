"""Estimators that ask the model about its response: P(True) and stated confidence."""
