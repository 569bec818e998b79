"""The list of the papers' tables, configs/papers/README.md, made from their configs:

python docs/papers.py
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from sparring.components.config import Config  # noqa: E402
from sparring.components.yaml_files import read_based  # noqa: E402
from sparring.workflows.experiments import loading  # noqa: E402
from sparring.workflows.experiments.expected import KEY, Expected  # noqa: E402
from sparring.workflows.experiments.scale import why_not  # noqa: E402
from sparring.workflows.store.dag import graph  # noqa: E402

FOLDER = ROOT / "configs" / "papers"
LIST = FOLDER / "README.md"

PAPERS = {
    "ar2": "AR2 (Zhang et al., 2022)",
    "samtone": "SamToNe (Moiseev et al., 2023)",
    "simlm": "SimLM (Wang et al., 2023)",
    "diffcse": "DiffCSE (Chuang et al., 2022; the thesis, chapter 2)",
    "ear": "EAR (Chuang et al., 2023; the thesis, chapter 3)",
    "coder": "Reciprocal neighbours and CODER (Zerveas et al., 2023)",
}

FILES = {
    "data/nq": (
        "DPR's: `psgs_w100.tsv` with 21,015,324 passages (13 GB), 58,880 training questions with a gold "
        "passage, 8,757 dev and 3,610 test questions; 2,032 test questions of WebQuestions, 694 of "
        "CuratedTREC, 22,075 of EntityQuestions"
    ),
    "data/trivia": (
        "the same passages, 60,413 training questions with a gold passage, 8,837 dev and 11,313 test questions"
    ),
    "data/msmarco": (
        "`collection.tsv` with 8,841,823 passages (3 GB), about 503,000 training queries, 6,980 of dev.small, "
        "about 56,000 of dev, 43 of DL 2019 and 54 of DL 2020"
    ),
    "data/tripclick": (
        "about 1.5 million articles, and topics with qrels of HEAD and TORSO; 3,500 queries to validate and "
        "3,500 to test"
    ),
    "data/multireqa": (
        "sentences of MultiReQA, and in `mrqa` the contexts of the MRQA shared task; NQ: 106,521 training pairs, "
        "4,131 test questions, 22,118 test sentences; SQuAD: 87,133, 10,485, 10,642; "
        "TriviaQA: 335,659, 7,776, 238,339; SearchQA: 629,160, 16,476, 454,836"
    ),
    "data/beir": "BEIR's 18 sets but MS MARCO, each a folder; CQADupStack has 12",
    "data/wiki1m_for_simcse.txt": "1 million sentences of Wikipedia",
    "data/nli-sentences.txt": "the sentences of SNLI's and MNLI's training sets",
    "data/senteval": "SentEval's STS and transfer tasks",
}
"""What lies in `data/`, and how large it is, by the papers' own counts."""

FOLDERS = {place for place in FILES if "." not in place}

NOT_HERE = {
    "ar2": (
        "Tables 1 and 9 (statistics, numbers of the trainings: they are in the configs). Table 4's latencies and Table "
        "8 (how long a batch, a refresh and all trainings take on 8 A100: they say nothing of another machine, whose "
        "own times every report has). Figure 3's points from the second round to the ninth, and Figure 4's of ANCE "
        "(they are in no table). Figures 1 and 2 (drawings). Rows that the tables take from other papers."
    ),
    "samtone": (
        "The average columns of Tables 1 and 4 (means of the other columns), GTR's column of Table 2 (another "
        "paper's model), Figure 2 (a drawing)."
    ),
    "simlm": (
        "ColBERTv2 in Table 3 and the other models of Tables 2 and 4 (other papers'), Tables 11 and 13 (numbers of "
        "the trainings: they are in the configs), GLUE in Table 1 (no retrieval), Figures 1 and 2 (drawings)."
    ),
    "diffcse": (
        "Tables 2.9 (examples), A.1 to A.3 (numbers of the trainings: they are in the configs), Figure 2-1 (a "
        "drawing). Figure 2-2 is a section of the report of Table 2.10. Rows of other papers' models: in Table 2.1 "
        "GloVe, BERT-flow, IS-BERT, CMLM-BERT, CT-BERT, SG-OPT-BERT, DeCLUTR, and SimCSE's of its own authors; in "
        "Table 2.2 GloVe, skip-thought, IS-BERT, CMLM-BERT. All rows of the other tables are here."
    ),
    "ear": (
        "Table 3.3 (statistics), Tables B.1 and B.2 (numbers of the trainings: they are in the configs), "
        "Figure 3-1 (a drawing). Table 3.10 is a section of the report of Table 3.9. Rows of other papers' systems: in "
        "Table 3.4 DPR trained on WebQuestions and TREC; in Table 3.5 DPR with an extractive reader, RAG, and SEAL and "
        "contextual clue sampling with a reader. In Table 3.2 the latter two are read from files. All rows of the "
        "other tables are here."
    ),
    "coder": (
        "Table 1's first rows (other papers' models), Tables 5 and 6 (numbers: they are in the configs), "
        "Figures 1, 11, 12 and 13 (drawings and examples; the report draws such of its own queries). Row "
        "CODER(RB) of Table 4, of a training whose numbers the paper does not give (RR@10 .656 under RAW), and the "
        "like of Table 9 (.390 on the test split); BERT-Dot and BERT-Cat in Table 2 (other papers' models)."
    ),
}
"""Tables and figures that no file has, and why."""


ABOUT = """\
# Every table of the papers

Made by `python docs/papers.py` from the files beside it; tests keep it current. A file is an experiment with the
paper's numbers, and `expected:` has the paper's results:

```
sparring plan configs/papers/ar2/table2-nq.yaml     # every step; needs none of the data
sparring run configs/papers/ar2/table2-nq.yaml --cluster cluster/YOURS.yaml
```

The table at its end, the report and `metrics.json` have the paper's value, this run's with its interval, the
difference, and whether the paper's lies within, above or below. None of the files was run here as it stands: their
data and GPUs were not at hand. `sparring convert` makes a start model of a checkpoint that a paper's own code wrote.

## At small scale

Most have a small twin: the same rows from small data, a small model and a few updates. It tries the experiment out, and
says nothing of the paper's values. On 2026-11-25 the 95 twins of that day were run to their ends on 2 cores of an AMD
EPYC without AMX (commits 6860e8b to 1466859): 2,925 steps, which took 1 h 59 min together, on one thread each and
beside other programs, and 40 GB. Most twins of AR2, SamToNe, SimLM, DiffCSE and EAR have changed since and were only
planned. One command for a table, one for all:

```
sparring run configs/papers/ar2/table2-nq.yaml --set scale=small
sparring run configs/papers --set scale=small --cluster cluster/inline.yaml
```

Repeat it to resume: tables share their steps, and one that fails does not keep the others from being run. What is
changed is the key `small` of a file, or of one that it is based on: `key.path: value`, as `--set` has it. Twins read
`squad`, `cranfield` and `scifact` (BEIR folders), `stsb`, `transfer` and `wiki-sentences` in `data/`. Tables of one
experiment on several collections have the same twin, which runs once. Where there is none, the list says why.
"""


def text() -> str:
    """The list."""
    lines = [ABOUT]
    places: dict[str, set[str]] = {}
    for name, title in PAPERS.items():
        head = ["what", "config", "needs in `data/` (files)", "start models", "the paper's hardware", "small twin"]
        lines += [f"## {title}", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        parts = []
        for path in sorted((FOLDER / name).glob("*.yaml"), key=_natural):
            tree = read_based(path)
            if not tree.get(KEY):
                parts.append(path)
                continue
            expected = Expected.model_validate(tree[KEY])
            files, models = needs(path)
            for file in files:
                places.setdefault(_place(file), set()).add(file)
            subject = expected.source.rpartition("), ")[2]
            reason = why_not(tree)
            cells = [
                subject,
                _link(path),
                _folders(files),
                ", ".join(f"`{model}`" for model in models),
                expected.hardware or "not said",
                "yes" if reason is None else f"no: {reason}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
        lines += ["", f"Parts of these: {', '.join(map(_link, parts))}.", ""] if parts else [""]
        lines += [f"Not here: {NOT_HERE[name]}", ""]
    lines += [
        "## Files",
        "",
        "In `data/`; `$SPARRING_DATA` moves it. Counts are the papers'.",
        "",
        "| where | what | files |",
        "|---|---|---|",
    ]
    lines += [f"| {_in_data(place)} | {FILES[place]} | {_named(places[place])} |" for place in sorted(places)]
    return "\n".join(lines) + "\n"


def needs(path: Path) -> tuple[list[str], list[str]]:
    """The files that an experiment reads, as its config declares them, and the models that it begins from."""
    files: dict[str, None] = {}
    models: dict[str, None] = {}
    with tempfile.TemporaryDirectory() as nowhere, _data_in(nowhere):
        for node in graph(loading.read(path, [], Path(nowhere)).wanted):
            for value in _configs(node.inputs):
                model = getattr(value, "model", None)
                if isinstance(model, str):
                    models[model] = None
                if callable(getattr(value, "files", None)):
                    for file in value.files().values():
                        files[file.as_posix().replace(nowhere, "data").removesuffix(".gz")] = None
    return sorted(files), sorted(models)


@contextmanager
def _data_in(folder: str) -> Iterator[None]:
    """`$SPARRING_DATA` is another folder for a while."""
    before = os.environ.get("SPARRING_DATA")
    os.environ["SPARRING_DATA"] = folder
    try:
        yield
    finally:
        os.environ.pop("SPARRING_DATA")
        os.environ |= {} if before is None else {"SPARRING_DATA": before}


def _configs(value: Any) -> Iterator[Config]:
    """The sources, models and files among a step's inputs."""
    if isinstance(value, Config):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _configs(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _configs(item)


def _place(file: str) -> str:
    """The folder in `data/` that a file lies in, or the file."""
    return "/".join(file.split("/")[:2])


def _folders(files: list[str]) -> str:
    """The folders that files lie in, with how many there are of each."""
    subject = [_place(file) for file in files]
    return ", ".join(
        _in_data(item) + (f" ({subject.count(item)})" if item in FOLDERS else "") for item in sorted({*subject})
    )


def _in_data(place: str) -> str:
    return f"`{place.removeprefix('data/')}`"


def _named(files: set[str]) -> str:
    """The files of a folder by name; those of many sets by what each set has."""
    names = sorted("/".join(file.split("/")[2:]) for file in files)
    if len(names) <= 20:
        return ", ".join(f"`{name}`" for name in names if name)
    sets = sorted({name.partition("/")[0] for name in names})
    return f"{len(names)} files of {', '.join(f'`{item}`' for item in sets)}"


def _link(path: Path) -> str:
    return f"[{path.stem}]({path.relative_to(FOLDER).as_posix()})"


def _natural(path: Path) -> list[Any]:
    """Table 2 before Table 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.stem)]


if __name__ == "__main__":
    LIST.write_text(text())
