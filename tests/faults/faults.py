"""The faults: for each definition of the method, the smallest changes that break it.

A fault names a function (or a constant) and what stands in its place: `wrong` takes the original
and returns the replacement. Nothing here may import `grace` before a replacement runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple


class Fault(NamedTuple):
    """A replacement of `module:name`, and the tests that must fail with it."""

    name: str
    at: str
    wrong: Callable[[Any], Any]
    tests: tuple[str, ...]


def _half(tensor: Any) -> Any:
    return tensor.half() if tensor.is_floating_point() else tensor


def _ending_as_cnf(read_steps: Callable[..., Any]) -> Any:
    def wrong(logits: Any, drawn: Any, reader: Any) -> Any:
        ends = logits[:, [*reader.stops, *reader.readout.ids]].logsumexp(-1)
        unread = ends - logits.logsumexp(-1)  # before `read_steps` overwrites the logits
        logprobs, end, _, readings = read_steps(logits, drawn, reader)
        return [logprobs, end, unread, readings]

    return wrong


def _rating_cut(response: Callable[..., Any]) -> Any:
    def wrong(*args: Any) -> Any:
        made = response(*args)
        return dataclasses.replace(made, confidence=made.trace[-1] if made.trace else None)

    return wrong


def _with_labels(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Change the labels of every batch."""

    def wrong(collate: Any) -> Any:
        return lambda *args: (lambda batch: {**batch, "labels": change(batch)})(collate(*args))

    return wrong


def _prompt_too(batch: Any) -> Any:
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    labels[:, -1] = -100
    return labels


def _cnf_too(batch: Any) -> Any:
    labels = batch["labels"].clone()
    labels[:, -1] = batch["input_ids"][:, -1]
    return labels


def _gamma_one(loss: Callable[..., Any]) -> Any:
    def wrong(self: Any, batch: Any) -> Any:
        kept, self.settings = self.settings, dataclasses.replace(self.settings, gamma=1.0)
        try:
            return loss(self, batch)
        finally:
            self.settings = kept

    return wrong


def _shown(add_tokens: Callable[..., Any]) -> Any:
    def wrong(tokenizer: Any, names: Any) -> Any:
        from grace.cnf import Readout

        tokenizer.add_tokens(list(names))
        return Readout(tuple(tokenizer.convert_tokens_to_ids(list(names))))

    return wrong


def _shrunk(add_cnf: Callable[..., Any]) -> Any:
    def wrong(model: Any, tokenizer: Any, **options: Any) -> Any:
        made = add_cnf(model, tokenizer, **options)
        model.resize_token_embeddings(max(made.readout.ids) + 1, mean_resizing=False)
        return made

    return wrong


def _first_alias(grade: Callable[..., Any]) -> Any:
    def wrong(text: str, question: Any, threshold: float) -> Any:
        return grade(text, dataclasses.replace(question, answers=question.answers[:1]), threshold)

    return wrong


def _bin_below(bin_index: Callable[..., Any]) -> Any:
    import numpy as np

    return lambda c, bins: np.searchsorted(np.arange(1, bins) / bins, c, side="left")


def _bin_beyond(bin_index: Callable[..., Any]) -> Any:
    import numpy as np

    return lambda c, bins: np.searchsorted(np.arange(1, bins + 1) / bins, c, side="right")


def _ties_lost(metrics: dict[str, Any]) -> Any:
    import numpy as np

    def auroc(at: Any) -> Any:
        wrong = at.n_RT - at.right_RT
        wins = np.einsum("rt,rt->r", at.right_RT, np.cumsum(wrong, axis=1) - wrong)
        return wins / (at.right_RT.sum(axis=1) * wrong.sum(axis=1))

    return {**metrics, "auroc": auroc}


def _from_the_middle(metrics: dict[str, Any]) -> Any:
    def ece(at: Any) -> Any:
        from grace.metrics.kernels import bin_index

        middle = (bin_index(at.data.confidence_N, at.data.bins) + 0.5) / at.data.bins
        return metrics["ece"](type(at)(at.data._replace(confidence_N=middle), at.counts_RN))

    return {**metrics, "ece": ece}


def _nearest(round_rows: Callable[..., Any]) -> Any:
    def wrong(rows_ED: Any, states: Any) -> Any:
        from grace.methods.grace.rounding import _bfloat16

        return _bfloat16(rows_ED)

    return wrong


TRANSFORMERS = "tests/engines/test_transformers.py::"
READING = "tests/engines/test_reading.py::"
EVIDENCE = "tests/test_evidence.py::"
CNF = "tests/test_cnf.py::"
LOSS = "tests/paper/test_loss.py::"
TRAINER = "tests/paper/test_trainer.py::"
EXAMPLES = "tests/paper/test_examples.py::"
TARGETS = "tests/paper/test_targets.py::"
HANDOVERS = "tests/pipeline/test_handovers.py::"
GRADING = "tests/test_grading.py::"
METRICS = "tests/test_metrics.py::"
SAME_C = "tests/engines/test_evidence_reading.py::test_generating_and_scoring_read_the_same_c"

FAULTS = [
    # 1. Confidence: P(right), none without a proper end.
    Fault(
        "a cut answer has a confidence",
        "grace.engines.reading:to_response",
        _rating_cut,
        (READING + "test_a_response_that_never_ends_has_no_confidence",),
    ),
    Fault(
        "cut answers are rated",
        "grace.estimators:ended_rows",
        lambda _: lambda samples: list(range(len(samples.responses))),
        (
            "tests/estimators/test_probe_estimator.py::"
            "test_cut_responses_have_no_value_and_cost_no_forward",
        ),
    ),
    Fault(
        "an answer at the threshold is not given",
        "grace.strategies.rules:EarlyStop.stops",
        lambda f: lambda self, table: f(dataclasses.replace(self, threshold=2.0), table),
        (
            "tests/strategies/test_strategies.py::"
            "test_early_stop_takes_the_first_sure_answer_and_no_more",
        ),
    ),
    # 2. c: the float32 softmax over the whole vocabulary, at temperature 1.
    Fault(
        "c after temperature",
        "grace.cnf:Readout.readings",
        lambda f: lambda self, logits, total: f(self, logits / 0.7, total / 0.7),
        (TRANSFORMERS + "test_generation_equals_a_naive_loop_without_cache_padding_or_batch",),
    ),
    Fault(
        "c over the read tokens alone",
        "grace.cnf:Readout.readings",
        lambda f: lambda self, logits, total: f(self, logits, logits.logsumexp(-1) + 1),
        (TRANSFORMERS + "test_generation_equals_a_naive_loop_without_cache_padding_or_batch",),
    ),
    Fault(
        "the loss in half precision",
        "grace.methods.paper.loss:token_losses",
        lambda f: lambda logits, labels: _half(f(logits, labels)),
        (LOSS + "test_losses_of_half_precision_inputs_are_float32",),
    ),
    # 3. Where c is read: the same in training and in every engine.
    Fault(
        "c read one step early",
        "grace.evidence:along",
        lambda f: lambda *args: (lambda trace: [*trace[:1], *trace[:-1]])(f(*args)),
        (EVIDENCE + "test_step_by_step_and_whole_confidences_agree",),
    ),
    Fault(
        "the prompt is read anew at every step",
        "grace.evidence:pooled",
        lambda f: lambda readings: f([readings[-1], *readings[1:]]),
        (EVIDENCE + "test_step_by_step_and_whole_confidences_agree",),
    ),
    Fault(
        "a server is asked for c at the prompt",
        "grace.engines.reading:Reader.read_for_c",
        lambda f: lambda self, prompt, response: (prompt, ()),
        (
            "tests/contracts/test_engines.py::"
            "test_samples_have_the_c_and_the_probabilities_that_reading_them_again_gives",
        ),
    ),
    Fault(
        "the block before the one that c reads",
        "grace.engines.local.layers:mlp_output",
        lambda f: lambda model, layer: f(model, max(layer - 1, 1)),
        ("tests/engines/test_middle_layer.py::test_a_block_is_counted_from_one",),
    ),
    # 4. An end is EOS, <CNF> or a stop string; p(end) is their sum; <CNF> never shows.
    Fault(
        "an answer goes on after <CNF>",
        "grace.engines.reading:Reader.stops",
        lambda f: property(lambda self: self.eos),
        (TRANSFORMERS + "test_greedy_ends_where_an_end_token_is_the_most_probable_token",),
    ),
    Fault(
        "the end of a server's answer is the larger of two",
        "grace.engines.reading:log_sum",
        lambda f: lambda values: max(values),
        (READING + "test_a_response_ends_where_an_end_was_chosen",),
    ),
    Fault(
        "<CNF> shows",
        "grace.cnf:_add_tokens",
        _shown,
        (CNF + "test_the_token_is_special_survives_saving_and_is_not_shown",),
    ),
    Fault(
        "a token that is only read is drawn",
        "grace.engines.reading:Reader.banned",
        lambda f: property(lambda self: ()),
        (
            "tests/engines/test_evidence_reading.py::"
            "test_a_linear_read_out_changes_no_token_and_no_probability",
        ),
    ),
    Fault(
        "<CNF> counts as an end among the token probabilities",
        "grace.engines.transformers:read_steps",
        _ending_as_cnf,
        (SAME_C + "[llama_untied-predict]",),
    ),
    Fault(
        "an export does not stop at <CNF>",
        "grace.export.forms:end_ids",
        lambda f: (
            lambda model, tokenizer, record: [
                i for i in f(model, tokenizer, record) if i != record["cnf_id"]
            ]
        ),
        (
            "tests/export/test_forms.py::"
            "test_any_program_stops_on_cnf_and_can_compute_the_confidence",
        ),
    ),
    Fault(
        "a stop token is no end",
        "grace.engines.local.loading:eos_ids",
        lambda f: lambda model, tokenizer, read=(), stops=(): f(model, tokenizer, read),
        ("tests/engines/test_stops.py::test_p_end_is_the_sum_over_eos_stop_tokens_and_cnf",),
    ),
    # 5. Training: labels are the answer's own tokens; (t - c)^2 + gamma * the mean SFT loss.
    Fault(
        "<CNF> is a label",
        "grace.methods.paper.examples:collate",
        _with_labels(_cnf_too),
        (EXAMPLES + "test_labels_are_the_response_tokens_and_nothing_else",),
    ),
    Fault(
        "the prompt is a label",
        "grace.methods.paper.examples:collate",
        _with_labels(_prompt_too),
        (EXAMPLES + "test_labels_are_the_response_tokens_and_nothing_else",),
    ),
    Fault(
        "absolute for squared error",
        "grace.methods.paper.loss:calibration_loss",
        lambda f: lambda log_c, target, *kind: (target - log_c.exp()).abs(),
        (LOSS + "test_the_squared_error_is_that_of_c",),
    ),
    Fault(
        "SFT is a sum",
        "grace.methods.paper.loss:mean_over_tokens",
        lambda f: lambda loss, labels: loss.sum(dim=1),
        (LOSS + "test_the_sft_term_is_the_mean_over_an_examples_own_tokens",),
    ),
    Fault(
        "gamma is ignored",
        "grace.methods.paper.loop:Loop._loss",
        _gamma_one,
        (TRAINER + "test_gamma_keeps_what_the_model_says",),
    ),
    Fault(
        "training targets inverted",
        "grace.pipeline.stages.paper:train_on",
        lambda f: (
            lambda context, targets, *args, **options: f(
                context, [1 - t for t in targets], **options
            )
        ),
        (HANDOVERS + "test_the_trainer_gets_the_responses_that_ended_with_their_own_targets",),
    ),
    # 6. Rows: a spare row if there is one; LoRA and the rows are trained, nothing else.
    Fault(
        "a padded vocabulary shrinks",
        "grace.cnf:add_cnf",
        _shrunk,
        (CNF + "test_a_padded_vocabulary_gives_a_spare_row_and_keeps_its_size",),
    ),
    Fault(
        "only the input row is trained",
        "grace.cnf:trainable_rows",
        lambda f: (
            lambda model, readout: (
                lambda rows: rows if isinstance(rows, list) else dict(list(rows.items())[:1])
            )(f(model, readout))
        ),
        (CNF + "test_peft_trains_exactly_the_row_in_both_matrices",),
    ),
    Fault(
        "the row starts as another token's",
        "grace.cnf:_copy_row",
        lambda f: lambda module, source, token: f(module, 0, token),
        (CNF + "test_an_eos_row_makes_c_equal_to_the_probability_of_eos",),
    ),
    Fault(
        "the row decays",
        "grace.methods.paper.loop:_groups",
        lambda f: (
            lambda model, settings: [
                {**group, "weight_decay": settings.weight_decay} for group in f(model, settings)
            ]
        ),
        (TRAINER + "test_weight_decay_is_for_lora_alone",),
    ),
    Fault(
        "fitted rows rounded to the nearest bfloat16 numbers",
        "grace.methods.grace.rounding:round_rows",
        _nearest,
        ("tests/test_readout.py::test_the_rows_are_bfloat16_numbers_whose_errors_cancel",),
    ),
    Fault(
        "rows that fit noise count in full",
        "grace.methods.grace.fit:PRIOR",
        lambda _: 0,
        (
            "tests/test_readout.py::"
            "test_the_read_out_is_a_mean_of_the_fit_with_rows_and_of_100_answers_worth_without",
        ),
    ),
    # 7. Targets: folds by question, scores in [0, 1], the accuracy of the bin.
    Fault(
        "a question in several folds",
        "grace.probe.rows:assign_folds",
        lambda f: lambda groups, *args, **options: f(range(len(groups)), *args, **options),
        (
            "tests/test_probe.py::test_no_row_of_a_question_sees_another_row_of_it",
            "tests/estimators/test_what_is_fitted_where.py::"
            "test_the_probe_chooses_its_penalty_on_folds_of_questions",
        ),
    ),
    Fault(
        "target labels inverted",
        "grace.methods.paper.targets:make_targets",
        lambda f: lambda scores, labels, **options: f(scores, 1 - labels, **options),
        (TARGETS + "test_a_target_is_the_accuracy_of_the_bin",),
    ),
    # 8. Grading: ROUGE-L F1 of at least 0.3 against the best alias.
    Fault(
        "ROUGE above the threshold only",
        "grace.grading:_rouge",
        lambda f: lambda text, question, threshold: f(text, question, threshold + 1e-6),
        (GRADING + "test_a_grader_judges_as_the_table_says",),
    ),
    Fault(
        "the first alias alone",
        "grace.grading:_rouge",
        _first_alias,
        (GRADING + "test_a_grader_judges_as_the_table_says",),
    ),
    Fault(
        "ROUGE-L halved",
        "grace.metrics.rouge:rouge_l",
        lambda f: lambda reference, response: f(reference, response) / 2,
        (GRADING + "test_rouge_l_equals_the_rouge_score_package",),
    ),
    # 9. Figures: ten bins, the last one closed; whole questions are resampled.
    Fault(
        "an edge belongs to the bin below",
        "grace.metrics.kernels:bin_index",
        _bin_below,
        (METRICS + "test_a_confidence_on_an_edge_belongs_to_the_bin_above",),
    ),
    Fault(
        "a bin beyond the last",
        "grace.metrics.kernels:bin_index",
        _bin_beyond,
        (METRICS + "test_a_confidence_of_exactly_one_counts_in_the_last_bin",),
    ),
    Fault(
        "ECE from the middle of the bin",
        "grace.metrics.kernels:METRICS",
        _from_the_middle,
        (METRICS + "test_certain_and_right_is_perfect_and_certain_and_wrong_is_worst",),
    ),
    Fault(
        "ties count as lost",
        "grace.metrics.kernels:METRICS",
        _ties_lost,
        (METRICS + "test_all_ties_say_nothing",),
    ),
    Fault(
        "answers are resampled, not questions",
        "grace.metrics.resampling:Resamples._codes",
        lambda f: lambda self, questions, n: f(self, questions, n) * 0,
        (METRICS + "test_whole_questions_are_resampled_when_asked",),
    ),
    # 10. Text from a user is text.
    Fault(
        "contents are trusted",
        "grace.chat:_parts",
        lambda f: lambda *args: [(text, True) for text, _ in f(*args)],
        ("tests/test_chat.py::test_user_text_is_text_under_every_template",),
    ),
    Fault(
        "a response that is scored is trusted",
        "grace.chat:encode_response",
        lambda f: (
            lambda tokenizer, messages, text: tokenizer.encode(text, add_special_tokens=False)
        ),
        ("tests/test_model.py::test_a_response_cannot_write_its_own_confidence",),
    ),
    # The token probabilities beside the read-out.
    Fault(
        "log-probabilities are not clipped",
        "grace.evidence:_clipped",
        lambda f: lambda logprob: min(logprob, 0.0),
        (EVIDENCE + "test_an_impossible_token_counts_the_same_however_the_evidence_is_computed",),
    ),
    Fault(
        "a slope does nothing",
        "grace.evidence:Evidence.confidence",
        lambda f: (
            lambda self, state, shift: f(
                dataclasses.replace(self, adjusted=self.adjusted and (1.0, 1.0, self.adjusted[2])),
                *(state, shift),
            )
        ),
        (EVIDENCE + "test_a_slope_multiplies_the_log_odds",),
    ),
    Fault(
        "c beyond what the answers support",
        "grace.evidence:Evidence.confidence",
        lambda f: lambda self, state, shift: f(dataclasses.replace(self, limit=40.0), state, shift),
        (EVIDENCE + "test_c_never_says_more_than_the_number_of_answers_supports",),
    ),
    Fault(
        "rounding noise is fitted",
        "grace.probe.rows:varying",
        lambda f: lambda features: features,
        (EVIDENCE + "test_nonsense_gets_no_certainty_from_a_feature_that_was_rounding_noise",),
    ),
]
