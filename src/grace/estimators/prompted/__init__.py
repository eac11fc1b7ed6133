"""Estimators that prompt the model about its response: P(True) and verbalised confidence."""
