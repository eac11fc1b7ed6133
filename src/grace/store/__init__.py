"""A run directory: append-only tables joined by id, and stage manifests written last.

A kill at any moment loses at most one unit of work: rows are appended one unit at a time, a torn
unit is cut off on resume, and a stage counts as done only when its manifest exists.
"""

from grace.store.files import (
    check_vacant,
    copy_file,
    digest,
    disk_watched,
    read_json,
    replace_directory,
    write_bytes,
    write_json,
    writing,
)
from grace.store.rundir import (
    AGAIN,
    CARD,
    LORA_CONFIG,
    LORA_WEIGHTS,
    ROWS,
    RunDir,
    adapter_weights,
    is_run,
    is_study,
    read_card,
    read_object,
    runs_in,
)
from grace.store.tables import SPLITS, RowFile, Split

__all__ = [
    "AGAIN",
    "CARD",
    "LORA_CONFIG",
    "LORA_WEIGHTS",
    "ROWS",
    "SPLITS",
    "RowFile",
    "RunDir",
    "Split",
    "adapter_weights",
    "check_vacant",
    "copy_file",
    "digest",
    "disk_watched",
    "is_run",
    "is_study",
    "read_card",
    "read_json",
    "read_object",
    "replace_directory",
    "runs_in",
    "write_bytes",
    "write_json",
    "writing",
]
