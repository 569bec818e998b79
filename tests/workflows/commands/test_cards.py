"""What `export` writes has cards: of both models and of the system."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from sparring.components.evaluation.measures import within
from tests.support.tiny import ROOT, Place


@pytest.fixture(scope="module")
def exported(played: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's export."""
    folder = tmp_path_factory.mktemp("cards") / "out"
    assert played("export", str(folder), "--system", "ranker over retriever 1") == 0
    return folder


def test_every_card_has_metadata_and_the_measures_of_the_run(played: Place, exported: Path) -> None:
    means = {(metric["system"], metric["measure"]): metric for metric in played.metrics()["means"]}
    for folder, system in (("retriever", "retriever 1"), ("ranker", "ranker over retriever 1"), ("system", "")):
        text = (exported / folder / "README.md").read_text()
        result = ModelCard(text).data.eval_results
        assert result, folder
        assert {item.metric_name for item in result} == {"RR@10", "Success@5", "R@100"}
        assert all(item.dataset_name == "toy" for item in result)
        if system:
            item = means[system, "RR@10"]
            low, high = within("RR@10", item["low"], item["high"])
            assert f"| {system} | {item['value']:.4f} ({low:.4f} to {high:.4f}) |" in text
            assert "| BM25 | " in text
            assert "| start model | " in text
    assert (exported / "system/retriever/README.md").read_text() == (exported / "retriever/README.md").read_text()


def test_a_card_tells_of_data_recipe_and_start_model(played: Place, exported: Path, encoder: Path) -> None:
    text = (exported / "retriever/README.md").read_text()
    for part in (
        "- 40 documents, as `format: beir`",
        "- split train: 16 queries, ",
        "Recipe `ar2` of Sparring, ",
        f"by `python -m workflows run {played.config}`",
        f"The start model is `{encoder}`; its licence is not known",
        "1. warm retriever: 3 updates of 4 rows, learning rate 0.001, fp32; losses: cross_entropy (batch)",
        "retriever 1: 3 updates of 4 rows, learning rate 0.001, fp32; losses: distillation (group)",
    ):
        assert part in text, part
    assert "control" not in text


def test_the_code_in_the_cards_runs(exported: Path) -> None:
    """And gives the same vectors with transformers alone as with sentence-transformers."""
    code = ""
    for folder in ("retriever", "ranker"):
        blocks = re.findall(r"```python\n(.*?)```", (exported / folder / "README.md").read_text(), re.S)
        assert len(blocks) == {"retriever": 2, "ranker": 1}[folder]
        code += "\n".join(blocks).replace("FOLDER", str(exported / folder)).replace("a question", "bara comi")
    code += "import numpy as np\nassert np.abs(vectors.detach().numpy() - queries).max() < 1e-5\n"
    code += "assert scores.shape == (1,)\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
