"""Estimators that read the probabilities of the tokens as they were sampled."""
