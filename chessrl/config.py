"""Every configuration key of the laboratory, typed, with its default and its meaning.

One schema serves every command: a key has the same path in ``python -m rl`` as in ``python -m chessrl``, and the pipeline hands a stage its
keys unchanged. ``conf/`` holds presets only. This module imports neither torch nor a stage, so ``--help`` is quick.

A run directory's name holds a hash of the keys that change its results (``chessrl.run.identity``). ``local`` marks keys that do not, such as
worker counts; ``neutral`` marks the default of a later feature, left out of the hash so that it changes no old one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

STAGES = ("pretrain", "sft", "rl")  # in the order of the pipeline; each is a command of its own
SPLITS = ("sft", "rl", "validation", "test", "private")  # of the puzzles
# Beside the test set: its colour-mirrored positions, themes held out of every other split, lines longer than any other's, games after the corpus
SLICES = ("test_mirrored", "test_themes", "test_long", "test_recent")
LABELLED_PARTS = ("majority", "incorrect")  # of the reward: they ask for labels, which cost samples


def local(default: Any) -> Any:
    """A key that changes speed, memory or places, never results."""
    return field(default=default, metadata={"identity": "local"})


def neutral(default: Any) -> Any:
    """A key whose default stands for "as before the key existed"."""
    return field(default=default, metadata={"identity": "neutral"})


@dataclass
class ModelConfig:
    """Architecture (Qwen3: RMSNorm, QK-norm, grouped-query attention, SwiGLU, rotary positions, untied embeddings)."""

    name: str = local("")  # of the preset in conf/model
    layers: int = 0  # transformer blocks
    hidden: int = 0  # width of the residual stream
    ffn: int = 0  # width of the gated feed-forward layer
    heads: int = 0  # query heads
    kv_heads: int = 0  # key and value heads
    head_dim: int = 0  # width of a head; need not be hidden / heads
    vocabulary: int = 101  # 81 and 85 are the released checkpoints' vocabularies, 101 ours
    max_positions: int = 4096  # longest sequence, in tokens


@dataclass
class LeakConfig:
    """Test puzzles put into the corpus on purpose, for contamination experiments. All that is trained on it is marked as leaked."""

    fraction: float = 0.0  # share of the test puzzles, 0 to 1; 0: none, as it should be
    copies: int = 1  # how often each game that shows a leaked puzzle is written
    seed: int = 0  # which puzzles


@dataclass
class WorldConfig:
    """What is played and where its games and puzzles come from."""

    name: str = ""  # endgame (packaged) or lichess (files of yours)
    state: str = "snapshot"  # how a position is given: snapshot (piece list) or history (all moves from the start position)
    games: Any = ""  # a .pgn or .pgn.zst file, a folder of token shards, or a list of them; the endgame world needs none
    # a Lichess puzzle .csv or .csv.zst file, or a list of them, or the .parquet of python -m chessrl.puzzles; the endgame world needs none
    puzzles: Any = ""
    max_games: int | None = None  # read at most so many games (after filters)
    context: int = 256  # tokens: longer games are cut at a move's end
    validation_share: float = 0.02  # share of games held out for the validation loss, by game hash
    min_elo: int = 0  # both players' rating, where the games have one
    max_elo: int = 4000  # as min_elo, at most
    bullet: bool = False  # keep bullet games
    sft_puzzles: int = 4000  # how many puzzles of Lichess files each split gets; a .parquet and the packaged puzzles come already split
    rl_puzzles: int = 6000  # the same of the rl split
    validation_puzzles: int = 800  # ... of the validation split
    test_puzzles: int = 1500  # ... of the test split
    private_puzzles: int = 400  # ... of the private split, which no training or tuning reads
    seed: int = 0  # cuts of snapshots and split of puzzles
    leak: LeakConfig = field(default_factory=LeakConfig, metadata={"identity": "neutral"})


@dataclass
class RunConfig:
    """How a run is carried out. ``precision``, ``compile`` and the kind of device found enter its identity."""

    device: str = local("auto")  # auto, cpu, cuda
    precision: str = "fp32"  # fp32, bf16 (fp32 weights, computed with in bf16), or fp64 (slow: for exact comparisons)
    compile: bool = neutral(False)  # stages and evaluations have torch.compile fuse layers: a later start, then faster; rounds otherwise
    threads: int = local(0)  # CPU threads; 0 leaves torch's default
    micro_batch_tokens: int = local(
        0
    )  # padded tokens per forward pass, the bound on a step's memory; 0: on a CPU 1024, or 2048 in bf16 (its cache), 65536 elsewhere
    checkpoint_steps: int = local(200)  # state for exact resume, every so many steps
    checkpoint_seconds: int = local(300)  # ... and at least this often
    rerun: bool = local(False)  # start anew beside a run of the same configuration
    fail_fast: bool = local(False)  # in a sweep: after the first job that failed no further one is begun
    wait: bool = local(False)  # wait for a process that is at the same run, then skip or go on (the pipeline's way); false: refuse

    @property
    def arithmetic(self) -> str:
        """What of these keys decides how sums are rounded, for identities."""
        return f"{self.precision}, compiled" if self.compile else self.precision


@dataclass
class OptimizerConfig:
    """AdamW and its learning-rate schedule."""

    lr: float = 1e-3  # peak learning rate
    lr_rule: str = neutral("fixed")  # fixed: lr as it stands; size: lr x (lr_reference / N) ^ lr_exponent, N without embeddings
    lr_reference: float = neutral(1e6)  # the N at which lr holds, for lr_rule=size; experiment=learning_rates finds all three values
    lr_exponent: float = neutral(0.25)  # of lr_rule=size
    min_lr_ratio: float = 0.1  # the schedule ends at this share of lr
    warmup_ratio: float = 0.05  # share of the steps with a linear rise
    warmup_steps: int | None = neutral(None)  # steps of it, instead of the share
    schedule: str = "cosine"  # after the warm-up: cosine, constant, or wsd (stable, then a decay; runs of several lengths share the stable part)
    decay_ratio: float = neutral(0.2)  # share of the steps that decay, for wsd
    beta1: float = 0.9  # AdamW's, of the mean of gradients
    beta2: float = 0.95  # ... and of their squares
    weight_decay: float = 0.1  # matrices only: no decay on norms
    clip: float = 1.0  # global gradient norm


@dataclass
class PretrainConfig:
    """Next-token prediction on games."""

    tokens: int = 5_000_000  # T: non-pad tokens seen in all; refused when the corpus holds fewer, unless allow_repeats
    steps: int | None = neutral(None)  # T in steps of batch_tokens, instead of tokens
    allow_repeats: bool = local(False)  # pass over the corpus more than once
    batch_tokens: int = 16384  # non-pad tokens per step (about: batches hold whole games)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    validation_every: int = 100  # steps
    validation_games: int = 1000  # at most
    save_steps: list[int] = field(default_factory=list)  # keep models/step-N of these steps
    seed: int = 0  # initial weights
    data_seed: int = 0  # order of games


@dataclass
class TraceConfig:
    """Search-tree traces: who proposes the lines, how many and how long, and how their tree is written."""

    enabled: bool = True  # false: no trace, the answer follows the prompt
    # model: the pretrained parent's samples; teacher: another pretrained model's; engine: Stockfish's variations; uniform: random legal play
    proposal: str = neutral("model")
    teacher: str = local("")  # a finished pretraining run, for proposal=teacher (its run id enters the identity, not the path)
    engine_nodes: int = neutral(5000)  # nodes of each search of proposal=engine
    candidates: int = 5  # first moves sampled per puzzle
    continuations_mean: float = 1.0  # lines per first move: rounded log-normal, clipped to the range
    continuations_sigma: float = 0.2  # of the logarithm
    continuations_min: int = 1  # fewest lines
    continuations_max: int = 10  # most lines
    length_mean: float = 1.6  # plies per line, first move included: rounded log-normal, clipped to the range
    length_sigma: float = 0.4  # of the logarithm
    length_min: int = 1  # shortest line, in plies
    length_max: int = 2  # longest line, in plies
    temperature: float = 1.0  # of sampled lines
    inject_answer: bool = True  # put the solution's opening plies into the tree where no sampled line holds them
    # what follows is done to finished trees: experiments that differ in it alone share one set of proposals, sampled once
    order: str = neutral("sampling")  # children of a node: sampling (as they came), engine (best first, by engine.*), random
    serialise: str = neutral("dfs")  # lines of the trace: dfs (root to leaf, depth first), shuffled (the same, in random order), bfs (one per node)
    content: str = neutral("own")  # own, or other_puzzle: every puzzle gets the trace of another one
    budget: int | None = neutral(None)  # most tokens of a trace, </T> included: last lines are dropped whole, the answer's line last
    answer: str = neutral("line")  # what is answered: the puzzle's line, or engine: the best line of the tree by engine.*


@dataclass
class SftConfig:
    """Fine-tuning on prompt, trace and answer."""

    trace: TraceConfig = field(default_factory=TraceConfig)
    epochs: int = 3  # passes over the examples
    tokens: int | None = neutral(None)  # non-pad tokens seen in all, instead of epochs: equal tokens are equal 6NT FLOPs
    context: int | None = neutral(None)  # most tokens of prompt, trace and answer: lines of the trace are dropped until it fits
    batch_tokens: int = 8192  # non-pad tokens per step
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(lr=3e-4, min_lr_ratio=1 / 30, weight_decay=0.01))
    max_puzzles: int | None = None  # of the sft split, at most
    # ids out of the sft and rl splits to train on, in place of the whole sft split; empty: the split
    puzzles: list[str] = field(default_factory=list, metadata={"identity": "neutral"})
    validation_puzzles: int = 200  # for the validation loss
    validation_samples: int = neutral(0)  # episodes of each validation puzzle after every epoch, for pass@1 and pass@(so many); 0: none
    patience: int | None = neutral(None)  # stop after so many epochs without a lower validation loss, and keep the best epoch's weights
    save_steps: list[int] = field(default_factory=list)  # keep models/step-N of these steps
    seed: int = 0  # traces
    data_seed: int = 0  # order of examples


@dataclass
class AlgorithmConfig:
    """The policy-gradient objective, put together from parts (docs/rl.md; science behind each in rl/objective.py and rl/credit.py)."""

    name: str = local("")  # of the preset in conf/algorithm
    group: int = 8  # G samples per prompt (Shen et al.: 8)
    # group_std: (r - mean) / std within the group; group_mean: r - mean; leave_one_out: r - mean of the others; batch_std: r - mean of the
    # group, over the batch's std; pass_at_k; raw: r; over_mean: r / mean of the group;
    # whitened_returns: rewards to come, z-scored over the batch's tokens; gae: with a value head
    advantage: str = "group_std"
    std_floor: float = 1e-6  # groups with a smaller reward std have zero advantage
    # sequence: 1/|o| per sample, then the mean (DeepSeekMath); token: over all tokens of the step (DAPO);
    # constant: over samples x loss_budget (Dr. GRPO)
    loss_norm: str = "sequence"
    loss_budget: int = 64  # tokens, for loss_norm=constant
    clip_low: float = 0.2  # the ratio's window is 1 - clip_low to 1 + clip_high
    clip_high: float = 0.2  # above clip_low: clip-higher (DAPO)
    beta: float = 0.001  # weight of the KL to the reference, the policy that RL starts from; 0: none
    epochs: int = 1  # passes over each rollout
    minibatches: int = 1  # parts of one pass; updates per rollout = epochs x minibatches
    # token: clipped ratio of each token; sequence: of the whole answer, per-token geometric mean (GSPO); cispo: clipped ratio as a constant
    # weight of log pi; unclipped: ratio without a window; log_prob: REINFORCE, no ratio
    ratio: str = neutral("token")
    dual_clip: float = neutral(0.0)  # c > 1: where A < 0 the surrogate is at least c A (Ye et al., arXiv 1912.09729); 0: none
    # how beta enters: k3 or k2, estimated from samples, in the loss; k1_reward: taken off the reward; exact: in the loss, over all legal moves
    # of every decision that was come to (policies without a trace)
    kl: str = neutral("k3")
    entropy_bonus: float = neutral(0.0)  # weight of the entropy of the sampled tokens' distributions
    pass_k: int = neutral(1)  # k, for advantage=pass_at_k
    baseline: str = neutral("none")  # taken off the reward beforehand: none, or greedy (the reward of the greedy episode, ReMax)
    gamma: float = neutral(1.0)  # discount per sampled token, for whitened_returns and gae
    gae_lambda: float = neutral(1.0)  # of generalised advantage estimation, for gae
    value_coefficient: float = neutral(0.5)  # weight of the value head's squared error, for advantage=gae
    # plain: every group trains; filter: groups of equal rewards leave the step; dynamic: ... and others are sampled in their place (DAPO)
    sampling: str = neutral("plain")
    sampling_rounds: int = neutral(10)  # of sampling=dynamic, at most: then the step makes do with what it has
    overlong_share: float = neutral(0.0)  # last share of rl.thinking_budget in which a trace is punished, rising linearly (DAPO)
    overlong_penalty: float = neutral(0.5)  # ... up to this, which a truncated trace pays
    overlong_filter: bool = neutral(False)  # truncated episodes leave the loss, not the baseline
    reference_period: int = neutral(0)  # the reference becomes the policy every so many steps (R1: 400); 0: never
    reference_resets_optimizer: bool = neutral(False)  # ... and the optimiser's moments are cleared as well (ProRL)


@dataclass
class RewardConfig:
    """What a rollout is paid: the weighted sum of named parts, each logged."""

    name: str = local("")  # of the preset in conf/reward
    # part -> weight; parts: line, engine, engine_score, legal, format, random, majority, incorrect, behaviour, length
    weights: dict[str, float] = field(default_factory=dict)
    accept: str = "line"  # moves that the environment lets pass: line (and any mate), or engine (every move within engine.delta)
    random_rate: float = neutral(0.5)  # how often the part random pays
    label_samples: int = neutral(64)  # of the start policy, whose most frequent answer is the label of majority and incorrect
    true_positive_rate: float = neutral(1.0)  # a verifier that errs: how often line and engine pay what they should pay
    false_positive_rate: float = neutral(0.0)  # ... and what they should not
    # Logged beside the reward and never trained on: line, or engine with the two limits below in place of engine.depth and engine.nodes
    oracle: str = neutral("line")
    oracle_depth: int = neutral(12)  # the oracle engine's depth
    oracle_nodes: int = neutral(1_000_000)  # ... and its cap of nodes per position


@dataclass
class CurriculumConfig:
    """Which puzzles RL takes and in which order, by how well the policy that it starts from solves them."""

    measured: str = ""  # an evaluation folder of the rl split, or a .csv or .parquet file of puzzle and exact p; empty: no curriculum
    pass_rate_min: float = 0.0  # puzzles that are solved less often are left out, and counted
    pass_rate_max: float = 1.0  # ... or more often
    tiers: list[str] = field(default_factory=list)  # restrict to these tiers (easy, medium, hard, frontier, beyond); empty: all
    order: str = "shuffled"  # shuffled, or easy_to_hard: tier after tier, each for an equal share of the steps


@dataclass
class BoundaryConfig:
    """RL in rounds (``chessrl.boundary``): before each the policy's success on the rl split is measured, and its boundary bridged. All of it reaches
    the runs through ``sft.*`` and ``rl.*``, which are what their identity holds."""

    rounds: int = local(0)  # rl.steps are shared out among them; 0: RL once, without a measure before it
    puzzles: int = local(0)  # on each side of what the policy can solve, fine-tuned on before a round's RL; 0: no bridge
    epochs: int = local(10)  # of a bridge
    batch_tokens: int = local(256)  # non-pad tokens of a step of the bridge
    lr: float = local(3e-4)  # its peak learning rate


@dataclass
class RlConfig:
    """The RL loop: sampling, verification, update."""

    steps: int = 100  # rollouts and their updates
    # tokens of all that is sampled, prompts included, instead of steps (see budget.rollout_tokens). Where a step's cost is not known beforehand
    # (docs/rl.md), the run ends when another step would not fit any more
    tokens: int | None = neutral(None)
    flops: float | None = neutral(None)  # the same in FLOPs of RL, by the convention of docs/rl.md
    prompts: int = 16  # puzzles per step
    bins: list[str] = field(default_factory=list)  # restrict to these difficulty bins; empty: all
    temperature: float = 1.0  # of sampling; log-probabilities of the loss are at the same temperature
    protocol: str = "auto"  # think (trace, then answer), answer (no trace); auto: what the parent was trained with
    thinking_budget: int = 128  # tokens of trace after which the episode ends unsolved
    # of the rollouts and the validation, as evaluate.spelling. strict: what is trained is what exact success measures; under lenient a policy
    # may leave canonical spelling, which nothing rewards
    spelling: str = neutral("lenient")
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(lr=1e-5, schedule="constant", warmup_ratio=0.0, weight_decay=0.0)
    )
    validation_every: int = 25  # steps
    validation_puzzles: int = 256  # how many of the validation split, of rl.bins
    validation_samples: int = 4  # of each, for pass@1
    save_steps: list[int] = field(default_factory=list)  # keep models/step-N of these steps
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig, metadata={"identity": "neutral"})
    seed: int = 0  # samples
    data_seed: int = 0  # order of puzzles


@dataclass
class HealthConfig:
    """Bounds beyond which RL prints a warning, once each. They stop nothing."""

    constant_steps: int = local(10)  # steps in a row in which no group, or no value of a reward part, varied
    entropy: float = local(0.02)  # nats per sampled token, at least
    kl: float = local(1.0)  # nats per sampled token, either direction, at most
    drift: float = local(0.05)  # mean |log-probability of the sampler - of the trainer|, at most
    grad_norm: float = local(100.0)  # before clipping, at most
    reward_gap: float = local(0.3)  # rise of (training reward - oracle's) since the first step, at most


@dataclass
class EngineConfig:
    """Stockfish: where it is and how a position's moves are scored."""

    path: str = local("")  # empty: PATH, then /usr/games
    mode: str = "depth"  # depth: all moves in one multi-PV search of fixed depth with a node cap; searchmoves: one search per move
    depth: int = 8  # of mode=depth, in plies
    nodes: int = 100000  # cap per position (depth) or budget per move (searchmoves)
    hash_mb: int = 1  # hash table of each process, emptied before each position
    workers: int = local(0)  # engine processes; 0: one per core
    deadline_s: float = local(30.0)  # per call
    delta: float = 0.02  # a move is accepted when its expected score is at most this much below the best
    mate_slack: int = 0  # between mates: accepted up to best distance + slack


@dataclass
class EvaluateConfig:
    """Sampling a policy on a split and the pass@k tables made of it."""

    split: str = "validation"  # the test split is read once, at the end of a run; beside it test_mirrored, test_themes, test_long, test_recent
    max_puzzles: int | None = None  # of the split, at most
    samples: int = 16  # per puzzle
    ks: list[int] = field(default_factory=lambda: [1, 2, 4, 8, 16])  # the k of pass@k; at most samples
    protocol: str = "auto"  # think, answer, game; auto: game for pretraining, else what the policy was trained with
    spelling: str = "lenient"  # lenient: squares, promotion and castling decide; strict: the canonical tokens
    verifier: str = "line"  # line (and any mate), or engine (every move within engine.delta)
    temperature: float = 1.0  # of sampling; 0: the likeliest token
    thinking_budget: int = 128  # tokens of a trace, at most
    # who ends a trace: natural (the policy; at the budget it fails), forced (</T> is put where the budget is used up), minimum (besides, a </T>
    # before thinking_minimum tokens becomes <sep>; thinking_minimum=thinking_budget is a fixed length). forced at budget 0: an empty trace
    thinking: str = neutral("natural")
    thinking_minimum: int = neutral(0)  # tokens, for thinking=minimum
    trace_metrics: str = neutral("none")  # tables about the traces: none, tree (their shape and coverage), engine (and ranks of moves)
    step: int | None = neutral(None)  # of models/step-N, a model kept by STAGE.save_steps, instead of the run's final one
    exact: bool = neutral(False)  # also the exact success of every puzzle (by the line, strict spelling), of a policy without traces
    policy_traces: int = neutral(0)  # 0: none; else policy.parquet: all legal moves at each decision, after so many traces (once without traces)
    games: int = neutral(0)  # of a pretrained policy: legal mass and accuracy by ply on so many held-out games; 0: none
    seed: int = 1000  # of the samples and the bootstrap
    batch: int = local(512)  # sequences sampled together
    open_private: bool = local(False)  # asked for by split=private: each such evaluation is entered in the hold-out's access log


@dataclass
class AuditConfig:
    """Which verifiers an audit compares (``python -m chessrl.audit``; split, samples and protocol are evaluate's), and what its oracle is."""

    depths: list[int] = field(default_factory=lambda: [1, 2, 4, 8])  # plies of the engine verifiers, in place of engine.depth
    # proof: the line's moves and mates, in a world whose lines are proven to be the only shortest mates; engine: every move within engine.delta
    # by the two limits below, the line's own included; auto: proof in the endgame world, else engine
    oracle: str = "auto"
    oracle_depth: int = 12  # plies of the deep engine: the oracle, or beside the proof
    oracle_nodes: int = 1_000_000  # ... and its cap of nodes per position
    documents: int = 500  # games of each corpus split, and puzzles, in the prefix-completion test (python -m chessrl.prefixes)


@dataclass
class BaselinesConfig:
    """Tables of a split that need no policy (``python -m chessrl.baselines``), on the puzzles of ``evaluate.split`` and ``evaluate.max_puzzles``."""

    # Stockfish plays the puzzles at so many nodes a move; []: without an engine
    nodes: list[int] = field(default_factory=lambda: [1, 10, 100, 1000], metadata={"identity": "local"})
    quality: bool = local(False)  # also how much expected score each legal move loses, by engine.* (cached labels are taken)


@dataclass
class AnalysisConfig:
    """How ``python -m analysis`` reads measured policies and success probabilities."""

    top_k: int = local(3)  # k of the top-k sets of transition categories (Shen et al.: 3)
    tail: float = local(0.05)  # a move of less probability is in the tail
    # pass@k of coverage cells and newly solved puzzles; of sampled evaluations those that the number of samples allows
    ks: list[int] = field(default_factory=lambda: [16, 256, 4096], metadata={"identity": "local"})
    seed: int = local(0)  # of the bootstraps


@dataclass
class BudgetConfig:
    """Compute instead of counts. It is turned into pretrain.tokens and rl.steps before a run is named, so it enters no run's identity."""

    flops: float | None = None  # pretraining and RL together; fine-tuning is counted apart
    alpha: float = 1.0  # pretraining's share: T = alpha x flops / 6N; the rest goes to RL (Shen et al.)
    rollout_tokens: int = 0  # expected tokens of a rollout, prompt included; 0: the mean length of what the parent was trained on
    skip_impossible: bool = local(False)  # in a grid: a combination that no run can carry out is skipped with a line, not a failure
    # For dry_run alone: what the corpus is known to hold (0: not known) and what a GPU does. The defaults: a tenth of an H200's bf16 peak for
    # training (assumed); for RL the reference implementation's 30 s a step on eight (50M, 2,048 rollouts, taking 1,500 tokens for each).
    corpus_tokens: int = local(0)
    training_flops_per_s: float = local(1e14)  # of one GPU in training, for the estimated GPU-hours
    rl_flops_per_s: float = local(6e12)  # ... and in RL, sampling included


@dataclass
class TabularConfig:
    """Policies as tables, one softmax per puzzle over its moves: what the objective does without a network (``python -m rl.tabular``)."""

    study: str = "train"  # train (one run), clip_bias (map of the clip's effect under random reward), success_recursion (theory and measurement)
    policy: str = ""  # a policy.parquet to start from, its first decisions; empty: the run parent=, else the prior below
    traces: int = 8  # of each puzzle, sampled from a parent that thinks
    prior: str = "dirichlet"  # dirichlet (drawn), zipf (1 / rank), peaked (first move top, the others equal)
    puzzles: int = 1000  # of the prior; of a parent: at most so many of the rl split
    moves: int = 30  # of each of them
    concentration: float = 0.15  # of the Dirichlet
    top: float = 0.85  # first move's probability, of the peaked prior
    reward: str = "solving"  # solving, random (gamma), noisy (random flips), systematic (fixed errors), wrong (the likeliest wrong move)
    gamma: float = 0.5  # how often the random reward pays
    true_positive: float = 1.0  # of the noisy and the systematic verifier: how often it accepts a solving move
    false_positive: float = 0.0  # ... and another one
    exact: bool = False  # along the expected gradient of one update, instead of sampled groups
    groups: int = 8  # groups per puzzle and step
    steps: int = 15  # updates, or outer iterations of success_recursion
    lr: float = 2.0  # of plain gradient steps on the logits, each puzzle's loss being the mean over its samples
    ks: list[int] = field(default_factory=lambda: [1, 8, 64, 256, 1024, 10**4, 10**5, 10**6])  # pass@k, exact
    # clip_bias: its grid, every combination paired with the same samples unclipped
    tops: list[float] = field(default_factory=lambda: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95])
    clips: list[float] = field(default_factory=lambda: [0.1, 0.2, 0.4])  # eps, on both sides
    updates: list[int] = field(default_factory=lambda: [1, 2, 8])  # M updates per rollout
    rates: list[float] = field(default_factory=lambda: [0.5, 2.0])  # learning rates
    # success_recursion: its grid, and the inner maximisation
    betas: list[float] = field(default_factory=lambda: [1.0, 2.0, 5.0, 10.0])
    variants: list[str] = field(default_factory=lambda: ["std", "groups", "no_std", "mirror", "forward_kl"])  # of success_recursion: docs/theory.md
    smoothing: float = 1e-5  # under the root of the std
    inner_steps: int = 1000  # updates of one inner maximisation, by Adam
    inner_rate: float = 0.1  # Adam's learning rate there
    network: bool = neutral(False)  # beside every table the network of parent= (no traces) on the same puzzles of one decision, exact in every step
    network_steps: int = neutral(60)  # its updates of one inner maximisation, at most
    network_rate: float = neutral(3e-4)  # its Adam's learning rate
    lowest: float = 0.003  # puzzles of a smaller success at the start are left out, and counted
    seed: int = 0  # prior and samples


TABULAR = "tabular"  # a pipeline of this stage alone is python -m rl.tabular and its report


@dataclass
class PipelineConfig:
    """What ``python -m chessrl`` does beyond the stages' own settings."""

    stages: list[str] = field(default_factory=lambda: list(STAGES))  # or [tabular] alone
    evaluate: bool = True  # evaluate every stage's policy
    evaluate_steps: bool = False  # also the models that rl.save_steps keeps
    engine_evaluation: bool = True  # a second evaluation of the RL policy, verified by the engine
    report: bool = True  # end with python -m analysis of the runs


@dataclass
class Config:
    """The root. ``parent`` is a run directory: the policy a stage starts from or an evaluation measures."""

    world: WorldConfig = field(default_factory=WorldConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    sft: SftConfig = field(default_factory=SftConfig)
    rl: RlConfig = field(default_factory=RlConfig)
    boundary: BoundaryConfig = field(default_factory=BoundaryConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    pipeline: PipelineConfig = field(default_factory=PipelineConfig)
    tabular: TabularConfig = field(default_factory=TabularConfig)
    baselines: BaselinesConfig = field(default_factory=BaselinesConfig)
    analysis: AnalysisConfig = field(default_factory=AnalysisConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    run: RunConfig = field(default_factory=RunConfig)
    dry_run: bool = local(False)  # print what the command, or each job of its sweep, would cost, and start nothing
    parent: str = ""  # the run directory that a stage starts from or an evaluation measures
    outputs: str = "outputs"  # run directories go below this folder
    logger: str = local("none")  # a tracker beside metrics.jsonl: none, tensorboard, trackio, wandb (each to be installed)
    runs: list[str] = field(default_factory=list)  # run directories that an analysis reads
