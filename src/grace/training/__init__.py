"""Targets, examples, losses and the trainer that teach a model to say how sure it is."""
