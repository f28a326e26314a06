"""The transformer: sizes, both ways through it, scoring, cost, and what it looks like to Hugging Face's transformers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

import chessrl.attention
import chessrl.fusion
from chessrl import notation
from chessrl.attention import attend, causal, mask_of_numbers
from chessrl.cache import BLOCK, SharedCache
from chessrl.checkpoint import load_model, save_model, tokenizer_files
from chessrl.config import ModelConfig
from chessrl.errors import UserError
from chessrl.model import Cost, build_model, causal_pairs, token_entropies, token_logprobs

CONF = Path(__file__).parents[1] / "conf" / "model"
TINY = ModelConfig("tiny", layers=2, hidden=32, ffn=48, heads=4, kv_heads=2, head_dim=16)
PAPER_MILLIONS = {
    "5m": 5.1,
    "10m": 11.8,
    "20m": 20.5,
    "32m": 31.6,
    "50m": 47.3,
    "100m": 101.6,
    "200m": 203.1,
    "410m": 411.3,
    "680m": 678.6,
    "1b": 1030,
}


def preset(name: str, vocabulary: int) -> ModelConfig:
    return ModelConfig(**OmegaConf.to_container(OmegaConf.load(CONF / f"{name}.yaml")), vocabulary=vocabulary)


@pytest.mark.parametrize("name", PAPER_MILLIONS)
def test_paper_sizes_have_the_papers_parameters(name):
    assert Cost.of(preset(name, 81)).parameters / 1e6 == pytest.approx(PAPER_MILLIONS[name], rel=0.015)


@pytest.mark.parametrize(("name", "low", "high"), [("nano", 0.25e6, 0.4e6), ("micro", 0.8e6, 1.2e6), ("mini", 2.5e6, 3.5e6)])
def test_cpu_sizes(name, low, high):
    assert low < Cost.of(preset(name, 101)).parameters < high


@pytest.mark.parametrize("name", ["nano", "5m", "32m", "100m"])
def test_parameter_count_equals_the_count_by_hand(name):
    c = preset(name, 101)
    attention = c.hidden * c.head_dim * (2 * c.heads + 2 * c.kv_heads) + 2 * c.head_dim
    by_hand = c.layers * (attention + 3 * c.hidden * c.ffn + 2 * c.hidden) + c.hidden
    cost = Cost.of(c)
    assert cost.parameters_without_embeddings == by_hand
    assert cost.parameters == by_hand + 2 * c.vocabulary * c.hidden


def test_flops_of_a_document():
    cost = Cost.of(TINY)
    assert cost.training_flops(10) == 60 * cost.parameters_without_embeddings
    assert causal_pairs(torch.tensor([3, 1])) == 7
    # scores and weighted values: 2 products of 2 x head_dim operations per head and layer for each (query, key) pair
    assert cost.attention_flops(7) == 7 * 2 * 2 * TINY.head_dim * TINY.heads * TINY.layers


def test_padding_on_the_right_changes_nothing():
    model = build_model(TINY, seed=0)
    tokens = torch.randint(0, 101, (2, 12))
    padded = torch.cat([tokens[:, :7], torch.full((2, 5), notation.PAD)], 1)
    assert torch.allclose(model(tokens)[:, :7], model(padded)[:, :7], atol=1e-6)


@pytest.mark.parametrize("shares_prompts", [False, True])
def test_cached_decoding_equals_a_full_forward_for_unequal_prompts(shares_prompts):
    model = build_model(TINY, seed=0)
    model.shares_prompts = shares_prompts
    tokens, lengths = torch.randint(0, 101, (3, 30)), torch.tensor([4, 15, 9])
    full = model(tokens)
    with torch.no_grad():
        last, cache = model.prefill(tokens[:, :15], lengths)
        rows = torch.arange(3)
        assert torch.allclose(last, full[rows, lengths - 1], atol=1e-5, rtol=0)
        for new in range(15):
            logits = model.decoder()(tokens[rows, lengths + new], cache)
            assert torch.allclose(logits, full[rows, lengths + new], atol=1e-5, rtol=0)
            if new == 6:  # sequences leave the batch and change places
                rows = torch.tensor([2, 0])
                cache, lengths = cache.select(rows), lengths[rows]


@pytest.mark.parametrize("group", ["unequal", "one each"])
@pytest.mark.parametrize("across", [False, True])
def test_sequences_that_share_a_prompt_are_decoded_as_if_each_had_its_own(across, group):
    """Groups of unequal size, whose members leave one by one: over more tokens than a block of slots holds. Values held either way."""
    model = build_model(TINY, seed=0, precision="fp64")
    prompts, lengths = torch.randint(0, 101, (3, 9)), torch.tensor([9, 4, 6])
    rows = torch.tensor([0, 0, 0, 1, 2, 2] if group == "unequal" else [0, 1, 2])
    leaving = {3: [0, 1, 3, 4, 5], 20: [4, 0, 3], 40: [2, 1]} if group == "unequal" else {3: [0, 2], 40: [1]}  # some change their places
    texts = torch.randint(0, 101, (len(rows), 2 * BLOCK + 5))
    full = [model(torch.cat([prompts[row, : lengths[row]], text])[None])[0, lengths[row] :] for row, text in zip(rows.tolist(), texts)]
    with torch.no_grad():
        model.shares_prompts = True
        _, cache = model.prefill(prompts, lengths)
        cache, kept = SharedCache.of(cache.prompts, lengths, across).select(rows), torch.arange(len(rows))
        for place in range(texts.shape[1]):
            logits = model.decoder()(texts[kept, place], cache)
            assert torch.allclose(logits, torch.stack([full[row][place] for row in kept.tolist()]), atol=1e-10, rtol=0)
            if place in leaving:
                left = torch.tensor(leaving[place])
                cache, kept = cache.select(left), kept[left]


@pytest.mark.parametrize("shares_prompts", [False, True])
def test_layers_in_several_groups_compute_what_one_group_does(shares_prompts, monkeypatch):
    model = build_model(replace(TINY, layers=5), seed=0, precision="fp64")
    model.shares_prompts = shares_prompts
    tokens, lengths = torch.randint(0, 101, (3, 12)), torch.tensor([12, 4, 9])

    def everything() -> list[torch.Tensor]:
        with torch.no_grad():
            last, cache = model.prefill(tokens, lengths)
            return [model(tokens), last, model.decoder()(tokens[:, 0], cache), model.states_after(tokens, lengths, torch.tensor([2, 0]), tokens[:2])]

    together = everything()
    monkeypatch.setattr(chessrl.fusion, "TOGETHER", 2)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(everything(), together, strict=True))


def test_compiling_asks_for_the_compiler_that_torch_will_look_for(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match=r"run\.compile=true: needs the C\+\+ compiler no-such-compiler"):
        build_model(TINY, seed=0, compiled=True)


@pytest.mark.parametrize("kv_heads", [2, 4])
def test_attention_by_products_is_as_near_to_the_exact_one_as_bf16_allows(kv_heads):
    """Output and gradients beside fp64, and beside torch's own bf16 kernel. Values with a common offset, whose gradients cancel."""
    draw = torch.Generator().manual_seed(0)
    q, k, v, way = (torch.randn(2, heads, 40, 16, generator=draw, dtype=torch.float64) for heads in (4, kv_heads, kv_heads, 4))
    v, way = v + 3, way + 0.5
    visible = causal(torch.arange(40))[None, None].expand(2, 1, -1, -1)

    def results(dtype: torch.dtype, mask: torch.Tensor) -> list[torch.Tensor]:
        leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        out = attend(*leaves, mask)
        return [out, *torch.autograd.grad(out, leaves, way.to(dtype))]

    exact = results(torch.float64, visible)
    ours, theirs = results(torch.bfloat16, mask_of_numbers(visible)), results(torch.bfloat16, visible)
    for right, our, their in zip((x.detach() for x in exact), ours, theirs, strict=True):
        errors = [float(torch.linalg.vector_norm(x.detach() - right) / torch.linalg.vector_norm(right)) for x in (our, their)]
        assert errors[0] < min(0.03, 1.5 * errors[1])


def test_the_last_tokens_alone_have_the_states_that_they_have_among_all(monkeypatch):
    """For unequal prompts, by products and past the table's bound (as on a GPU)."""
    tokens, lengths = torch.randint(0, 101, (3, 11)), torch.tensor([11, 1, 7])
    for precision, keys in (("fp64", 1024), ("bf16", 1024), ("bf16", 4)):
        monkeypatch.setattr(chessrl.attention, "PLAIN_KEYS", keys)
        model = build_model(TINY, seed=0, precision=precision)
        expected = model.states(tokens)[torch.arange(3), lengths - 1]
        assert torch.allclose(model.states(tokens, last=lengths - 1)[:, 0], expected, atol=1e-12 if precision == "fp64" else 0.01, rtol=0)


@pytest.mark.long
@pytest.mark.parametrize(("kv_heads", "together"), [(TINY.kv_heads, 6), (TINY.heads, 6), (TINY.heads, 1)])  # decoding by products or by loops
def test_compiled_layers_compute_what_the_plain_ones_do(kv_heads, together, monkeypatch):
    """Logits, gradients, shared prompts and decoding, with batches of several sizes and of one; both layers as one or each by itself."""
    monkeypatch.setattr(chessrl.fusion, "TOGETHER", together)
    config = replace(TINY, kv_heads=kv_heads)
    plain, fused = (build_model(config, seed=0, precision="bf16", compiled=compiled) for compiled in (False, True))
    close = {"atol": 0.02, "rtol": 0.0}  # a few roundings of bf16
    for rows, length in ((3, 30), (2, 47), (1, 9)):
        tokens = torch.randint(0, 101, (rows, length))
        ours, theirs = (model(tokens) for model in (fused, plain))
        assert torch.allclose(ours, theirs, **close)
        ours, theirs = (
            torch.autograd.grad(logits.float().logsumexp(-1).mean(), model.model.layers[0].mlp.up_proj.weight)[0]
            for logits, model in ((ours, fused), (theirs, plain))
        )
        assert torch.linalg.vector_norm(ours - theirs) < 0.05 * torch.linalg.vector_norm(theirs)
    prompts, lengths, owner = torch.randint(0, 101, (2, 7)), torch.tensor([7, 5]), torch.tensor([0, 0, 1, 0])
    answers = torch.randint(0, 101, (4, 40))
    with torch.no_grad():
        states = [model.states_after(prompts, lengths, owner, answers) for model in (fused, plain)]
        assert torch.allclose(*(state.float() for state in states), atol=0.1, rtol=0.02)
        caches = [model.prefill(prompts, lengths)[1].select(owner) for model in (fused, plain)]
        steps = [model.decoder() for model in (fused, plain)]
        for place in range(40):
            ours, theirs = (step(answers[:, place], cache) for step, cache in zip(steps, caches))
            assert torch.allclose(ours, theirs, **close)
            if place == 20:
                caches = [cache.select(torch.tensor([2, 1])) for cache in caches]
                answers = answers[[2, 1]]


def test_logprobs_and_entropies_against_torch_distributions():
    logits, targets = torch.randn(4, 5, 11), torch.randint(0, 11, (4, 5))
    for temperature in (1.0, 0.5, 2.0):
        expected = torch.distributions.Categorical(logits=logits / temperature)
        assert torch.allclose(token_logprobs(logits, targets, temperature), expected.log_prob(targets), atol=1e-6)
        assert torch.allclose(token_entropies(logits, temperature), expected.entropy(), atol=1e-6)


def test_initial_weights_are_a_function_of_the_seed():
    first, again, other = (build_model(TINY, seed=seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


# ---- folders ------------------------------------------------------------------------------------------------------------------------------


def test_saved_model_loads_back_equal(tmp_path):
    model = build_model(TINY, seed=3)
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert loaded.config == TINY
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in model.state_dict().items())


def test_missing_weights_are_refused_not_filled_at_random(tmp_path):
    save_model(build_model(TINY, seed=3), tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["chessrl"]["layers"] = 3
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"11 weights missing and 0 unknown, the first is model\.layers\.2"):
        load_model(tmp_path / "model")


@pytest.mark.parametrize("damage", ["truncated weights", "no weights", "config is no JSON"])
def test_damaged_model_folder_is_one_line(tmp_path, damage):
    folder = tmp_path / "model"
    save_model(build_model(TINY, seed=3), folder)
    weights = folder / "model.safetensors"
    if damage == "truncated weights":
        weights.write_bytes(weights.read_bytes()[:1000])
    elif damage == "no weights":
        weights.unlink()
    else:
        (folder / "config.json").write_text("{")
    with pytest.raises(UserError) as error:
        load_model(folder)
    assert "\n" not in str(error.value)


def test_static_tokenizer_holds_our_ids():
    for size in (notation.REFERENCE_SIZE, notation.REFERENCE_TRACE_SIZE, len(notation.VOCABULARY)):
        files = tokenizer_files(size)
        assert files["vocab.json"] == {token: index for index, token in enumerate(notation.VOCABULARY[:size])}
        assert files["tokenizer.json"]["model"]["vocab"] == files["vocab.json"]


def test_transformers_loads_the_folder_with_equal_logits_and_ids(tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs the hf extra: pip install 'chessrl[hf]'")
    model = build_model(TINY, seed=5)
    with torch.no_grad():
        for parameter in model.parameters():  # norms at 1 would hide a norm in the wrong place
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())))
    save_model(model, tmp_path / "model")
    theirs = transformers.Qwen3ForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    tokens = torch.randint(0, 101, (3, 40))
    with torch.no_grad():
        assert torch.allclose(model(tokens), theirs(tokens).logits, atol=1e-4)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    text = "<bos> <pos> <white> <K> <ep> e6 K e1 k e8 </pos> <T> P e7 x d8 = Q + </T> O-O-O # <call_env> <pad>"
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == notation.from_text(text)
    assert tokenizer.pad_token_id == notation.PAD and tokenizer.eos_token_id == notation.EOS


@pytest.mark.gpu
def test_cuda_logits_equal_the_cpus():
    model = build_model(TINY, seed=0)
    tokens = torch.randint(0, 101, (4, 50))
    expected = model(tokens)
    assert torch.allclose(model.cuda()(tokens.cuda()).cpu(), expected, atol=1e-4)
