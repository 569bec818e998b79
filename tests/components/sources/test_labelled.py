"""Labelled sentences: SentEval's folder and tab-separated files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from sparring.components.config import Config, UserError, parse
from sparring.components.sources.base import AnySource
from sparring.components.sources.labelled import LabelledSource
from sparring.components.sources.records import Bad
from sparring.components.sources.senteval import TASKS
from sparring.workflows.steps.ingest import ingest
from tests.support.sources import source, without_place, write

STS12 = ["MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"]


class Recipe(Config):
    """A config with a source."""

    data: AnySource


def labelled(**keys: Any) -> LabelledSource:
    """A declared source of labelled sentences."""
    output = source(**keys)
    assert isinstance(output, LabelledSource)
    return output


def examples(made: LabelledSource) -> list[tuple[Any, ...]]:
    """Sentences, label or score, subset and split of each example."""
    return [
        str(item) if isinstance(item, Bad) else (item.sentences, item.label or item.score, item.subset, item.split)  # type: ignore[misc]
        for item in made.read_labelled()
    ]


def senteval(folder: Path) -> Path:
    """A few lines of every layout of SentEval."""
    sts = folder / "STS" / "STS12-en-test"
    for subset in STS12:
        write(sts / f"STS.input.{subset}.txt", f'A "{subset}".\tB.\tsource 1', "C.\tD.", "E.\tF.")
        write(sts / f"STS.gs.{subset}.txt", "5.000", "", "1.25")
    columns = "main-captions\tMSRvid\t2012test\t0001\t{}\tA plane.\tAn air plane.\textra"
    for split, score in (("train", "5.000"), ("dev", "4"), ("test", "0.5")):
        write(folder / "STS" / "STSBenchmark" / f"sts-{split}.csv", columns.format(score))
    sick = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
    for name in ("train", "trial", "test_annotated"):
        write(folder / "SICK" / f"SICK_{name}.txt", sick, f"1\tA {name}\tB\t4.5\tNEUTRAL")
    for name, files in {"MR": "rt-polarity.{}", "CR": "custrev.{}", "MPQA": "mpqa.{}"}.items():
        (folder / name).mkdir()
        (folder / name / files.format("pos")).write_bytes("crème brûlée\n".encode("latin-1"))
        (folder / name / files.format("neg")).write_bytes(b"bad\n\nworse\n")
    write(folder / "SUBJ" / "subj.objective", "it is")
    write(folder / "SUBJ" / "subj.subjective", "I feel")
    for split in ("train", "dev", "test"):
        write(folder / "SST" / "binary" / f"sentiment-{split}", f"a {split} film\t1")
    write(folder / "TREC" / "train_5500.label", "DESC:manner How did it ?")
    write(folder / "TREC" / "TREC_10.label", "NUM:dist How far : is it ?")
    mrpc = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    for split in ("train", "test"):
        write(folder / "MRPC" / f"msr_paraphrase_{split}.txt", mrpc, f'1\t7\t8\tHe "said\tHe told {split}')
    return folder


def test_every_task_of_senteval_is_read_as_senteval_reads_it(tmp_path: Path) -> None:
    folder = str(senteval(tmp_path))
    result = {
        task: examples(labelled(format="senteval", path=folder, task=task)) for task in TASKS if task[:4] != "STS1"
    }
    assert result == {
        "STSBenchmark": [
            (("A plane.", "An air plane."), score, "", split)
            for split, score in (("train", 5.0), ("dev", 4.0), ("test", 0.5))
        ],
        "SICKRelatedness": [
            ((f"A {name}", "B"), 4.5, "", split)
            for split, name in (("train", "train"), ("dev", "trial"), ("test", "test_annotated"))
        ],
        **{
            task: [(("crème brûlée",), "1", "", "all"), (("bad",), "0", "", "all"), (("worse",), "0", "", "all")]
            for task in ("MR", "CR", "MPQA")
        },
        "SUBJ": [(("it is",), "1", "", "all"), (("I feel",), "0", "", "all")],
        "SST2": [((f"a {split} film",), "1", "", split) for split in ("train", "dev", "test")],
        "TREC": [(("How did it ?",), "DESC", "", "train"), (("How far : is it ?",), "NUM", "", "test")],
        "MRPC": [(('He "said', f"He told {split}"), "1", "", split) for split in ("train", "test")],
    }


def test_pairs_without_a_score_are_left_out_and_the_others_keep_theirs(tmp_path: Path) -> None:
    output = labelled(format="senteval", path=str(senteval(tmp_path)), task="STS12")
    result = examples(output)
    assert result[:2] == [(('A "MSRpar".', "B."), 5.0, "MSRpar", "test"), (("E.", "F."), 1.25, "MSRpar", "test")]
    assert [item[2] for item in result[::2]] == STS12
    assert [example.example_id for example in output.read_examples()][:3] == ["MSRpar-1", "MSRpar-3", "MSRvid-1"]


def test_a_set_is_a_collection_whose_queries_are_its_positive_pairs(tmp_path: Path) -> None:
    write(tmp_path / "test.tsv", "score\tsentence1\tsentence2", "5\tA\tB", "4.9\tC\tA", "5.0\tD\tE")
    output = labelled(format="tsv", path=f"{tmp_path}/{{split}}.tsv")
    assert without_place(output.read_documents()) == [
        (f"test-{line}.{side}", "", text)
        for line, pair in ((2, "AB"), (3, "CA"), (4, "DE"))
        for side, text in enumerate(pair, 1)
    ]
    requests = [
        (f"test-{line}.{side}", text, [], "test")
        for line, pair in ((2, "AB"), (4, "DE"))
        for side, text in enumerate(pair, 1)
    ]
    assert without_place(output.read_queries()) == requests
    assert without_place(output.read_qrels())[:2] == [
        ("test-2.1", "test-2.2", 1, "test"),
        ("test-2.2", "test-2.1", 1, "test"),
    ]
    assert without_place(output.read_examples())[1] == ("test-3", "test-3.1", "test-3.2", None, 4.9, "", "test")
    (tmp_path / "out").mkdir()
    summary = ingest(tmp_path / "out", None, source=output)
    assert (summary["documents"], summary["queries"], summary["examples"]) == (6, {"test": 4}, {"test": 3})
    assert [*labelled(**{**output.model_dump(), "positive": 5.5}).read_queries()] == []


def test_tsv_files_by_split_or_without(tmp_path: Path) -> None:
    write(tmp_path / "sst2.train.tsv", "label\tsentence", '1\tsays "good')
    write(tmp_path / "sst2.dev.tsv.gz", "label\tsentence", "0\tbad")
    write(tmp_path / "pairs.tsv", "sentence2\tid\tlabel\tsentence1", "B\t7\tyes\tA")
    files = f"{tmp_path}/sst2.{{split}}.tsv"
    assert examples(labelled(format="tsv", path=files)) == [
        (("bad",), "0", "", "dev"),
        (('says "good',), "1", "", "train"),
    ]
    assert examples(labelled(format="tsv", path=files, splits={"test": "dev"})) == [(("bad",), "0", "", "test")]
    assert labelled(format="tsv", path=files, splits=["test"]).missing() == [f"{tmp_path}/sst2.test.tsv"]
    assert examples(labelled(format="tsv", path=f"{tmp_path}/pairs.tsv")) == [(("A", "B"), "yes", "", "all")]
    elsewhere = labelled(format="tsv", path=files, splits={"test": "../x"})
    assert elsewhere.missing() == [f"{tmp_path}/sst2.../x.tsv"]
    nothing = f"{tmp_path}/none.{{split}}.tsv"
    assert labelled(format="tsv", path=nothing).missing() == [nothing]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["sentence\tclass", "a\tb"], ": wrong header (got the columns sentence, class, expected score sentence1 "),
        (
            ["score\tsentence1\tsentence2", "high\tA\tB"],
            ":2: score that is not a number (got 'high', expected a number",
        ),
        (["score\tsentence1\tsentence2", "nan\tA\tB"], ":2: score that is not a number (got 'nan'"),
        (["score\tsentence1\tsentence2", "1_0\tA\tB"], ":2: score that is not a number (got '1_0'"),
        (
            ["score\tsentence1\tsentence2", "1\tA", "1\tA\tB\tC"],
            ":2: wrong columns (expected score, sentence1, sentence2, got 2 ",
        ),
        (["score\tsentence1\tsentence2", "1\tA\t "], ":2: empty sentence"),
        (["label\tsentence", "\tA"], ":2: empty label (expected a class)"),
        (["label\tsentence", "1\t\udcff"], ":2: text that is not UTF-8"),
    ],
)
def test_a_bad_line_is_named_or_dropped(tmp_path: Path, lines: list[str], says: str) -> None:
    path = tmp_path / "one.tsv"
    path.write_bytes("".join(f"{line}\n" for line in lines).encode(errors="surrogateescape"))
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError) as caught:
        ingest(tmp_path / "out", None, source=labelled(format="tsv", path=str(path)))
    assert str(caught.value).startswith(f"{path}{says}")
    with path.open("a") as file:
        file.write("1\tgood\tgood\n" if "score" in lines[0] else "1\tgood\n")
    if "header" not in says:
        summary = ingest(tmp_path / "out", None, source=labelled(format="tsv", path=str(path), on_bad="drop"))
        assert summary["examples"] == {"all": 1}
        assert sum(value["count"] for value in summary["dropped"].values()) == len(lines) - 1


@pytest.mark.parametrize(
    ("task", "file", "text", "says"),
    [
        ("STS12", "STS/STS12-en-test/STS.gs.MSRvid.txt", "1\n2\n", "STS.input.MSRvid.txt:3: line without its pair "),
        ("STS12", "STS/STS12-en-test/STS.gs.MSRvid.txt", "1\nx\n2\n", "STS.gs.MSRvid.txt:2: score that is not a "),
        (
            "STS12",
            "STS/STS12-en-test/STS.input.MSRpar.txt",
            "a b\n" * 3,
            "MSRpar.txt:1: wrong columns (got 1, expected",
        ),
        ("STSBenchmark", "STS/STSBenchmark/sts-dev.csv", "a\tb\n", "sts-dev.csv:1: wrong columns (got 2, expected 7"),
        ("TREC", "TREC/TREC_10.label", "How far\n", "TREC_10.label:1: wrong columns (got 'How far', expected CLASS"),
    ],
)
def test_a_bad_line_of_senteval_is_named(tmp_path: Path, task: str, file: str, text: str, says: str) -> None:
    (senteval(tmp_path) / file).write_text(text)
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError) as caught:
        ingest(tmp_path / "out", None, source=labelled(format="senteval", path=str(tmp_path), task=task))
    assert says in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        (
            {"format": "senteval", "path": "x", "task": "STS17"},
            "data.task: got 'STS17'. Use one of these: STS12, STS13, ",
        ),
        (
            {"format": "senteval", "path": "x", "task": "TREC", "splits": ["dev"]},
            "data: splits: TREC has no split 'dev'. Use one of these: train, test",
        ),
        (
            {"format": "tsv", "path": "x.tsv", "splits": ["dev"]},
            "data: splits: x.tsv is a single file. Write {split}",
        ),
        ({"format": "tsv", "path": "x.tsv", "sample": {"all": 3}}, "data: sample: this key does not apply to labelled"),
    ],
)
def test_a_wrong_declaration_is_one_clear_line(tree: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(Recipe, {"data": tree}, where="c.yaml")
    assert str(caught.value).startswith(f"c.yaml: {says}")


@pytest.mark.parametrize(
    ("keys", "count", "positive"),
    [
        ({"path": "data/stsb/{split}.tsv", "splits": ["test"]}, {"test": 1_379}, 97),
        ({"path": "data/stsb/{split}.tsv", "splits": ["dev"]}, {"dev": 1_500}, None),
        ({"path": "data/transfer/mr.tsv"}, {"all": 10_662}, 0),
        ({"path": "data/transfer/cr.tsv"}, {"all": 3_771}, 0),
        ({"path": "data/transfer/sst2.{split}.tsv"}, {"train": 6_920, "dev": 872, "test": 1_821}, 0),
        ({"path": "data/transfer/trec.{split}.tsv"}, {"train": 5_452, "test": 500}, 0),
    ],
)
def test_real_sets(tmp_path: Path, keys: dict[str, Any], count: dict[str, int], positive: int | None) -> None:
    output = labelled(format="tsv", **keys)
    if output.missing():
        pytest.skip(f"{keys['path']} is not here ({os.environ.get('SPARRING_DATA') or 'SPARRING_DATA is not set'})")
    summary = ingest(tmp_path, None, source=output)
    assert summary["examples"] == count
    assert positive is None or sum(summary["queries"].values()) == 2 * positive
    assert summary["dropped"] == {}
