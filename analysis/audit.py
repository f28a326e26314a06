"""The human audit: a sheet of answers to judge by eye, and what the judgements say of the verifiers and of the headline (science 6.7).

Without ``read`` it writes ``sheet/form.html`` (opens offline, its answers are saved as a file) and its ``items.csv``; with it ``agreement.csv``,
``headline.csv`` and ``disagreements.csv`` beside them.

Items are different answers, drawn evenly over the strata bin x solved x verifiers disagree. The judge does not see what any verifier said.

Examples:
    python -m analysis.audit audit=outputs/rl-0123456789ab/audits/0123456789ab items=100
    python -m analysis.audit audit=outputs/rl-0123456789ab/audits/0123456789ab read=answers.json
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.audit_form import CAUSES, JUDGEMENTS, form_page
from analysis.verifier_audit import Audit, read_audit
from chessrl.command import parse_settings, run_command
from chessrl.errors import UserError, make_folder
from chessrl.puzzle_splits import even_quotas
from chessrl.statistics import LEVEL, RESAMPLES, wilson_interval

HEADLINE = "line"  # the verifier behind pass@1
ITEM_COLUMNS = ("item", "puzzle", "bin", "moves", "failure", "stratum", "episodes")


@dataclass(frozen=True, slots=True)
class SheetSettings:
    """Keys of the command."""

    audit: str  # a folder of python -m chessrl.audit
    read: str = ""  # the file that the form saved; empty: make the form
    items: int = 100  # answers on the sheet
    seed: int = 0  # which answers are drawn, and the bootstraps' draws


# ---- the sheet --------------------------------------------------------------------------------------------------------------------------


def answers_of(audit: Audit) -> pd.DataFrame:
    """One row per puzzle and different answer: its verdicts, stratum, and how many episodes gave it.

    Answers without a legal move are in no stratum (NaN): they are wrong whoever judges.
    """
    verifiers = [*audit.record["verifiers"], "oracle"]
    table = audit.verdicts.groupby(["puzzle", "bin", "moves", "failure"], sort=True).agg(
        episodes=("sample", "size"), **{name: (name, "first") for name in verifiers}
    )
    table = table.reset_index()
    opinions = table[verifiers].astype(object)
    agree = opinions.eq(opinions[HEADLINE], axis=0).all(axis=1)
    words = np.where(table[HEADLINE], "solved", "unsolved"), np.where(agree, "agree", "disagree")
    table["stratum"] = (table["bin"] + " " + words[0] + " " + words[1]).where(table["moves"] != "")
    return table


def draw_items(answers: pd.DataFrame, count: int, seed: int) -> pd.DataFrame:
    """``count`` answers, as evenly over the strata as these have them, without replacement, in random order; ``item`` numbers them from 1."""
    strata = answers["stratum"].dropna()
    quotas = even_quotas(min(count, len(strata)), strata.value_counts().sort_index().to_dict())
    rng = np.random.default_rng(seed)
    chosen = [rng.choice(strata.index[strata == stratum].to_numpy(), quota, replace=False) for stratum, quota in sorted(quotas.items())]
    places = rng.permutation(np.concatenate(chosen))
    return answers.loc[places].reset_index(drop=True).assign(item=np.arange(1, len(places) + 1))


def sheet_hash(items: pd.DataFrame) -> str:
    """12 hex digits of what is asked: an answers file says to which sheet it belongs."""
    return hashlib.sha256(items[["item", "puzzle", "moves", "failure"]].to_csv(index=False).encode()).hexdigest()[:12]


def make_sheet(folder: Path, count: int, seed: int) -> Path:
    """Write the form and its key; the form's path. Raises UserError for an audit without an answer to judge."""
    audit = read_audit(folder)
    answers = answers_of(audit)
    if answers["stratum"].isna().all():
        raise UserError(f"{folder}: no episode of it has a legal move, so there is nothing to judge; audit a later policy")
    items = draw_items(answers, count, seed)
    out = folder / "sheet"
    make_folder(out, "audit")
    items.to_csv(out / "items.csv", index=False)
    title = f"{audit.record['run']}, split {audit.record['split']}"
    page = form_page(items, audit.puzzles.set_index("puzzle"), title, sheet_hash(items))
    (out / "form.html").write_text(page, encoding="utf-8")
    return out / "form.html"


# ---- reading back -----------------------------------------------------------------------------------------------------------------------


def read_answers(path: Path, items: pd.DataFrame) -> pd.DataFrame:
    """The items with ``judged`` (right, wrong, unsure), ``cause`` and ``note``; those without a judgement are left out.

    Raises UserError for a file of another sheet, an unknown item, or an unknown word.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        answers, sheet = content["answers"], content["sheet"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not an answers file ({error}); expected what the form's button saves") from None
    if sheet != sheet_hash(items):
        raise UserError(f"{path}: it answers sheet {sheet}, but items.csv is of sheet {sheet_hash(items)}; read it with its own audit")
    known = set(items["item"])
    for row, answer in enumerate(answers, start=1):
        if answer.get("item") not in known:
            raise UserError(f"{path} answer {row}: item {answer.get('item')} is not on the sheet")
        for key, words in (("judged", JUDGEMENTS), ("cause", CAUSES)):
            if answer.get(key, "") not in ("", *words):
                raise UserError(f"{path} answer {row}: {key} is {answer[key]!r}, expected one of {', '.join(words)}")
    table = pd.DataFrame([*answers], columns=["item", "judged", "cause", "note"]).fillna("").drop_duplicates("item", keep="last")
    return items.merge(table[table["judged"] != ""], on="item")


def agreement_table(judged: pd.DataFrame, verifiers: list[str]) -> pd.DataFrame:
    """By verifier: how often it said what the person said, over the items judged right or wrong; Wilson's limits."""
    told = judged[judged["judged"] != "unsure"]
    rows = []
    for verifier in verifiers:
        known = told[told[verifier].notna()]
        if known.empty:
            continue
        said, right = known[verifier].astype(bool), known["judged"] == "right"
        same = int((said == right).sum())
        low, high = wilson_interval(same, len(known))
        row = {"verifier": verifier, "judged": len(known), "agreed": same, "agreement": same / len(known), "ci_low": low, "ci_high": high}
        rows.append(row | {"accepted_but_wrong": int((said & ~right).sum()), "refused_but_right": int((~said & right).sum())})
    return pd.DataFrame(rows)


def corrected_headline(answers: pd.DataFrame, judged: pd.DataFrame, rng: np.random.Generator, resamples: int = RESAMPLES) -> dict[str, float]:
    """pass@1 by the person's judgement: the strata's shares of right answers, weighted by their episodes (post-stratification).

    Within a stratum an answer counts by its episodes. The interval resamples puzzles for the strata's weights and draws each stratum's share from
    its Jeffreys posterior, Beta(right + 1/2, wrong + 1/2); a stratum judged whole is known. Where none of a stratum was judged the verifier's word
    stands, and ``unjudged_share`` says for how many episodes.
    """
    told = judged[judged["judged"] != "unsure"]
    strata = sorted(answers["stratum"].dropna().unique())
    shares, whole = _stratum_shares(answers, told, strata)
    by_puzzle = answers.pivot_table(index="puzzle", columns="stratum", values="episodes", aggfunc="sum", fill_value=0).reindex(columns=strata)
    total = answers.groupby("puzzle")["episodes"].sum()
    by_puzzle = by_puzzle.reindex(total.index, fill_value=0).to_numpy(np.float64)
    counts = rng.multinomial(len(total), np.full(len(total), 1 / len(total)), size=resamples)
    weights = counts @ by_puzzle / (counts @ total.to_numpy())[:, None]
    drawn = np.empty((resamples, len(strata)))
    for place, (share, number) in enumerate(zip(shares, whole)):
        drawn[:, place] = share if number is None else rng.beta(share * number + 0.5, (1 - share) * number + 0.5, resamples)
    low, high = np.quantile((weights * drawn).sum(1), [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
    point = float(by_puzzle.sum(0) @ shares / total.sum())
    unjudged = [stratum for stratum in strata if stratum not in set(told["stratum"])]
    return {
        "headline": float((answers[HEADLINE].astype(float) * answers["episodes"]).sum() / answers["episodes"].sum()),
        "corrected": point, "ci_low": min(float(low), point), "ci_high": max(float(high), point), "judged": len(told),
        "unsure": len(judged) - len(told), "unjudged_share": float(answers.loc[answers["stratum"].isin(unjudged), "episodes"].sum() / total.sum()),
    }  # fmt: skip


def _stratum_shares(answers: pd.DataFrame, told: pd.DataFrame, strata: list[str]) -> tuple[np.ndarray, list[int | None]]:
    """Share of right answers of each stratum, and how many were judged; None where the share is known (all judged) or taken from the verifier."""
    shares, numbers = [], []
    for stratum in strata:
        population, sample = answers[answers["stratum"] == stratum], told[told["stratum"] == stratum]
        if sample.empty:
            shares.append(float(population[HEADLINE].astype(bool).iloc[0]))
            numbers.append(None)
            continue
        right = (sample["judged"] == "right").astype(float)
        shares.append(float((right * sample["episodes"]).sum() / sample["episodes"].sum()))
        numbers.append(None if len(sample) == len(population) else len(sample))
    return np.array(shares), numbers


def disagreement_table(judged: pd.DataFrame) -> pd.DataFrame:
    """By cause: items in which the person and the headline's verifier differ."""
    told = judged[judged["judged"] != "unsure"]
    differ = told[told[HEADLINE].astype(bool) != (told["judged"] == "right")]
    verifier = differ[HEADLINE].astype(bool).map({True: "accepted", False: "refused"})
    table = differ.assign(verifier=verifier, cause=differ["cause"].replace("", "not given"))
    counts = table.groupby(["cause", "verifier", "judged"])["item"].agg(items="size", which=lambda items: " ".join(map(str, sorted(items))))
    return counts.reset_index()


def read_sheet(folder: Path, path: Path, seed: int) -> Mapping[str, pd.DataFrame]:
    """Read the saved answers and write the tables beside the form. Raises UserError without a form, or where nothing was judged."""
    out = folder / "sheet"
    if not (out / "items.csv").is_file():
        raise UserError(f"{out}/items.csv is missing: make the form first with python -m analysis.audit audit={folder}")
    audit = read_audit(folder)
    items = pd.read_csv(out / "items.csv", keep_default_na=False, na_values={name: [""] for name in (*audit.record["verifiers"], "oracle")})
    judged = read_answers(path, items)
    if judged.empty:
        raise UserError(f"{path}: no item was judged; open {out}/form.html, judge, and save")
    headline = corrected_headline(answers_of(audit), judged, np.random.default_rng(seed))
    tables = {
        "judged": judged,
        "agreement": agreement_table(judged, [*audit.record["verifiers"], "oracle"]),
        "headline": pd.DataFrame([{"run": audit.record["run"], "step": audit.record["step"], "split": audit.record["split"]} | headline]),
        "disagreements": disagreement_table(judged),
    }
    for name, table in tables.items():
        table.to_csv(out / f"{name}.csv", index=False)
    return tables


def main(arguments: list[str]) -> None:
    settings = parse_settings(SheetSettings, arguments)
    folder = Path(settings.audit)
    if settings.items < 1:
        raise UserError(f"items={settings.items}: expected at least 1")
    if not settings.read:
        form = make_sheet(folder, settings.items, settings.seed)
        print(f"open {form}, judge, save, then: python -m analysis.audit audit={folder} read=ANSWERS.json")
        return
    for name, table in read_sheet(folder, Path(settings.read), settings.seed).items():
        if name != "judged":
            print(f"{name}\n{table.to_string(index=False) if len(table) else 'none'}\n")


if __name__ == "__main__":
    sys.exit(run_command(main))
