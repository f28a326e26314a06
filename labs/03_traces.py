# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # Lab 3: what a reasoning trace is
#
# Before it moves, a policy may write lines: moves for both sides, one line after another. Together they are a tree. You build one, write it down, read it back and
# measure it. 40 minutes, some seconds of computing.
#
# A *line* is a sequence of moves, for both sides in turn, from the puzzle's position; a *ply* is one of them. A puzzle's *solution* is the line that wins, the solver's moves
# first, third, ...

# %%
import chess
import numpy as np
import pandas as pd
from lab import check, check_function, save, size
from matplotlib.figure import Figure

from chessrl import notation, traces
from chessrl.endgame import load_puzzle_table
from chessrl.puzzles import puzzles_of_table

# Mates in two and more: a single move would make no line
puzzles = [puzzle for puzzle in puzzles_of_table(load_puzzle_table()) if puzzle.split == "sft" and len(puzzle.moves) >= 3][: size(300, 30)]
board = puzzles[0].board()
print(board, "\n", puzzles[0].moves)

# %% [markdown]
# ## Lines
#
# A proposer that knows the rules and nothing else: some different first moves, some random continuations of each.

# %%
def propose(board: chess.Board, rng: np.random.Generator, first_moves: int = 4, lines: int = 2, plies: int = 3) -> list[tuple[chess.Move, ...]]:
    """Random legal lines from the board; a line ends early where the game does."""
    legal = sorted(board.legal_moves, key=chess.Move.uci)
    found = []
    for place in rng.choice(len(legal), min(first_moves, len(legal)), replace=False):
        for _ in range(lines):
            after, line = board.copy(), [legal[place]]
            after.push(legal[place])
            while len(line) < plies and not after.is_game_over():
                replies = sorted(after.legal_moves, key=chess.Move.uci)
                line.append(replies[rng.integers(len(replies))])
                after.push(line[-1])
            found.append(tuple(line))
    return found


lines = propose(board, np.random.default_rng(0))
for line in lines:
    print(" ".join(move.uci() for move in line))

# %% [markdown]
# ## The tree
#
# **Exercise 3.1.** Merge lines into a prefix tree: a dictionary from a move to the dictionary of what follows, children in the order in which they first appear. `[(a, b), (a, c)]`
# gives `{a: {b: {}, c: {}}}`; a leaf is an empty dictionary, and no line at all gives one too.
#
# **Exercise 3.2.** Read the root-to-leaf lines of a tree back, depth first, as a list of tuples: that tree gives `[(a, b), (a, c)]`, an empty one gives `[]`.

# %% name="tree"
def merge(lines) -> dict:
    raise NotImplementedError


def leaves_first(tree: dict) -> list[tuple]:
    raise NotImplementedError


# %%
check_function("3.1 merging", merge)
check_function("3.2 depth first", leaves_first)

# %% [markdown]
# ## The text
#
# A trace is `line <sep> line ... </T>`, its lines in the order of 3.2. Merging is not lossless: a line that is the beginning of another disappears.

# %%
tree = traces.merge(lines)
written = traces.trace_tokens(board, traces.leaf_lines(tree))
print(notation.to_text(written))

# %% [markdown]
# **Question 3.3.** A tree has 4 first moves with 2 different continuations of 2 further plies each. How many nodes has it (the root not counted), if no two of the
# continuations begin alike?
#
# **Question 3.4.** How many moves does its depth-first trace write?
#
# **Question 3.5.** Which share of the written moves re-enters a node that was written before (the *revisit rate*, two decimals)?

# %% name="answers"
nodes = ...
moves_written = ...
revisits = ...

# %%
check("3.3 nodes", nodes)
check("3.4 moves written", moves_written)
check("3.5 revisit rate", revisits)

# %% [markdown]
# ## Is the answer in it?
#
# **The figure.** For random traces of 1, 2, 4, 8 and 16 first moves (one line each): in which share of the puzzles does the tree hold the solution's first move, and how
# many tokens has the trace? `found` must get a row for each: (first moves, share of puzzles from 0 to 1, mean tokens). `propose` and `traces.trace_tokens` are above; the solution's
# first move is `chess.Move.from_uci(puzzle.moves[puzzle.lead])`, its position `puzzle.board()`.
#
# A random trace is a raffle: of n legal moves, m drawn hold the right one with probability m / n. Where is a model's trace better than that? In `rl/`, RL raises the share of
# traces that hold the solution; here you see what it starts from, and what more luck costs in tokens.

# %% name="coverage"
found = []

# %%
check("3.6 the curve", found, puzzles)
if found:
    table = pd.DataFrame(found, columns=["first moves", "share", "tokens"])
    print(table.round(3).to_string(index=False))
    figure = Figure(figsize=(6, 3))
    axes = figure.subplots()
    axes.plot(table["tokens"], table["share"], "o-")
    for row in table.itertuples(index=False):
        axes.annotate(f"{row[0]:.0f}", (row[2], row[1]), xytext=(-4, 8), textcoords="offset points", ha="right")
    axes.set(xlabel="tokens of the trace (mean)", ylabel="share of puzzles whose\nfirst move is in the tree", ylim=(0, 1), title="labels: first moves in the trace")
    save(figure, "03_traces")
