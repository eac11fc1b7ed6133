"""Test-time scaling in a report: rows from replays, and their tables."""
