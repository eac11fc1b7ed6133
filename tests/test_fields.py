"""Where in an answer the values of its fields are, and c there."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tiny_models
from grace.answers.fields import fields_in
from grace.cnf import add_cnf, set_rows
from grace.engines import Sampling
from grace.engines.reading import end_of, field_places, rate_fields
from grace.engines.transformers import TransformersEngine
from grace.errors import ModelError
from grace.evidence import FEATURES, Evidence, confidence, features
from grace.evidence.familiar import Familiar, Near, Own
from grace.methods.grace.fields import FieldColumns
from grace.methods.grace.fit import evidence_of, fit_evidence

WHOLE = [  # a text, and {name: (value, the characters that say so)}
    ('{"a": "x", "b": 12}', {"a": ("x", "x"), "b": (12, "12")}),
    ('{"b":12,"a":"x"}', {"b": (12, "12"), "a": ("x", "x")}),
    ('  \n{ "a"\t: "x"\n,\r\n"b" :12 }  ', {"a": ("x", "x"), "b": (12, "12")}),
    (r'{"a": "say \"x\", {\\}"}', {"a": ('say "x", {\\}', r"say \"x\", {\\}")}),
    ('{"a": "caf\\u00e9 \\ud83d\\ude00"}', {"a": ("café 😀", "caf\\u00e9 \\ud83d\\ude00")}),
    ('{"größe 😀": "東京, 😀"}', {"größe 😀": ("東京, 😀", "東京, 😀")}),
    ('{"a": {"b": {"c": 1}, "d": 2}, "e": 3}', {"a.b.c": (1, "1"), "a.d": (2, "2"), "e": (3, "3")}),
    ('{"a": [1, {"b": "]"}], "c": 2}', {"a": ([1, {"b": "]"}], '1, {"b": "]"}'), "c": (2, "2")}),
    ('{"a": "", "b": [], "c": {}}', {"a": ("", '""'), "b": ([], "[]"), "c": ({}, "{}")}),
    ('{"a": true, "b": null, "c": -1.5e3}',
     {"a": (True, "true"), "b": (None, "null"), "c": (-1500.0, "-1.5e3")}),
    ('{"a": 1, "b": 2, "a": 3}', {"b": (2, "2"), "a": (3, "3")}),
    ('{"a": {"b": 1}, "a": 3}', {"a": (3, "3")}),
    ('{"a": 3, "a": {"b": 1}}', {"a.b": (1, "1")}),
    ('{"a": {"b": 1, "c": 2}, "a": {"b": 3}}', {"a.b": (3, "3")}),
    ('{"a.b": 1, "a": {"b": 2}}', {"a.b": (2, "2")}),
    ('{"": {"": 1}}', {".": (1, "1")}),
    ('```json\n{"a": "x"}\n```\nThat is {"a": "y"}.', {"a": ("x", "x")}),
    ('In {braces} and {"so": on}: {"a": "x"}', {"a": ("x", "x")}),
    ('<think>{"a": "draft"}</think>{"a": "x"}', {"a": ("x", "x")}),
    ('{"a": "line\nbreak"}', {"a": ("line\nbreak", "line\nbreak")}),
    ('[{"a": 1}]', {"a": (1, "1")}),
    ('{"a": "\\ud83d lone"}', {"a": ("? lone", "\\ud83d lone")}),
]  # fmt: skip
CUT = [  # cut or malformed: what is complete before that
    ('{"a": "x", "b": 12', {"a": "x"}),
    ('{"a": "x", "b": 12.', {"a": "x"}),
    ('{"a": "x", "b": 12 ', {"a": "x", "b": 12}),
    ('{"a": "x", "b": tru', {"a": "x"}),
    ('{"a": "x", "b": true', {"a": "x"}),
    ('{"a": "x", "b": "y', {"a": "x"}),
    ('{"a": "x", "b": "y\\', {"a": "x"}),
    ('{"a": "x", "b": "y"', {"a": "x", "b": "y"}),
    ('{"a": "x", "b": [1, 2', {"a": "x"}),
    ('{"a": "x", "b": {"c": 1, "d": 2', {"a": "x", "b.c": 1}),
    ('{"a": "x", "a": "y', {"a": "x"}),
    ('{"a": "x", "b', {"a": "x"}),
    ('{"a": "x", "b": NaN, "c": 1}', {"a": "x"}),
    ('{"a": "x", "b": 1e999, "c": 1}', {"a": "x"}),
    ('{"a": "x" "b": 1}', {"a": "x"}),
    ("{'a': 'x'}", {}),
    ('{"a": nullify}', {}),
    ("{", {}),
    ("{}", {}),
    ("", {}),
    ("12", {}),
    ('{"a":' * 5000, {}),
    ('{"a": "x", "b": ' + "[" * 100_000, {"a": "x"}),
    ('{"a": "x", "b": ' + "9" * 5000 + "}", {"a": "x"}),
]


@pytest.mark.parametrize(("text", "wanted"), WHOLE)
def test_the_fields_of_an_answer_and_their_characters(text: str, wanted: dict[str, Any]) -> None:
    found = fields_in(text)
    said = {name: (spot.value, text[spot.start : spot.end]) for name, spot in found.items()}
    assert said == wanted
    json.dumps([spot.value for spot in found.values()], allow_nan=False).encode()


@pytest.mark.parametrize(("text", "wanted"), CUT)
def test_an_answer_that_was_cut_has_its_complete_fields(text: str, wanted: dict[str, Any]) -> None:
    assert {name: spot.value for name, spot in fields_in(text).items()} == wanted


def test_every_prefix_has_fields_of_the_whole_or_fewer() -> None:
    for text, wanted in WHOLE[:9]:
        for end in range(len(text)):
            for name, spot in fields_in(text[:end]).items():
                assert (spot.value, text[spot.start : spot.end]) == wanted[name]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_models.tokenizer()


def tokenizations(tokenizer: Any, text: str) -> list[list[int]]:
    """Return a text in its own tokens, one byte each, and in two other ways."""
    one_by_one = [i for byte in text.encode() for i in _byte(tokenizer, byte)]
    halves = [
        i
        for part in (text[:7], text[7:])
        for i in tokenizer(part, add_special_tokens=False)["input_ids"]
    ]
    return [tokenizer(text, add_special_tokens=False)["input_ids"], one_by_one, halves]


def _byte(tokenizer: Any, byte: int) -> list[int]:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return [tokenizer.convert_tokens_to_ids(bytes_to_unicode()[byte])]


@pytest.mark.parametrize(("text", "wanted"), WHOLE)
def test_the_tokens_of_a_value_cover_its_characters_and_no_others(
    tokenizer: Any, text: str, wanted: dict[str, Any]
) -> None:
    for ids in tokenizations(tokenizer, text):
        places = field_places(tokenizer, ids)
        assert {name: place.value for name, place in places.items()} == {
            name: value for name, (value, _) in wanted.items()
        }
        for name, (_, said) in wanted.items():
            start, end = places[name][1:3]
            covered = tokenizer.decode(ids[start:end])
            assert said in covered
            # no token at either side is without a character of the value
            assert said not in tokenizer.decode(ids[start + 1 : end])
            assert said not in tokenizer.decode(ids[start : end - 1])
            assert places[name].closed == (not covered.endswith(said))


def test_a_token_with_the_end_of_a_value_and_more_closes_it(tokenizer: Any) -> None:
    merged = _with_merges(['x"', "12}", '{"'])
    ids = merged('{"a": "x", "b": 12}', add_special_tokens=False)["input_ids"]
    places = field_places(merged, ids)
    assert [merged.decode(ids[p.start : p.end]) for p in places.values()] == ['x"', "12}"]
    assert all(place.closed for place in places.values())
    assert end_of(places["a"], [-1.0] * len(ids)) == 0.0
    plain = field_places(tokenizer, tokenizations(tokenizer, '{"a": "x"}')[1])["a"]
    assert end_of(plain, [*range(-20, 0)]) == -20 + plain.end


def _with_merges(tokens: list[str]) -> Any:
    """Return a tokenizer that has these texts as tokens of their own."""
    made = tiny_models.tokenizer()
    made.add_tokens(tokens)
    return made


EVIDENCE = Evidence(
    (2.0, 0.5, 0.1, -0.4, 1.5, 0.8, 0.6, 1.2), (-0.3, -0.9, -2.0, 0.7, 0.4, 0.6, 0.6, 0.5), 0.7
)
OF_A = replace(EVIDENCE, weights=(1.0, -0.5, 0.3, 0.4, -1.5, 0.1, 0.6, 2.2), bias=-0.4, limit=3.0)
FITTED = replace(EVIDENCE, fields={"": replace(EVIDENCE, bias=-2.0), "a": OF_A})
RECORD = '{"a": "Paris", "b": {"c": 12}}'


def test_a_field_is_read_like_an_answer_to_all_that_comes_before_it(tokenizer: Any) -> None:
    """The numbers of a second pass, over the prompt and what precedes a value, then the value."""
    model = tiny_models.model("llama_untied")
    cnf = add_cnf(model, tokenizer, head="linear")
    width = model.get_output_embeddings().weight.shape[1]
    set_rows(model, cnf.readout, np.random.default_rng(7).normal(size=(4, width)))
    engine = TransformersEngine(model, tokenizer, evidence=FITTED)
    prompt, ids = tiny_models.prompts(tokenizer)[3], tokenizer(RECORD)["input_ids"]
    (rated,) = engine.rated([prompt], [ids])
    assert {name: one["value"] for name, one in rated.fields.items()} == {"a": "Paris", "b.c": 12}
    for name, place in field_places(tokenizer, ids).items():
        before, value = [*prompt, *ids[: place.start]], ids[place.start : place.end]
        (alone,) = engine._scored([before], [value])
        ((tokens, _),) = engine.logprobs([[*before, *value]], [[ids[place.end]]])
        evidence = FITTED.of_field(name)
        wanted = confidence(alone.readings, alone.logprobs, tokens[0], evidence)
        assert rated.fields[name]["confidence"] == pytest.approx(wanted, abs=1e-5)
        own = np.array(alone.logprobs)
        said = [np.exp(own.mean()), np.exp(own.min())]
        assert rated.likelihoods[name] == pytest.approx(said, rel=1e-4)
    (plain,) = TransformersEngine(model, tokenizer, evidence=EVIDENCE).rated([prompt], [ids])
    assert not plain.fields and not plain.likelihoods
    assert plain.confidence == pytest.approx(rated.confidence, abs=1e-6)
    (drawn,) = dict(engine.generate([prompt], Sampling(max_new_tokens=5)))[0]
    assert drawn.fields == {}  # it is no JSON


def test_a_cut_answer_has_c_of_its_complete_fields_only(tokenizer: Any) -> None:
    ids = tokenizer(RECORD, add_special_tokens=False)["input_ids"]
    readings, logprobs = np.random.default_rng(0).normal(size=(len(ids) + 1, 3)), [-0.5] * len(ids)
    whole = rate_fields(tokenizer, ids, logprobs, readings.tolist(), FITTED)
    assert [*whole] == ["a", "b.c"]
    for count in range(len(ids)):
        # a response that was cut has as many readings as tokens
        cut = rate_fields(tokenizer, ids[:count], logprobs, readings[:count].tolist(), FITTED)
        assert all(whole[name] == cut[name] for name in cut), count
        assert ("a" in cut) == (count > field_places(tokenizer, ids)["a"].end), count


def test_the_card_keeps_the_fields_and_refuses_others() -> None:
    card = json.loads(json.dumps(FITTED.to_dict()))
    assert Evidence.from_dict(card) == FITTED
    assert FITTED.of_field("a") == OF_A and FITTED.of_field("z") == FITTED.fields[""]
    assert FITTED.mapped(0.5, 0.5, 1.0).fields == FITTED.fields
    for damaged in ([], {"a": EVIDENCE.to_dict()}, {"": 3}, {"": {}}):
        if damaged:
            with pytest.raises(ModelError, match=r"^grace\.json has"):
                Evidence.from_dict(card | {"fields": damaged})


def test_one_fit_says_what_c_of_an_answer_and_of_each_field_is() -> None:
    """The evidence of each is the wide fit, applied to its own columns."""
    rng = np.random.default_rng(0)
    names = [None] * 400 + ["a"] * 400 + ["b"] * 400 + ["few"] * 3
    phi = np.array([features(-rng.exponential(size=5), -0.1) for _ in names])
    right = np.concatenate([
        rng.random(400) < 0.3, rng.random(400) < 0.9, rng.random(400) < 0.2, np.ones(3, bool)
    ])  # fmt: skip
    columns = FieldColumns(phi, names, right.astype(float), rng.integers(0, 5, len(names)))
    wide = fit_evidence(columns.matrix_NX, right)
    split = columns.split(wide)
    assert sorted(split.fields) == ["", "a", "b", "few"]
    for name in ("a", "b", None):
        own = split if name is None else split.fields[name]
        rows = [row for row, one in enumerate(names) if one == name]
        c = [own.confidence(0.0, own.shift_of(phi[row])) for row in rows]
        assert np.mean(c) == pytest.approx(right[rows].mean(), abs=0.03)
    # of a few right values an offset is drawn towards all fields, and c is not near 1
    at_few, at_a = (split.fields[one] for one in ("few", "a"))
    assert split.fields["b"].bias < split.fields[""].bias < at_few.bias < at_a.bias
    assert at_few.confidence(99.0, 0.0) == pytest.approx(0.8)


@pytest.mark.parametrize("name", [None, "a"])
def test_strangers_and_fits_to_one_source_have_fields_too(name: str | None) -> None:
    rng = np.random.default_rng(1)
    names = [None] * 100 + ["a"] * 100
    phi = np.array([features(-rng.exponential(size=5), -0.1) for _ in names])
    columns = FieldColumns(phi, names, rng.random(200) < 0.4, rng.integers(0, 5, 200))
    x_NX = columns.matrix_NX
    x_NX[100:, 2 * len(FEATURES)] = columns.offset("a")
    weights = rng.normal(size=(3, x_NX.shape[1])) / 3
    alone = Own(0.5, tuple(weights[1]), 0.1)
    familiar = Familiar(1.0, tuple(weights[2]), 0.2, (alone,))
    wide = replace(evidence_of(x_NX, weights[0], 0.0), familiar=familiar)
    made = columns.split(wide)
    own = made if name is None else made.fields[name]
    row = names.index(name)
    for near in (Near(1.0), Near(1.0, 0, 0.3), Near(3.0, 0, 0.3)):
        assert own.rate(0.2, phi[row], near) == pytest.approx(wide.rate(0.2, x_NX[row], near))


def test_no_row_sees_its_own_grade_in_the_offset() -> None:
    names, folds = ["a"] * 50 + ["b"] * 50, np.arange(100) % 5
    phi, right = np.zeros((100, 7)), np.arange(100) % 3 > 0
    before = FieldColumns(phi, names, right.astype(float), folds).matrix_NX
    for fold in range(5):
        other = np.where(folds == fold, ~right, right).astype(float)
        after = FieldColumns(phi, names, other, folds).matrix_NX
        assert (before[folds == fold] == after[folds == fold]).all()
        assert (before[folds != fold] != after[folds != fold]).any()
