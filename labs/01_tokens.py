# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # Lab 1: tokens and positions
#
# A language model sees numbers. Here you find out which: how a move is written, how a position is given, what the model is asked to predict and what it is
# told. 30 minutes; nothing is trained.
#
# Words used: a *token* is an entry of the model's vocabulary, with a number; a *ply* is one move of one side; a *FEN* is a position as a line of text; *UCI* writes a move as
# the square it leaves and the one it goes to (`e2e4`, `b7b8q` with a promotion). A *nat* is the unit of a loss in natural logarithms: a choice among n equally likely
# things costs ln n nats.

# %%
import chess
import numpy as np
import pandas as pd
from lab import check, check_function, save, size

from chessrl import notation
from chessrl.corpus import game_moves
from chessrl.endgame import load_games, load_puzzle_table
from chessrl.puzzles import prompt_tokens, puzzles_of_table

# %% [markdown]
# ## A move
#
# The vocabulary has 101 tokens. A move is its piece (a capital, for both sides), the square it leaves, the square it goes to, and what else happens: `x` it takes, `=` it promotes,
# `+` it gives check, `#` it mates.

# %%
print(" ".join(notation.VOCABULARY))
board = chess.Board("2r5/1P6/8/8/1k6/8/4K3/8 w - - 0 1")
for move in board.legal_moves:
    print(f"{move.uci():6}", notation.to_text(notation.move_tokens(board, move)))

# %% [markdown]
# **Exercise 1.1.** Write the function that spells a move, as a list of tokens in their order: `["P", "b7", "x", "c8", "=", "Q"]`; castling is `"O-O"` or `"O-O-O"`, and `+` or `#` where due. `board.piece_at(square)`, `board.is_capture(move)`, `board.is_castling(move)`, `move.promotion`
# and, after `board.push(move)`, `board.is_check()` and `board.is_checkmate()` are all you need. Leave the board as you found it.

# %% name="spell"
def spell(board: chess.Board, move: chess.Move) -> list[str]:
    raise NotImplementedError


# %%
check_function("1.1 spelling", spell)

# %% [markdown]
# ## A position
#
# There are two ways: `state=history` gives a position as all moves that led to it, `state=snapshot` as a list of its pieces, white's as capitals. The endgames here use
# snapshots. Below, a puzzle's position as FEN and as tokens; `<bos>` begins every text.

# %%
puzzles = puzzles_of_table(load_puzzle_table())[: size(400, 40)]
print(puzzles[0].fen)
print(notation.to_text(prompt_tokens(puzzles[0], "snapshot", think=False)))

# %% [markdown]
# **Exercise 1.2.** How many tokens has the snapshot, from `<pos>` to `</pos>` and with both, of a position of so many men, kings and pawns included (without castling rights or en
# passant, which would be further tokens)?

# %% name="snapshot_length"
def snapshot_length(men: int) -> int:
    raise NotImplementedError


# %%
check_function("1.2 tokens of a snapshot", snapshot_length)

# %% [markdown]
# **Question 1.3.** How many tokens has the longest move of all?
#
# **Question 1.4.** What the model is trained on is a document: `<bos>`, a snapshot, the moves of a game. Its loss is the mean of -ln p over the tokens that it must predict. Which
# parts carry no loss, because they are given? A list of two out of `"<bos>"`, `"snapshot"`, `"moves"`, `"suffixes + and #"`.

# %% name="answers"
longest_move = ...
no_loss = ...

# %%
check("1.3 the longest move", longest_move)
check("1.4 what carries no loss", no_loss)

# %% [markdown]
# ## Games
#
# The packaged games, a sample of them: how many tokens does a move take?

# %%
games = load_games().sample(size(3000, 200), random_state=0)
print(games.columns.tolist())
spelled = []
for game in games.itertuples():
    position = chess.Board(game.fen)
    for uci in game.moves.split():
        move = chess.Move.from_uci(uci)
        spelled.append((chess.piece_name(position.piece_at(move.from_square).piece_type), len(notation.move_tokens(position, move))))
        position.push(move)
moves = pd.DataFrame(spelled, columns=["piece", "tokens"])
print(moves.groupby("piece")["tokens"].agg(["size", "mean"]).round(2))

# %% [markdown]
# **The figure.** Draw how many tokens a move takes, by the piece that moves: `moves` has a row for each move, with its `piece` and its number of `tokens`. `figure` is to be a
# `matplotlib.figure.Figure` (or `plt.gcf()`) with its axes named. Why does a model pay for a move at all? One that knew only the rules would still have to pay for the *choice*:
# with 20 legal moves, all alike, ln 20 = 3 nats a move, or 3 / (tokens per move) nats a token.

# %% name="figure"
figure = ...

# %%
check("1.5 the figure", figure)
if figure is not ...:
    save(figure, "01_tokens")
