# Answers to lab 3.

# %% name="tree"
def merge(lines) -> dict:
    tree: dict = {}
    for line in lines:
        node = tree
        for move in line:
            node = node.setdefault(move, {})
    return tree


def leaves_first(tree: dict) -> list[tuple]:
    return [(move, *rest) for move, below in tree.items() for rest in (leaves_first(below) or [()])]


# %% name="answers"
nodes = 4 + 4 * 2 * 2
moves_written = 4 * 2 * 3
revisits = (moves_written - nodes) / moves_written  # each first move's second line writes the first move again

# %% name="coverage"
found = []
for first_moves in (1, 2, 4, 8, 16):
    rng = np.random.default_rng(first_moves)
    hits, lengths = [], []
    for puzzle in puzzles:
        position = puzzle.board()
        own = traces.merge(propose(position, rng, first_moves, lines=1))
        hits.append(chess.Move.from_uci(puzzle.moves[puzzle.lead]) in own)
        lengths.append(len(traces.trace_tokens(position, traces.leaf_lines(own))))
    found.append((first_moves, np.mean(hits), np.mean(lengths)))
