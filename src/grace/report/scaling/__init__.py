"""What a report says of test-time scaling: its rows, from replays, and their tables."""
