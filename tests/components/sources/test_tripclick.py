"""TripClick folders."""

from __future__ import annotations

from pathlib import Path

from sparring.components.sources.records import Bad
from tests.support.sources import source, without_place, write


def tripclick(folder: Path) -> Path:
    """Two files of documents, HEAD with both labels, TORSO with RAW alone."""
    write(
        folder / "documents/docs_grp_00.txt",
        "<DOC>",
        "<DOCNO>283040</DOCNO>",
        "<TITLE>First title</TITLE>",
        "<URL>http://x</URL>",
        "<TEXT>",
        "BACKGROUND : one.",
        "",
        "Two & <three>.",
        "</TEXT>",
        "</DOC>",
        "<DOC>",
        "<DOCNO>7</DOCNO>",
        "<TITLE></TITLE>",
        "<TEXT>all on one line</TEXT>",
        "</DOC>",
    )
    more = ["<DOC>", "<DOCNO>8</DOCNO>", "<TITLE>Only a title</TITLE>", "</DOC>"]
    write(folder / "documents/docs_grp_01.txt.gz", *more)
    topics = ["<top>", "<num> Number: 1", "<title> asthma in", "children", "<desc> Description:", "nothing", "</top>"]
    topics += ["", "<top>", "<num>2</num>", "<title>flu</title>", "</top>"]
    write(folder / "topics/topics.head.train.txt", *topics)
    write(folder / "topics/topics.torso.train.txt", "<top>", "<num> 3", "<title> rare things", "</top>")
    write(folder / "topics/topics.head.val.txt", "<top>", "<num> Number: 4", "<title> gout", "</top>")
    write(folder / "qrels/qrels.raw.head.train.txt", "1 0 283040 1", "2\t0\t7\t0")
    write(folder / "qrels/qrels.raw.torso.train.txt", "3 0 8 1")
    write(folder / "qrels/qrels.raw.head.val.txt", "4 0 8 1")
    write(folder / "qrels/qrels.dctr.head.val.txt", "4 0 8 3")
    return folder


SPLITS = {"train": ["head.train", "torso.train"], "dev": ["head.val"]}


def test_tripclick(tmp_path: Path) -> None:
    result = source(format="tripclick", path=str(tripclick(tmp_path)), splits=SPLITS)
    assert result.missing() == []
    assert without_place(result.read_documents()) == [
        ("283040", "First title", "BACKGROUND : one.\nTwo & <three>."),
        ("7", "", "all on one line"),
        ("8", "Only a title", ""),
    ]
    assert without_place(result.read_queries()) == [
        ("1", "asthma in children", [], "train"),
        ("2", "flu", [], "train"),
        ("3", "rare things", [], "train"),
        ("4", "gout", [], "dev"),
    ]
    assert without_place(result.read_qrels()) == [
        ("1", "283040", 1, "train"),
        ("2", "7", 0, "train"),
        ("3", "8", 1, "train"),
        ("4", "8", 1, "dev"),
    ]


def test_labels_may_be_others_in_each_split(tmp_path: Path) -> None:
    folder = str(tripclick(tmp_path))
    result = source(format="tripclick", path=folder, splits=SPLITS, labels={"dev": "dctr"})
    assert without_place(result.read_qrels())[2:] == [("3", "8", 1, "train"), ("4", "8", 3, "dev")]
    every = source(format="tripclick", path=folder, splits=SPLITS, labels="dctr")
    assert [Path(path).name for path in every.missing()] == ["qrels.dctr.head.train.txt", "qrels.dctr.torso.train.txt"]


def test_by_default_it_is_the_papers_choice(tmp_path: Path) -> None:
    result = source(format="tripclick", path=str(tmp_path))
    names = ["head.train", "torso.train", "head.val", "head.test"]
    assert [name for name in result.files() if name.startswith("topics")] == [f"topics/topics.{n}.txt" for n in names]


def test_what_is_cut_off_or_has_wrong_columns_is_told_with_its_place(tmp_path: Path) -> None:
    folder = tripclick(tmp_path)
    write(
        folder / "documents/docs_grp_01.txt.gz", "<DOC>", "<DOCNO>8</DOCNO>", "<DOC>", "<DOCNO>9</DOCNO>", "<TEXT>", "a"
    )
    write(folder / "topics/topics.head.val.txt", "<top>", "<num> Number: 4", "<title> gout")
    write(folder / "qrels/qrels.raw.head.val.txt", "4 8 1")
    result = source(format="tripclick", path=str(folder), splits=SPLITS)
    report = [
        str(item)
        for read in (result.read_documents, result.read_queries, result.read_qrels)
        for item in read()
        if isinstance(item, Bad)
    ]
    assert report == [
        f"{folder}/documents/docs_grp_01.txt.gz:1: record without an end (no </DOC>)",
        f"{folder}/documents/docs_grp_01.txt.gz:3: record without an end (no </DOC>)",
        f"{folder}/topics/topics.head.val.txt:1: record without an end (no </top>)",
        f"{folder}/qrels/qrels.raw.head.val.txt:1: wrong columns (expected query_id, iteration, doc_id, relevance, got "
        "3 columns)",
    ]


def test_white_space_of_any_length_is_read_in_one_pass(tmp_path: Path) -> None:
    """Patterns that try every way to divide it would never end."""
    folder, blank = tripclick(tmp_path), " " * 200_000
    bad_topic = ["<top>", f"<num>{blank}4{blank}5", f"<title>{blank}a{blank}b", "</top>"]
    topic = ["<top>", f"<num> Number:{blank}6{blank}</num>", f"<title>{blank}gout{blank}</title>{blank}", "</top>"]
    write(folder / "topics/topics.head.val.txt", *bad_topic, *topic)
    bad, result = source(format="tripclick", path=str(folder), splits={"dev": ["head.val"]}).read_queries()
    assert isinstance(bad, Bad)
    assert bad.reason == "query id with white space"
    assert result[:2] == ("6", "gout")
