"""`torchrun_script` with weights that FSDP2 shards, on CPUs, where accelerate shards none."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType

plain = AcceleratorState.__init__


def shard_anywhere(state: Any, *args: Any, **options: Any) -> None:
    known = dict(AcceleratorState._shared_state)
    plain(state, *args, **options)
    if state.distributed_type == DistributedType.MULTI_CPU:
        state.distributed_type = DistributedType.FSDP
        state.fsdp_plugin = options.get("fsdp_plugin") or known.get("fsdp_plugin")


AcceleratorState.__init__ = shard_anywhere
runpy.run_path(str(Path(__file__).with_name("torchrun_script.py")), run_name="__main__")
