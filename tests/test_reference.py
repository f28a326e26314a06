"""The configuration reference page is what the code says, and the code says something about every key."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from chessrl.config import Config
from chessrl.config_check import CHOICES, RANGES, value_of
from chessrl.launch import compose
from chessrl.reference import comments_of, page, sections

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"


@dataclass
class Sample:
    """Comments in every place where they stand."""

    # above, in
    # two lines
    first: int = 1
    second: str = "# no comment"  # behind
    # both
    third: list[int] = field(
        default_factory=list  # inside
    )
    fourth: int = 4


def test_a_keys_comments_are_those_right_above_and_behind_it():
    expected = {"first": "above, in two lines", "second": "behind", "third": "both inside", "fourth": ""}
    assert comments_of(Sample) == expected


def test_every_key_of_the_schema_is_on_the_page_with_a_meaning_and_its_default():
    keys = [key for _, _, of_section in sections() for key in of_section]
    assert [key.path for key in keys if not key.meaning] == []
    written = {key.path: key.default for key in keys if key.default not in ("(empty)", "{}") and not key.path.startswith("model.")}
    composed = compose("rl", [f"{path}={default}" for path, default in written.items()])
    assert [path for path in written if value_of(composed, path) != value_of(Config(), path)] == []
    assert {*CHOICES, *RANGES} <= {key.path for key in keys}


def test_the_hash_column_is_what_a_runs_name_does():
    """`no` keys leave an RL run's identity as it is, `if set` and `yes` keys change it."""
    from chessrl.run import identity_of

    hashed = {key.path: key.hashed for _, _, of_section in sections() for key in of_section}
    base = identity_of(compose("rl", []).rl)
    for path, value in {"rl.steps": 7, "rl.tokens": 7, "rl.curriculum.order": "easy_to_hard"}.items():
        assert hashed[path] in ("yes", "if set") and identity_of(compose("rl", [f"{path}={value}"]).rl) != base
    assert identity_of(compose("rl", ["health.kl=2.0", "run.threads=3"]).rl) == base and hashed["health.kl"] == hashed["run.threads"] == "no"


def test_the_committed_page_is_up_to_date():
    assert PAGE.read_text() == page(), "run: python -m chessrl.reference out=docs/configuration.md"
