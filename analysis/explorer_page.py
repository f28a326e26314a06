"""The puzzle explorer as HTML: a puzzle's record (analysis.explorer) drawn, and the page of the local server. Nothing is fetched from elsewhere.

Boards are python-chess's SVG (pieces by Colin M.L. Burnett, BSD among others). Colours are of the Okabe-Ito palette; what a colour says is said
by a sign as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import chess
import chess.svg

SHOWN_MOVES = 6  # bars
ARROWS = 3
SOLVING, OTHER = "#0072b2", "#d55e00"
BOARD = {"square light": "#f4f6f7", "square dark": "#cfd8dc"}  # pale, so that arrows show
FAINTEST = 0x50  # opacity of an arrow of probability 0, of 0xff

STYLE = """
.puzzle h3 { font-size: 1.05rem; margin: 1rem 0 .2rem; } .puzzle h4 { font-size: .9rem; margin: .8rem 0 .2rem; }
.puzzle .facts { color: #444; font-size: .85rem; margin: .2rem 0; }
.stages { display: flex; flex-wrap: wrap; gap: 1rem; } .stage { flex: 1 1 15rem; max-width: 21rem; min-width: 0; margin: 0; }
.stage figcaption { font-weight: 600; font-size: .9rem; } .stage svg { width: 100%; height: auto; display: block; }
.bars { list-style: none; margin: .4rem 0; padding: 0; font-size: .8rem; font-variant-numeric: tabular-nums; }
.bars li { display: grid; grid-template-columns: 5rem 1fr 3.6rem; gap: .4rem; align-items: center; }
.bars .bar { background: #eee; height: .7rem; } .bars .bar i { display: block; height: 100%; background: #d55e00; }
.bars .solving .bar i { background: #0072b2; } .bars .share { text-align: right; } .bars .rest .bar i { background: #999; }
.tree, .tree ul { list-style: none; margin: 0; padding-left: .9rem; border-left: 1px solid #bbb; font-size: .8rem; }
.tree { border: 0; padding: 0; } .tree .line { font-weight: 700; color: #0072b2; } .trace { margin: .3rem 0; }
.trace summary { cursor: pointer; font-size: .8rem; }
@media print { .stage { break-inside: avoid; } }
"""


def puzzle_html(record: Mapping[str, Any], decisions: Sequence[int] = ()) -> str:
    """A puzzle's record as an article: of each decision (of ``decisions`` where given) a board and bars by policy, then its traces."""
    themes = f" · {escape(' '.join(record['themes']))}" if record["themes"] else ""
    parts = [
        f'<article class="puzzle" aria-label="Puzzle {escape(record["id"])}">',
        f"<h3>{escape(record['id'])} · {escape(record['bin'])}{themes}</h3>",
    ]
    several = len(record["decisions"]) > 1
    for decision in record["decisions"]:
        if not decisions or decision["number"] in decisions:
            parts.append(_decision(decision, record["compared"], several))
    parts.append(f'<details class="facts"><summary>Solution</summary>{escape(" ".join(record["line"]))}</details>')
    parts += ['<div class="stages">', *(_samples(samples) for samples in record["samples"]), "</div></article>"]
    return "\n".join(parts)


def _decision(decision: Mapping[str, Any], compared: Sequence[str], several: bool) -> str:
    board = chess.Board(decision["fen"])
    mover = "White" if board.turn == chess.WHITE else "Black"
    title = f"Decision {decision['number'] + 1}: {mover} to move" if several else f"{mover} to move"
    parts = [f"<h4>{title}</h4>"]
    if decision["category"]:
        before, after = (f"{decision[key]:.1%}" for key in ("before", "after"))
        names = " → ".join(map(escape, compared))
        parts.append(f'<p class="facts">{names}: <strong>{escape(decision["category"])}</strong>, solving move {before} → {after}</p>')
    stages = "".join(_policy(board, policy) for policy in decision["policies"])
    return "\n".join([*parts, f'<div class="stages">{stages}</div>'])


def _policy(board: chess.Board, policy: Mapping[str, Any]) -> str:
    moves = policy["moves"]
    bars = [_bar(move["san"] + (" ✓" if move["solves"] else ""), move["probability"], move["solves"]) for move in moves[:SHOWN_MOVES]]
    if rest := moves[SHOWN_MOVES:]:
        name = f"{len(rest)} others" + (" ✓" if any(move["solves"] for move in rest) else "")
        bars.append(_bar(name, sum(move["probability"] for move in rest), False, kind="rest"))
    told = ", ".join(f"{move['san']} {move['probability']:.0%}" for move in moves[:ARROWS])
    over = f", mean of {policy['traces']} traces" if policy["traces"] > 1 else ""
    return (
        f"<figure class=\"stage\"><figcaption>{escape(policy['policy'])}</figcaption>"
        f'<div role="img" aria-label="Board, likeliest moves {escape(told)}">{_board(board, moves)}</div>'
        f'<ol class="bars">{"".join(bars)}</ol><p class="facts">legal mass {policy["legal_mass"]:.2f}{over}</p></figure>'
    )


def _board(board: chess.Board, moves: Sequence[Mapping[str, Any]]) -> str:
    arrows = []
    for move in reversed(moves[:ARROWS]):  # the likeliest on top
        opacity = FAINTEST + round(move["probability"] * (0xFF - FAINTEST))
        parsed = chess.Move.from_uci(move["uci"])
        arrows.append(chess.svg.Arrow(parsed.from_square, parsed.to_square, color=f"{SOLVING if move['solves'] else OTHER}{opacity:02x}"))
    drawn = chess.svg.board(board, arrows=arrows, orientation=board.turn, colors=BOARD, coordinates=False)
    return drawn.removesuffix("</svg>") + _coordinates(board.turn) + "</svg>"


def _coordinates(orientation: chess.Color) -> str:
    """Letters and numbers in the squares at the edge, as text: python-chess draws them as paths, which are two thirds of its board."""
    size = chess.svg.SQUARE_SIZE
    white = orientation == chess.WHITE
    files = chess.FILE_NAMES if white else chess.FILE_NAMES[::-1]
    ranks = chess.RANK_NAMES[::-1] if white else chess.RANK_NAMES
    texts = [f'<text x="{size * place + 35}" y="{8 * size - 3}">{name}</text>' for place, name in enumerate(files)]
    texts += [f'<text x="2" y="{size * place + 12}">{name}</text>' for place, name in enumerate(ranks)]
    return f'<g font-family="sans-serif" font-size="12" fill="#455a64">{"".join(texts)}</g>'


def _bar(name: str, share: float, solves: bool, kind: str = "") -> str:
    classes = " ".join(filter(None, ("solving" if solves else "", kind)))
    bar = f'<span class="bar"><i style="width:{share:.1%}"></i></span>'
    return f'<li class="{classes}"><span>{escape(name)}</span>{bar}<span class="share">{share:.1%}</span></li>'


def _samples(samples: Mapping[str, Any]) -> str:
    solved = f"{samples['solved']} of {samples['samples']} samples solve it" if samples["samples"] else "no samples"
    traces = "".join(_trace(trace) for trace in samples["traces"])
    return f'<div class="stage"><p class="facts">{escape(samples["policy"])}: {solved}</p>{traces}</div>'


def _trace(trace: Mapping[str, Any]) -> str:
    faults = "".join(f", {count} {escape(fault)} line{'s' if count > 1 else ''}" for fault, count in trace["faults"].items())
    ended = "" if trace["closed"] else ", never closed"
    name = f"trace of sample {trace['sample']}: {'solved' if trace['solved'] else 'not solved'}{faults}{ended}"
    tree = f'<ul class="tree">{"".join(map(_node, trace["tree"]))}</ul>' if trace["tree"] else '<p class="facts">no legal move</p>'
    return f'<details class="trace" open><summary>{name}</summary>{tree}</details>'


def _node(node: Mapping[str, Any]) -> str:
    name = f'<span class="line">{escape(node["san"])} ✓</span>' if node["line"] else escape(node["san"])
    below = f"<ul>{''.join(map(_node, node['below']))}</ul>" if node["below"] else ""
    return f"<li>{name}{below}</li>"


# ---- the server's page ------------------------------------------------------------------------------------------------------------------

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Puzzle explorer</title>
<link rel="icon" href="data:,">
<style>
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; margin: 0; padding: 1rem; }
h1 { font-size: 1.3rem; margin: 0; } .help, #count { color: #444; font-size: .85rem; margin: .2rem 0; }
main { display: grid; grid-template-columns: 17rem minmax(0, 1fr); gap: 1.2rem; max-width: 80rem; }
form { display: grid; gap: .4rem; } label { font-size: .85rem; display: grid; gap: .1rem; } select { font: inherit; max-width: 100%; padding: .2rem; }
#list { border: 1px solid #999; height: 60vh; overflow-y: auto; margin: 0; padding: 0; list-style: none; font-size: .8rem; position: relative; }
#list li { padding: .15rem .4rem; cursor: pointer; } #list li[aria-selected=true] { background: #0072b2; color: #fff; }
:focus-visible { outline: 3px solid #d55e00; outline-offset: 2px; }
@media (max-width: 700px) { main { grid-template-columns: minmax(0, 1fr); } #list { height: 9rem; } }
STYLE
</style>
</head>
<body>
<h1>Puzzle explorer</h1>
<p class="help">← → earlier and later puzzle · f filters · l list (↑ ↓ Home End) · blue and ✓: solves · SUMMARY</p>
<main>
<div>
<form aria-label="Filters">
<label>Bin<select id="bin"><option value="">all</option></select></label>
<label>Theme<select id="theme"><option value="">all</option></select></label>
<label>Category<select id="category"><option value="">all</option></select></label>
<label>Order<select id="order"><option value="moved">policy moved most first</option><option value="table">as in the table</option></select></label>
</form>
<p id="count" role="status"></p>
<ul id="list" role="listbox" tabindex="0" aria-label="Puzzles"></ul>
</div>
<div id="puzzle"></div>
</main>
<script>
SCRIPT
</script>
</body>
</html>
"""

SCRIPT = """
const part = (id) => document.getElementById(id);
const filters = ["bin", "theme", "category"];
let puzzles = [], shown = [], at = -1;

function fill(id, values) {
  for (const value of values) part(id).add(new Option(value, value));
}

function fits(puzzle) {
  const [bin, theme, category] = filters.map((id) => part(id).value);
  return (!bin || puzzle.bin === bin) && (!theme || puzzle.themes.includes(theme)) && (!category || puzzle.categories.includes(category));
}

function list() {
  const kept = at >= 0 && shown[at] ? shown[at].id : decodeURIComponent(location.hash.slice(1));
  shown = puzzles.filter(fits);
  if (part("order").value === "moved") shown.sort((a, b) => (b.moved ?? -1) - (a.moved ?? -1));
  part("list").replaceChildren(...shown.map((puzzle, place) => {
    const item = document.createElement("li");
    item.id = "item" + place;
    item.role = "option";
    item.textContent = [puzzle.id, puzzle.bin, ...puzzle.categories].join(" · ");
    item.onclick = () => show(place);
    return item;
  }));
  part("count").textContent = `none of ${puzzles.length} puzzles fits`;
  at = -1;
  const place = shown.findIndex((puzzle) => puzzle.id === kept);
  if (shown.length) show(Math.max(place, 0));
  else part("puzzle").replaceChildren();
}

async function show(place) {
  if (place < 0 || place >= shown.length) return;
  const list = part("list"), id = shown[place].id;
  if (at >= 0 && list.children[at]) list.children[at].setAttribute("aria-selected", "false");
  at = place;
  const item = list.children[at];
  item.setAttribute("aria-selected", "true");
  list.setAttribute("aria-activedescendant", item.id);
  list.scrollTop = Math.min(Math.max(list.scrollTop, item.offsetTop + item.offsetHeight - list.clientHeight), item.offsetTop);
  part("count").textContent = `${id}, ${at + 1} of ${shown.length} puzzles` + (shown.length < puzzles.length ? ` (${puzzles.length} in all)` : "");
  history.replaceState(null, "", "#" + encodeURIComponent(id));
  const answer = await fetch("puzzle.json?id=" + encodeURIComponent(id));
  const puzzle = await answer.json();
  if (shown[at] && shown[at].id === id) part("puzzle").innerHTML = puzzle.html ?? puzzle.error;
}

document.addEventListener("keydown", (event) => {
  if (event.target.tagName === "SELECT" || event.ctrlKey || event.altKey || event.metaKey) return;
  const inList = event.target === part("list");
  const moves = { ArrowLeft: at - 1, ArrowRight: at + 1 };
  if (inList) Object.assign(moves, { ArrowUp: at - 1, ArrowDown: at + 1, Home: 0, End: shown.length - 1 });
  if (event.key in moves) show(moves[event.key]);
  else if (event.key === "f") part("bin").focus();
  else if (event.key === "l") part("list").focus();
  else return;
  event.preventDefault();
});

fetch("puzzles.json").then((answer) => answer.json()).then((records) => {
  puzzles = records;
  fill("bin", [...new Set(puzzles.map((puzzle) => puzzle.bin))].sort());
  fill("theme", [...new Set(puzzles.flatMap((puzzle) => puzzle.themes))].sort());
  fill("category", [...new Set(puzzles.flatMap((puzzle) => puzzle.categories))].sort());
  for (const id of [...filters, "order"]) part(id).onchange = list;
  list();
});
"""


def page_html(summary: str) -> str:
    """The server's page; ``summary``: what is shown, in words."""
    return PAGE.replace("STYLE", STYLE).replace("SCRIPT", SCRIPT).replace("SUMMARY", escape(summary))
