"""The questions about the world, written into the package: python -m tools.pocket.questions."""

from __future__ import annotations

import argparse
from pathlib import Path

from grace.pocket import QUESTIONS
from tools.pocket import SPLITS, TASKS
from tools.pocket.world import World


def write(out: Path) -> None:
    """Write a Parquet file for every task and split."""
    import pyarrow
    from pyarrow import parquet

    world = World.build()
    for task in TASKS:
        (out / task).mkdir(parents=True, exist_ok=True)
        for split in SPLITS:
            rows = [{"task": task, **row} for row in world.questions(task, split)]
            table = pyarrow.Table.from_pylist(rows)
            parquet.write_table(
                table, out / task / f"{split}.parquet", compression="zstd", compression_level=19
            )


def main() -> None:
    """Write into the folder that the command line names, by default that of the package."""
    parser = argparse.ArgumentParser(description="Write the pocket's questions.")
    parser.add_argument("out", type=Path, metavar="OUT", nargs="?", default=QUESTIONS)
    write(parser.parse_args().out)


if __name__ == "__main__":
    main()
