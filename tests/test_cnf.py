from __future__ import annotations

import pytest
import torch

import tiny_models
from grace.cnf import CNF_TOKEN, Readout, add_cnf, find_readout, trainable_rows, without
from grace.errors import ModelError

every_architecture = pytest.mark.parametrize("tiny", tiny_models.ARCHITECTURES, indirect=True)


def logits_of(model):
    """Logits of a batch, of a single sequence and of single tokens (other kernels each)."""
    ids = torch.arange(4, 304)
    shapes = ((6, 50), (1, 37), (1, 1), (16, 1))
    with torch.inference_mode():
        found = [
            model(ids[: rows * length].reshape(rows, length)).logits for rows, length in shapes
        ]
    return torch.cat([logits.flatten(0, 1) for logits in found])


def rows_of(model):
    return model.get_input_embeddings().weight.shape[0], model.get_output_embeddings().weight.shape[
        0
    ]


def is_tied(model):
    return model.get_input_embeddings().weight is model.get_output_embeddings().weight


@every_architecture
def test_old_logits_are_bit_equal_after_adding_the_token(tiny):
    model, tokenizer = tiny
    before, was_tied = logits_of(model), is_tied(model)
    token = add_cnf(model, tokenizer)
    after = logits_of(model)
    others = [i for i in range(before.shape[-1]) if i != token.id]
    assert torch.equal(before[..., others], after[..., others])
    assert is_tied(model) == was_tied


@every_architecture
def test_old_rows_and_the_global_random_state_are_untouched(tiny):
    model, tokenizer = tiny
    before = model.get_input_embeddings().weight.detach().clone()
    state = torch.random.get_rng_state()
    token = add_cnf(model, tokenizer)
    after = model.get_input_embeddings().weight
    assert torch.equal(before[: token.id], after[: token.id])
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize("tiny", ["qwen2"], indirect=True)
def test_a_padded_vocabulary_gives_a_spare_row_and_keeps_its_size(tiny):
    model, tokenizer = tiny
    rows = rows_of(model)
    token = add_cnf(model, tokenizer)
    assert token.spare_row and token.id == len(tokenizer) - 1
    assert rows_of(model) == rows and model.config.vocab_size == rows[0]


def test_a_full_vocabulary_grows_by_one_row(tiny):
    model, tokenizer = tiny
    rows = rows_of(model)
    token = add_cnf(model, tokenizer)
    assert not token.spare_row and token.id == rows[0]
    assert rows_of(model) == (rows[0] + 1, rows[1] + 1)
    assert model.config.vocab_size == rows[0] + 1


def test_a_model_with_fewer_rows_than_tokens_grows_to_hold_the_token(tiny):
    model, tokenizer = tiny
    tokenizer.add_tokens(["brandnew", "words"])
    twin = tiny_models.model("llama_untied")
    first = add_cnf(model, tokenizer, seed=3)
    assert rows_of(model)[0] == first.id + 1 == len(tokenizer)
    add_cnf(twin, tokenizer, seed=3)
    assert torch.equal(model.lm_head.weight, twin.lm_head.weight)


@every_architecture
def test_adding_twice_changes_nothing(tiny):
    model, tokenizer = tiny
    first = add_cnf(model, tokenizer)
    with torch.no_grad():
        model.get_output_embeddings().weight[first.id] += 1  # as if trained
    before, size = logits_of(model), len(tokenizer)
    assert add_cnf(model, tokenizer) == first
    assert torch.equal(before, logits_of(model))
    assert len(tokenizer) == size


@every_architecture
def test_the_row_starts_as_that_of_eos(tiny):
    model, tokenizer = tiny
    token = add_cnf(model, tokenizer)
    for module in (model.get_input_embeddings(), model.get_output_embeddings()):
        assert torch.equal(module.weight[token.id], module.weight[tokenizer.eos_token_id])


def test_an_eos_row_makes_c_equal_to_the_probability_of_eos(tiny):
    model, tokenizer = tiny
    token = add_cnf(model, tokenizer)
    probs = logits_of(model).softmax(-1)
    torch.testing.assert_close(probs[..., token.id], probs[..., tokenizer.eos_token_id])


def test_in_a_head_with_a_bias_the_new_row_has_none(tiny):
    model, tokenizer = tiny
    head = model.get_output_embeddings()
    head.bias = torch.nn.Parameter(torch.linspace(-1, 1, head.out_features))
    before, eos_bias = logits_of(model), head.bias[tokenizer.eos_token_id].item()
    token = add_cnf(model, tokenizer)
    after = logits_of(model)
    assert torch.equal(before, after[..., : token.id])
    assert model.get_output_embeddings().bias[token.id] == 0
    eos = after[..., tokenizer.eos_token_id]
    torch.testing.assert_close(after[..., token.id], eos - eos_bias)


def test_the_token_is_special_survives_saving_and_is_not_shown(tiny, tmp_path):
    import transformers

    model, tokenizer = tiny
    assert find_readout(tokenizer) is None
    token = add_cnf(model, tokenizer)
    tokenizer.save_pretrained(tmp_path)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for each in (tokenizer, again):
        assert find_readout(each) == token.readout
        assert each.decode([*each.encode("yes"), token.id], skip_special_tokens=True) == "yes"
        assert each.encode(CNF_TOKEN) == [token.id]


def test_without_an_eos_token_it_is_refused(tiny):
    model, tokenizer = tiny
    tokenizer.eos_token = None
    with pytest.raises(ModelError, match=r"no EOS token, .*; set eos_token"):
        add_cnf(model, tokenizer)
    assert find_readout(tokenizer) is None


@every_architecture
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft 0.21
def test_peft_trains_exactly_the_row_in_both_matrices(tiny):
    import peft

    model, tokenizer = tiny
    token = add_cnf(model, tokenizer)
    before = [m.weight.detach().clone() for m in _matrices(model)]
    config = peft.LoraConfig(
        r=2, target_modules=["dense"] if "neox" in model.config.model_type else ["o_proj"],
        trainable_token_indices=trainable_rows(model, token.readout),
    )  # fmt: skip
    wrapped = peft.get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "trainable_tokens_delta" in name:
                parameter += 1
    merged = wrapped.merge_and_unload()
    for old, module in zip(before, _matrices(merged), strict=True):
        changed = (old != module.weight).any(-1).nonzero().flatten().tolist()
        assert changed == [token.id]


def _matrices(model):
    return model.get_input_embeddings(), model.get_output_embeddings()


@every_architecture
def test_ten_bin_tokens_leave_old_logits_bit_equal_and_start_alike(tiny):
    model, tokenizer = tiny
    before, was_tied = logits_of(model), is_tied(model)
    token = add_cnf(model, tokenizer, head="bins")
    after = logits_of(model)
    ids = list(token.readout.ids)
    others = [i for i in range(before.shape[-1]) if i not in ids]
    assert torch.equal(before[..., others], after[..., others])
    torch.testing.assert_close(after[..., ids], after[..., ids[:1]].expand(-1, 10))
    assert is_tied(model) == was_tied
    assert tokenizer.convert_ids_to_tokens(ids) == [f"<B{n}>" for n in range(1, 11)]
    assert not token.spare_row and max(ids) + 1 == rows_of(model)[0]
    assert add_cnf(model, tokenizer, head="bins") == token


def test_the_tokens_of_one_head_are_not_added_to_the_other(tiny):
    model, tokenizer = tiny
    assert find_readout(tokenizer) is None
    add_cnf(model, tokenizer)
    with pytest.raises(ModelError, match="has <CNF> already, so head 'bins' cannot be added"):
        add_cnf(model, tokenizer, head="bins")


def test_a_confidence_is_the_tokens_probability_or_the_middle_of_the_likeliest_bin():
    def c_of(readout, probs):
        return readout.readings(probs.log(), torch.zeros(len(probs)))[:, 0].sigmoid().tolist()

    assert c_of(Readout((7,)), torch.tensor([[0.25], [0.5]])) == pytest.approx([0.25, 0.5])
    probs = torch.eye(10)[[0, 4, 9, 9]] + 0.01
    probs[3, 2] = probs[3, 9] * (1 - 1e-6)
    bins = Readout(tuple(range(20, 30)))
    assert c_of(bins, probs) == pytest.approx([0.05, 0.45, 0.95, 0.25])
    assert (Readout((7,)).cnf, bins.cnf) == (7, None)


def test_a_linear_read_out_compares_logits_with_that_of_noc_and_ends_nothing():
    linear = Readout((7, 8, 9, 10))
    logits = torch.tensor([[-20.0, -22.0, -24.0, -23.0], [-31.0, -31.5, -30.0, -30.5]])
    readings = [[3.0, 1.0, -1.0], [-0.5, -1.0, 0.5]]
    assert linear.readings(logits, torch.tensor([5.0, -5.0])).tolist() == readings
    assert (linear.head, linear.cnf, linear.ends) == ("linear", 7, ())
    assert Readout((7,)).ends == (7,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_logits_without_the_tokens_lack_these_alone_in_any_precision(dtype):
    ids = (151665, 151666, 151667, 151668)  # which half precision cannot tell apart
    left = without(torch.zeros(1, 151680, dtype=dtype), Readout(ids))
    assert left.dtype == dtype
    assert left[0].isinf().nonzero()[:, 0].tolist() == list(ids)
