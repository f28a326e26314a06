"""The page of a human audit: boards, an answer each, what to say of it, and a button that saves what was said. One file, no network."""

from __future__ import annotations

from html import escape

import chess
import chess.svg
import pandas as pd

JUDGEMENTS = ("right", "wrong", "unsure")
CAUSES = {
    "solution": "it is the only good way",
    "alternative": "another move is as good",
    "slower": "it wins, but more slowly",
    "fails": "it does not reach the goal",
    "illegal": "it breaks off or is illegal",
    "faulty": "the puzzle itself is faulty",
    "other": "other (say so in the note)",
}
BOARD_PIXELS = 280
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Audit of answers</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; max-width: 56rem; margin: 0 auto; padding: 1rem 1rem 6rem; }}
fieldset {{ display: flex; flex-wrap: wrap; gap: 1.2rem; border: 1px solid #ccc; margin: 0 0 1.2rem; padding: .8rem; }}
fieldset.done {{ border-color: #2a7; }} legend {{ font-weight: 600; padding: 0 .4rem; }}
.ask {{ flex: 1 1 17rem; }} .ask p {{ margin: .2rem 0 .6rem; }} label {{ margin-right: 1rem; white-space: nowrap; }}
select, input[type=text] {{ font: inherit; width: 100%; box-sizing: border-box; margin-top: .4rem; padding: .2rem; }}
#bar {{ position: fixed; left: 0; right: 0; bottom: 0; background: #fff; border-top: 1px solid #999; padding: .6rem 1rem; }}
button {{ font: inherit; padding: .3rem .9rem; }} svg {{ max-width: 100%; height: auto; }}
@media print {{ #bar {{ display: none; }} fieldset {{ break-inside: avoid; }} }}
</style>
</head>
<body>
<h1>Audit of answers</h1>
<p>{title}. {count} answers. The arrow is the answer's first move. Is the answer right: does it reach the puzzle's goal, the quickest mate or the
best play, as well as any other way? Judge before you ask an engine, then check with one. Nothing is sent anywhere: the button saves a file.</p>
<form id="sheet" data-sheet="{sheet}">
{items}
</form>
<div id="bar"><button type="button" id="save">Save answers</button> <span id="progress">0 of {count} judged</span></div>
<script>
const form = document.getElementById("sheet"), sets = [...form.querySelectorAll("fieldset")];
function answers() {{
  return sets.map(set => ({{
    item: Number(set.dataset.item),
    judged: (set.querySelector("input[type=radio]:checked") || {{value: ""}}).value,
    cause: set.querySelector("select").value,
    note: set.querySelector("input[type=text]").value,
  }}));
}}
function show() {{
  sets.forEach(set => set.classList.toggle("done", !!set.querySelector("input[type=radio]:checked")));
  document.getElementById("progress").textContent = answers().filter(a => a.judged).length + " of " + sets.length + " judged";
}}
function content() {{ return JSON.stringify({{sheet: form.dataset.sheet, answers: answers().filter(a => a.judged)}}, null, 1); }}
form.addEventListener("input", show);
window.addEventListener("beforeunload", event => {{ if (changed) event.preventDefault(); }});
let changed = false;
form.addEventListener("input", () => {{ changed = true; }});
document.getElementById("save").addEventListener("click", () => {{
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content()], {{type: "application/json"}}));
  link.download = "answers-" + form.dataset.sheet + ".json";
  link.click();
  changed = false;
}});
show();
</script>
</body>
</html>
"""


def answer_text(board: chess.Board, moves: list[str], line: list[str], failure: str) -> str:
    """An answer as a reader writes it, replies included: ``1. Ra7 Kg8 2. Rb8#``; what came after its last legal move, where it broke off."""
    replay = board.copy(stack=False)
    played: list[chess.Move] = []
    for number, text in enumerate(moves):
        played.append(chess.Move.from_uci(text))
        if number + 1 < len(moves) and 2 * number + 1 < len(line):
            played.append(chess.Move.from_uci(line[2 * number + 1]))
    words = replay.variation_san(played) if played else "no move"
    return words if failure in ("", "wrong") else f"{words}, then an answer that is {failure}"


def form_page(items: pd.DataFrame, puzzles: pd.DataFrame, title: str, sheet: str) -> str:
    """The form. ``items``: item, puzzle, moves, failure; ``puzzles`` by id: fen, line."""
    blocks = [_item(row, puzzles.loc[row["puzzle"]]) for row in items.to_dict("records")]
    return PAGE.format(title=escape(title), count=len(items), sheet=sheet, items="\n".join(blocks))


def _item(row: dict, puzzle: pd.Series) -> str:
    board, moves = chess.Board(puzzle["fen"]), row["moves"].split()
    first = chess.Move.from_uci(moves[0])
    arrow = [chess.svg.Arrow(first.from_square, first.to_square)]
    picture = chess.svg.board(board, size=BOARD_PIXELS, arrows=arrow, orientation=board.turn)
    side = "White" if board.turn else "Black"
    number = row["item"]
    goal = -(-len(puzzle["line"].split()) // 2)
    radios = " ".join(
        f'<label><input type="radio" name="judged-{number}" value="{word}"> {word}</label>' for word in JUDGEMENTS
    )
    options = "".join(f'<option value="{key}">{escape(text)}</option>' for key, text in CAUSES.items())
    return (
        f'<fieldset data-item="{number}"><legend>{number}</legend><div>{picture}</div><div class="ask">'
        f"<p>{side} to move; the solution takes {goal} {'move' if goal == 1 else 'moves'}.</p>"
        f"<p>Answer: <b>{escape(answer_text(board, moves, puzzle['line'].split(), row['failure']))}</b></p>"
        f'<div>{radios}</div><select aria-label="why"><option value="">why?</option>{options}</select>'
        f'<input type="text" placeholder="note" aria-label="note"></div></fieldset>'
    )
