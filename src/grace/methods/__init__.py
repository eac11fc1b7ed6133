"""The two methods, in a folder each; both write an adapter directory (`adapter.py`, `card.py`)."""
