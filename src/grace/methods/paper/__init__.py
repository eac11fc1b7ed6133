"""Training of LoRA and the `<CNF>` rows: targets, examples, losses and the training loop."""
