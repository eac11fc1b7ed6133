"""The stages of a run, a file each: what it reads, makes and writes."""
