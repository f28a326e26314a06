"""What users would run instead, one round whenever a line comes in. Runs under an interpreter that has transformers and trl; imports nothing of ours.

``python peers.py train fp32|bf16 [compile]``, ``generate fp32|bf16 ROWS SHARING NEW``, ``grpo PROMPTS NEW``. Answers ``peer: ready`` once warm,
then ``peer: WALL PROCESSOR`` seconds after each line. The model is the 5M preset's: Qwen3, vocabulary 81.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time

PROMPT = 128  # tokens
BATCH, LENGTH = 8, 256  # of training


def say(text: str) -> None:
    print(f"peer: {text}", flush=True)


def model_config():
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=81, hidden_size=256, num_hidden_layers=6, num_attention_heads=2, num_key_value_heads=2, intermediate_size=768,
        head_dim=128, max_position_embeddings=1024, tie_word_embeddings=False,
    )  # fmt: skip


def serve(work, warm_up: int) -> None:
    """Do ``work`` once for each line that comes in."""
    for _ in range(warm_up):
        work()
    say("ready")
    for _ in sys.stdin:
        wall, processor = time.perf_counter(), time.process_time()
        work()
        say(f"{time.perf_counter() - wall} {time.process_time() - processor}")


def train(precision: str, *flags: str) -> None:
    """A step of Qwen3ForCausalLM on 8 x 256 tokens with fused AdamW."""
    import torch
    from transformers import Qwen3ForCausalLM

    model = Qwen3ForCausalLM(model_config())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), fused=True)
    forward = torch.compile(model) if "compile" in flags else model
    tokens = torch.randint(0, 81, (BATCH, LENGTH))

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = forward(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    serve(step, warm_up=3)


def generate(precision: str, rows: str, sharing: str, new: str) -> None:
    """``rows`` sampled continuations; each prompt is given ``sharing`` times (generate has no other way to share it)."""
    import torch
    from transformers import Qwen3ForCausalLM

    model = Qwen3ForCausalLM(model_config()).eval()
    if precision == "bf16":
        model = model.bfloat16()
    prompts = torch.randint(0, 81, (int(rows) // int(sharing), PROMPT)).repeat_interleave(int(sharing), 0)

    def sample() -> None:
        with torch.inference_mode():
            model.generate(
                prompts, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=int(new), min_new_tokens=int(new), pad_token_id=0,
                eos_token_id=None,
            )  # fmt: skip

    serve(sample, warm_up=1)


def grpo(prompts: str, new: str) -> None:
    """A step of TRL's GRPOTrainer, groups of 8, random rewards, all completions of ``new`` tokens."""
    import torch
    from datasets import Dataset
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    words = [f"w{number}" for number in range(78)]
    ids = {word: number for number, word in enumerate(["<bos>", "<eos>", "<unk>", *words])}
    word_level = Tokenizer(WordLevel(ids, unk_token="<unk>"))
    word_level.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=word_level, bos_token="<bos>", eos_token="<eos>", unk_token="<unk>", pad_token="<eos>", padding_side="left"
    )
    torch.manual_seed(0)
    choose = random.Random(0)
    dataset = Dataset.from_list([{"prompt": " ".join(choose.choice(words) for _ in range(PROMPT))} for _ in range(256)])
    with tempfile.TemporaryDirectory() as folder:
        Qwen3ForCausalLM(model_config()).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        start = [0.0, 0.0]
        steps = [0]

        class Rounds(TrainerCallback):
            def on_step_begin(self, *args, **kwargs):
                if steps[0] == 1:  # the first step warms up
                    say("ready")
                if steps[0]:
                    sys.stdin.readline()
                start[:] = time.perf_counter(), time.process_time()

            def on_step_end(self, *args, **kwargs):
                if steps[0]:
                    say(f"{time.perf_counter() - start[0]} {time.process_time() - start[1]}")
                steps[0] += 1

        GRPOTrainer(
            model=folder, reward_funcs=lambda completions, **_: [choose.random() for _ in completions],
            args=GRPOConfig(
                output_dir=f"{folder}/out", per_device_train_batch_size=32, gradient_accumulation_steps=int(prompts) * 8 // 32,
                num_generations=8, max_completion_length=int(new), generation_kwargs={"min_new_tokens": int(new)}, max_steps=1000,
                report_to="none", beta=0.001, learning_rate=1e-5, use_cpu=True, logging_steps=10**6, save_strategy="no",
                gradient_checkpointing=False,
            ),
            train_dataset=dataset, processing_class=tokenizer, callbacks=[Rounds()],
        ).train()  # fmt: skip


if __name__ == "__main__":
    try:
        {"train": train, "generate": generate, "grpo": grpo}[sys.argv[1]](*sys.argv[2:])
    except ImportError as error:
        say(f"not installed: {error}")
