"""A run directory: append-only tables joined by id, and stage manifests written last.

A kill at any moment loses at most one unit of work: rows are appended one unit at a time, a torn
unit is cut off on resume, and a stage counts as done only when its manifest exists.
"""

from grace.store.files import cache_folder as cache_folder
from grace.store.files import check_vacant as check_vacant
from grace.store.files import copy_file as copy_file
from grace.store.files import digest as digest
from grace.store.files import disk_watched as disk_watched
from grace.store.files import read_json as read_json
from grace.store.files import replace_directory as replace_directory
from grace.store.files import write_bytes as write_bytes
from grace.store.files import write_json as write_json
from grace.store.files import writing as writing
from grace.store.rundir import AGAIN as AGAIN
from grace.store.rundir import CARD as CARD
from grace.store.rundir import CARD_VERSION as CARD_VERSION
from grace.store.rundir import LORA_CONFIG as LORA_CONFIG
from grace.store.rundir import LORA_WEIGHTS as LORA_WEIGHTS
from grace.store.rundir import ROWS as ROWS
from grace.store.rundir import RunDir as RunDir
from grace.store.rundir import adapter_weights as adapter_weights
from grace.store.rundir import is_run as is_run
from grace.store.rundir import is_study as is_study
from grace.store.rundir import read_card as read_card
from grace.store.rundir import read_object as read_object
from grace.store.rundir import runs_in as runs_in
from grace.store.tables import SPLITS as SPLITS
from grace.store.tables import RowFile as RowFile
from grace.store.tables import Split as Split
