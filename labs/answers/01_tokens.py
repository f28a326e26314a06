# Answers to lab 1.

# %% name="spell"
def spell(board: chess.Board, move: chess.Move) -> list[str]:
    after = board.copy()
    after.push(move)
    suffix = ["#"] if after.is_checkmate() else ["+"] if after.is_check() else []
    if board.is_castling(move):
        return ["O-O" if chess.square_file(move.to_square) == 6 else "O-O-O", *suffix]
    words = [board.piece_at(move.from_square).symbol().upper(), chess.square_name(move.from_square)]
    words += ["x"] if board.is_capture(move) else []
    words += [chess.square_name(move.to_square)]
    words += ["=", chess.piece_symbol(move.promotion).upper()] if move.promotion else []
    return [*words, *suffix]


# %% name="snapshot_length"
def snapshot_length(men: int) -> int:
    return 2 + 1 + 2 * men


# %% name="answers"
longest_move = 7  # P e7 x d8 = Q +
no_loss = ["<bos>", "snapshot"]

# %% name="figure"
from matplotlib.figure import Figure

figure = Figure(figsize=(6, 3))
axes = figure.subplots()
shares = moves.groupby("piece")["tokens"].value_counts(normalize=True).unstack(fill_value=0.0)
shares.plot.bar(stacked=True, ax=axes, colormap="viridis", rot=0)
axes.set(xlabel="piece that moves", ylabel="share of moves")
axes.legend(title="tokens", bbox_to_anchor=(1, 1))
