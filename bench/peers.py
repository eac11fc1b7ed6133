"""Compare lm-polygraph's estimators with ours on the same questions: values, seconds, tokens.

Reads a finished run with `method=grace`, whose answers are the backbone's, and its test
questions. Both sides see the same prompts and answer them greedily, then say how sure the model is:

- the log-probability of the answer (its sum, and its mean over tokens) and P(True) as lm-polygraph
  words it have one definition, so on the same answer the figures must be the same. lm-polygraph
  writes two tokens before a reply may end, so it gives another answer where the model would end
  after one, and reads the first two tokens of every reply given that it is not over, as is done
  here;
- from ten further samples, lm-polygraph takes the sequence entropy and the lexical similarity,
  ours the share that agrees with the answer; here the random numbers differ;
- ours reads c in the pass that writes the answer.

lm-polygraph runs without the attention maps and hidden states that it collects by default and that
none of these needs. Estimators that ask an NLI model (semantic entropy) are left out.

    pip install lm-polygraph==0.7.0   # in an environment that has GrACE, [local]
    python bench/peers.py runs/mine --questions 500
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata
from timing import timed

from grace.engines import Sampling
from grace.grading import load_grader
from grace.metrics import auroc
from grace.pipeline.context import open_run

SAMPLES = 10
FREE = 2  # tokens that lm-polygraph writes before a reply may end
AT_ONCE = 128  # questions for which lm-polygraph keeps all logits
TEMPERATURE = 1.0
P_TRUE = (
    "Question: {q}\n Possible answer:{a}\n Is the possible answer:\n (A) True\n (B) False\n"
    " The possible answer is:"
)


class Answered(NamedTuple):
    """Greedy answers and, by the estimator's name, how sure of each: higher is surer."""

    texts: list[str]
    sure: dict[str, list[float]]
    tokens: int  # read and written by the model


def area(sure: list[float], right: list[bool]) -> float:
    """Return AUROC in percent; only the order of `sure` counts."""
    return 100 * auroc(rankdata(sure) / len(sure), right)


class Peers:
    """One run's test questions, as both sides are asked them."""

    def __init__(self, run: Path, count: int) -> None:
        self.context = open_run(run)
        self.questions = self.context.directory.split("test").questions.read()[:count]
        self.prompts = self.context.prompts(self.questions)
        self.tokenizer = self.context.engines.base.tokenizer
        self.texts = [self.tokenizer.decode(prompt) for prompt in self.prompts]
        read = self.tokenizer(self.texts)["input_ids"]
        assert read == self.prompts, "as text the prompts are other tokens"
        self.length = self.context.settings.sample.max_new_tokens

    def ours(self) -> Answered:
        """Answer and rate with GrACE."""
        engine, prompts = self.context.engines.tuned, self.prompts
        greedy = Sampling(max_new_tokens=self.length)
        made = [one for _, (one,) in sorted(engine.generate(prompts, greedy))]
        logs = [[*one.logprobs, *filter(None, [one.end_logprob])] for one in made]
        for step in range(FREE):  # of the replies that go on, given that they do
            longer = [i for i, one in enumerate(made) if len(one.token_ids) > step]
            so_far = [[*prompts[i], *made[i].token_ids[:step]] for i in longer]
            over = engine.next_token_probs(so_far, [self.tokenizer.eos_token_id])[:, 0]
            for i, share in zip(longer, over, strict=True):
                logs[i][step] -= math.log1p(-share)
        answers = [self.tokenizer.decode(one.token_ids) for one in made]
        pairs = zip(self.texts, answers, strict=True)
        asked = [self.tokenizer(P_TRUE.format(q=q, a=a))["input_ids"] for q, a in pairs]
        true, *rest = self.tokenizer("True", add_special_tokens=False)["input_ids"]
        if rest:
            sys.exit("this tokenizer writes True in several tokens, which lm-polygraph refuses")
        true_N, end_N = engine.next_token_probs(asked, [true, self.tokenizer.eos_token_id]).T
        believed = np.log(true_N / (1 - end_N))
        more = Sampling(SAMPLES, TEMPERATURE, max_new_tokens=self.length)
        draws = [several for _, several in sorted(engine.generate(prompts, more))]
        task, agreed = self.context.task, []
        for one, several, question in zip(made, draws, self.questions, strict=True):
            answer, *said = [task.answer(x.text, question.choices) for x in (one, *several)]
            agreed.append(sum(x == answer for x in said) / SAMPLES)
        sure = {
            "sum of log p": [math.fsum(row) for row in logs],
            "mean of log p": [math.fsum(row) / len(row) for row in logs],
            "P(True)": believed.tolist(),
            f"agreement of {SAMPLES} samples": agreed,
            "c": [-1.0 if one.confidence is None else one.confidence for one in made],
        }
        if all(one.confidence is None for one in made):
            del sure["c"]
        written = sum(map(len, logs)) + sum(len(d.token_ids) for row in draws for d in row)
        return Answered(answers, sure, written + sum(map(len, [*prompts, *prompts, *asked])))

    def theirs(self, batch: int) -> Answered:
        """Answer and rate with lm-polygraph, which keeps the logits of all questions: in parts."""
        parts = [
            self._theirs(slice(start, start + AT_ONCE), batch)
            for start in range(0, len(self.texts), AT_ONCE)
        ]
        names = parts[0].sure
        return Answered(
            [text for part in parts for text in part.texts],
            {name: [sure for part in parts for sure in part.sure[name]] for name in names},
            sum(part.tokens for part in parts),
        )

    def _theirs(self, rows: slice, batch: int) -> Answered:
        from lm_polygraph.defaults.register_default_stat_calculators import (
            register_default_stat_calculators,
        )
        from lm_polygraph.estimators import (
            LexicalSimilarity,
            MaximumSequenceProbability,
            MonteCarloSequenceEntropy,
            Perplexity,
            PTrue,
        )
        from lm_polygraph.utils.builder_enviroment_stat_calculator import (
            BuilderEnvironmentStatCalculator,
        )
        from lm_polygraph.utils.dataset import Dataset
        from lm_polygraph.utils.manager import UEManager
        from lm_polygraph.utils.model import WhiteboxModel

        names = {
            "sum of log p": MaximumSequenceProbability(),
            "mean of log p": Perplexity(),
            "P(True)": PTrue(),
            "sequence entropy": MonteCarloSequenceEntropy(),
            "lexical similarity": LexicalSimilarity("rougeL"),
        }
        self.tokenizer.padding_side = "left"
        texts, prompts = self.texts[rows], self.prompts[rows]
        model = WhiteboxModel(self.context.engines.base.model, self.tokenizer, "backbone")
        calculators = register_default_stat_calculators(
            "Whitebox", output_attentions=False, output_hidden_states=False
        )
        manager = UEManager(
            Dataset(texts, [""] * len(texts), batch_size=batch),
            model,
            list(names.values()),
            BuilderEnvironmentStatCalculator(model),
            calculators,
            [],
            [],
            [],
            ignore_exceptions=False,
            verbose=False,
            max_new_tokens=self.length,
            save_stats=["sample_tokens"],
        )
        manager()
        found: Any = manager.estimations
        sure = {name: [-x for x in found["sequence", str(one)]] for name, one in names.items()}
        answers = list(manager.stats["greedy_texts"])
        written = sum(map(len, manager.stats["greedy_tokens"]))
        written += sum(len(one) for row in manager.stats["sample_tokens"] for one in row)
        asked = [P_TRUE.format(q=q, a=a) for q, a in zip(texts, answers, strict=True)]
        read = sum(map(len, self.tokenizer(asked)["input_ids"]))
        return Answered(answers, sure, written + read + 2 * sum(map(len, prompts)))

    def right(self, answers: list[str]) -> list[bool]:
        """Return the grade of each answer."""
        grader = load_grader(self.context.task.grader)
        pairs = zip(answers, self.questions, strict=True)
        return [grader(text, question) for text, question in pairs]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--batch", type=int, default=32, help="prompts at once in lm-polygraph")
    arguments = parser.parse_args()
    peers = Peers(arguments.run, arguments.questions)
    assert peers.context.engines.tuned and peers.context.engines.base  # loaded before the clock
    our_seconds, _, ours = timed(peers.ours)
    their_seconds, _, theirs = timed(lambda: peers.theirs(arguments.batch))
    same = [i for i, (a, b) in enumerate(zip(ours.texts, theirs.texts, strict=True)) if a == b]
    print(f"{len(ours.texts)} questions; of the {len(same)} answers that are the same text:\n")
    print("| how sure | largest difference | AUROC, lm-polygraph | AUROC, GrACE |")
    print("|---|---|---|---|")
    right = peers.right(ours.texts)
    for name in dict.fromkeys([*theirs.sure, *ours.sure]):
        sides = [side.sure.get(name) for side in (theirs, ours)]
        a, b = ([side[i] for i in same] if side else [] for side in sides)
        apart = f"{max(abs(x - y) for x, y in zip(a, b, strict=True)):.1e}" if a and b else ""
        areas = [f"{area(x, [right[i] for i in same]):.1f}" if x else "" for x in (a, b)]
        print(f"| {name} | {apart} | {areas[0]} | {areas[1]} |")
    print(f"\nlm-polygraph: {their_seconds:.0f} processor seconds, {theirs.tokens:,} tokens")
    print(f"\nGrACE: {our_seconds:.0f} processor seconds, {ours.tokens:,} tokens")
    print(f"\nratio of the seconds: {their_seconds / our_seconds:.1f}")


if __name__ == "__main__":
    main()
