"""The human audit: who is drawn, what the form asks, and what the answers say, against counting by hand; the form in a browser where there is one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import chess
import numpy as np
import pandas as pd
import pytest

from analysis.audit import agreement_table, answers_of, corrected_headline, disagreement_table, draw_items, main, make_sheet, read_answers, sheet_hash
from analysis.audit_form import answer_text
from analysis.verifier_audit import read_audit
from chessrl.errors import UserError
from tests.test_evidence import write_audit

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FEN, LINE = "7k/8/8/8/8/8/R7/1R4K1 w - - 0 1", ["a2a7", "h8g8", "b1b8"]


def audit_of(tmp_path: Path, puzzles: int = 40) -> Path:
    """Episodes: in every puzzle 3 right answers by the line, 1 wrong legal one that the oracle calls right in every fourth puzzle, 1 illegal one."""
    rows = []
    for number in range(puzzles):
        for sample in range(5):
            moves, failure = ("a2a7 b1b8", "") if sample < 3 else ("a2b2", "wrong") if sample == 3 else ("", "illegal")
            right = sample < 3 or (sample == 3 and number % 4 == 0)
            place = {"puzzle": f"p{number:03d}", "bin": f"B{1 + number % 2}", "sample": sample, "moves": moves, "failure": failure}
            rows.append(place | {"line": sample < 3, "oracle": right})
    return write_audit(tmp_path / "rl-1", pd.DataFrame(rows))


def judged_by(items: pd.DataFrame, rule) -> pd.DataFrame:
    return items.assign(judged=[rule(row) for row in items.to_dict("records")], cause="alternative", note="")


def as_the_oracle(row: dict) -> str:
    return "right" if row["oracle"] else "wrong"


# ---- the sheet ----------------------------------------------------------------------------------------------------------------------------


def test_items_are_different_answers_spread_over_the_strata(tmp_path):
    answers = answers_of(read_audit(audit_of(tmp_path)))
    assert answers["episodes"].sum() == 200 and answers["stratum"].isna().sum() == 40, "answers without a legal move are in no stratum"
    counts = answers["stratum"].value_counts().to_dict()
    assert counts == {
        "B1 solved agree": 20, "B2 solved agree": 20, "B1 unsolved disagree": 10, "B1 unsolved agree": 10, "B2 unsolved agree": 20,
    }  # fmt: skip
    items = draw_items(answers, 60, seed=0)
    assert items["stratum"].value_counts().to_dict() == {
        "B1 solved agree": 14, "B2 solved agree": 13, "B1 unsolved disagree": 10, "B1 unsolved agree": 10, "B2 unsolved agree": 13,
    }  # fmt: skip
    assert not items.duplicated(["puzzle", "moves"]).any() and items["item"].tolist() == list(range(1, 61))
    assert draw_items(answers, 60, seed=0).equals(items) and not draw_items(answers, 60, seed=1)["puzzle"].equals(items["puzzle"])
    assert len(draw_items(answers, 1000, seed=0)) == 80, "no more than there are"


def test_the_form_is_one_file_that_hides_the_verdicts(tmp_path):
    page = make_sheet(audit_of(tmp_path), 12, 0).read_text()
    assert page.count("<fieldset") == 12 and page.count("<svg") == 12
    assert not re.search(r'(src|href)="http', page) and "disagree" not in page and "oracle" not in page and "solved" not in page


def test_answers_are_written_with_the_replies_between():
    board = chess.Board(FEN)
    assert answer_text(board, ["a2a7", "b1b8"], LINE, "") == "1. Ra7 Kg8 2. Rb8#"
    assert answer_text(board, ["a2a7"], LINE, "illegal") == "1. Ra7, then an answer that is illegal"
    assert answer_text(board, ["a2b2"], LINE, "wrong") == "1. Rab2"


# ---- reading back -------------------------------------------------------------------------------------------------------------------------


def test_a_judge_who_is_the_oracle_corrects_the_headline_to_the_oracles(tmp_path):
    answers = answers_of(read_audit(audit_of(tmp_path)))
    everything = draw_items(answers, 1000, 0)
    found = corrected_headline(answers, judged_by(everything, as_the_oracle), np.random.default_rng(0))
    assert found["headline"] == pytest.approx(0.6) and found["corrected"] == pytest.approx(0.6 + 0.2 / 4), "3 of 5, and a fourth in every 4th puzzle"
    assert found["unjudged_share"] == 0 and found["ci_low"] < 0.65 < found["ci_high"]


def test_the_interval_of_the_corrected_headline_holds_the_truth(tmp_path):
    answers = answers_of(read_audit(audit_of(tmp_path)))
    held = 0
    for seed in range(40):
        items = draw_items(answers, 20, seed)
        found = corrected_headline(answers, judged_by(items, as_the_oracle), np.random.default_rng(seed), resamples=300)
        held += found["ci_low"] <= 0.65 <= found["ci_high"]
    assert held >= 36, "the strata of this audit are pure: only the Jeffreys draws and the weights vary"


def test_a_stratum_that_nobody_judged_keeps_the_verifiers_word_and_is_counted(tmp_path):
    answers = answers_of(read_audit(audit_of(tmp_path)))
    items = draw_items(answers, 1000, 0)
    judged = judged_by(items[items["bin"] == "B1"], lambda row: "wrong")
    found = corrected_headline(answers, judged, np.random.default_rng(0))
    assert found["corrected"] == pytest.approx(0.3), "B2: 3 of 5 episodes, in half of the puzzles"
    assert found["unjudged_share"] == pytest.approx(0.4), "B2: 3 + 1 of 5 episodes"


def test_agreement_and_disagreements_are_counts(tmp_path):
    items = draw_items(answers_of(read_audit(audit_of(tmp_path))), 1000, 0)
    judged = judged_by(items, as_the_oracle)
    judged.loc[judged.index[0], "judged"] = "unsure"
    told = judged[judged["judged"] != "unsure"]
    table = agreement_table(judged, ["line", "oracle"]).set_index("verifier")
    assert table.loc["oracle", "agreement"] == 1 and table.loc["line", "judged"] == len(told) == 79
    assert table.loc["line", "refused_but_right"] == len(told) - table.loc["line", "agreed"] == (told["line"] != told["oracle"]).sum() > 8
    [row] = disagreement_table(judged).to_dict("records")
    assert (row["cause"], row["verifier"], row["judged"], row["items"]) == ("alternative", "refused", "right", table.loc["line", "refused_but_right"])


def test_answers_of_another_sheet_and_unknown_words_are_named(tmp_path):
    items = draw_items(answers_of(read_audit(audit_of(tmp_path))), 10, 0)
    path = tmp_path / "answers.json"
    for content, fault in (
        ({"sheet": "other", "answers": []}, "it answers sheet other"),
        ({"sheet": sheet_hash(items), "answers": [{"item": 99, "judged": "right"}]}, "item 99 is not on the sheet"),
        ({"sheet": sheet_hash(items), "answers": [{"item": 1, "judged": "perhaps"}]}, "judged is 'perhaps'"),
        ([], "not an answers file"),
    ):
        path.write_text(json.dumps(content))
        with pytest.raises(UserError, match=fault):
            read_answers(path, items)


def test_the_command_reads_what_its_form_saved(tmp_path, capsys):
    folder = audit_of(tmp_path)
    main([f"audit={folder}", "items=30"])
    items = pd.read_csv(folder / "sheet" / "items.csv", keep_default_na=False)
    answers = [{"item": int(row["item"]), "judged": as_the_oracle(row), "cause": "", "note": ""} for row in items.to_dict("records")]
    path = tmp_path / "answers.json"
    path.write_text(json.dumps({"sheet": sheet_hash(items), "answers": answers}))
    main([f"audit={folder}", f"read={path}"])
    headline = pd.read_csv(folder / "sheet" / "headline.csv").iloc[0]
    assert headline["judged"] == 30 and headline["corrected"] == pytest.approx(0.65, abs=0.001), "pure strata: any sample tells"
    assert "corrected" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_the_form_in_a_browser_gives_answers_that_can_be_read(tmp_path):
    folder = audit_of(tmp_path)
    page = make_sheet(folder, 6, 0)
    script = """<script>
    for (const set of document.querySelectorAll("fieldset")) {
      set.querySelector("input[value=" + (set.dataset.item % 2 ? "right" : "wrong") + "]").click();
      set.querySelector("select").value = "slower";
      set.querySelector("input[type=text]").value = 'say "so" <b>';
    }
    document.body.innerHTML += "<pre id=out></pre>";
    document.getElementById("out").textContent = "BEGIN" + content() + "END" + document.getElementById("progress").textContent;
    </script></body>"""
    driven = tmp_path / "driven.html"
    driven.write_text(page.read_text().replace("</body>", script))
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", f"file://{driven}"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    text = shown[shown.rindex("BEGIN{") + 5 : shown.rindex("}END") + 1]
    answers = tmp_path / "answers.json"
    answers.write_text(text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"').replace("&amp;", "&"))
    read = read_answers(answers, pd.read_csv(folder / "sheet" / "items.csv", keep_default_na=False))
    assert read["judged"].tolist() == ["right", "wrong"] * 3 and (read["cause"] == "slower").all() and (read["note"] == 'say "so" <b>').all()
    assert "6 of 6 judged" in shown
