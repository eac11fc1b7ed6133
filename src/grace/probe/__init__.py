"""Logistic regressions on features of answers, their folds, and the penalties chosen on these."""
