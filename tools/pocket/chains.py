"""Long chains: sums of 12 to 25 steps, and the pocket taught to write them out.

The pocket's own step-by-step answers are 34 to 52 tokens long. These are 100 to 250, to see what a
confidence is worth while a long answer is written. Writes the questions and the model, which was
trained further on solutions of other questions:

    python -m tools.pocket.chains OUT
    grace run RUN --model OUT/model --file OUT/questions --set data.prompt=short
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
from pathlib import Path

from grace.pocket import MODEL_DIR
from tools.pocket.build import load, save
from tools.pocket.corpus import CorpusSettings, solution
from tools.pocket.puzzles import Puzzle, make_sums
from tools.pocket.tokens import encode, pack
from tools.pocket.train import TrainSettings, train

SIZES = {"train": 1200, "validation": 300, "test": 400}
READ = 8000  # solutions
DOUBTFUL = 0.12  # times as many writers are wrong about an equation; a chain has many
TRAINING = TrainSettings(row_length=512, learning_rate=1e-3)


def chain(rng: random.Random, doubtful: float = DOUBTFUL) -> Puzzle:
    """Return a sum of many steps."""
    return make_sums(rng, (12, 25), doubtful)


def main() -> None:
    """Write the questions and the model into the folder that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write")
    parser.add_argument(
        "--doubtful",
        type=float,
        default=DOUBTFUL,
        metavar="FACTOR",
        help="times as many writers are wrong about an equation as in short sums, so that more or "
        "fewer chains end wrong (default: %(default)s)",
    )
    arguments = parser.parse_args()
    rng = random.Random("chains")
    asked = arguments.out / "questions"
    asked.mkdir(parents=True, exist_ok=True)
    for split, size in SIZES.items():
        puzzles = [chain(rng, arguments.doubtful) for _ in range(size)]
        rows = [{"question": p.question, "choices": p.choices, "answer": p.answer} for p in puzzles]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (asked / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    model, tokenizer = load(MODEL_DIR)
    settings = dataclasses.replace(CorpusSettings(), system_share=1.0)
    puzzles = [chain(rng, arguments.doubtful) for _ in range(READ)]
    read = [solution(puzzle, rng, settings)[0] for puzzle in puzzles]
    ids_RT, weights_RT = pack(encode(tokenizer, read), TRAINING.row_length, tokenizer.pad_token_id)
    train(model.train(), ids_RT, weights_RT, TRAINING, arguments.out / "unfinished.pt")
    save(model, tokenizer, arguments.out / "model")


if __name__ == "__main__":
    main()
