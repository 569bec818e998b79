"""Won and lost queries."""

import pyarrow as pa

from sparring.components.evaluation.rank_changes import changes


def ranking(lists: dict[str, str]) -> pa.Table:
    rows = [(query, document, rank) for query, result in lists.items() for rank, document in enumerate(result, 1)]
    query, document, rank = zip(*rows, strict=True)
    return pa.table({"query_id": query, "doc_id": document, "rank": rank})


def test_changes_go_from_the_greatest_gain_to_the_greatest_loss() -> None:
    before = ranking({"same": "ab", "won": "xya", "found": "xyz", "lost": "axy", "gone": "axy"})
    after = ranking({"same": "ab", "won": "axy", "found": "xa", "lost": "xay", "gone": "xyz"})
    judged = {
        "query_id": ["same", "won", "found", "lost", "gone", "none"],
        "doc_id": ["a"] * 6,
        "relevance": [1] * 5 + [0],
    }
    result = changes(before, after, pa.table(judged))
    assert [(c.query_id, c.before, c.after) for c in result] == [
        ("won", 3, 1),
        ("found", None, 2),
        ("same", 1, 1),
        ("lost", 1, 2),
        ("gone", 1, None),
    ]
    by_query = {c.query_id: c for c in result}
    assert by_query["won"].first == "x"  # what stood first before
    assert by_query["lost"].first == "x"  # what stands first now
    assert by_query["same"].first is None
    assert all(c.doc_id == "a" for c in result)


def test_the_first_of_several_relevant_documents_counts() -> None:
    judged = pa.table({"query_id": ["q", "q"], "doc_id": ["a", "b"], "relevance": [1, 2]})
    (change,) = changes(ranking({"q": "xab"}), ranking({"q": "bxa"}), judged)
    assert (change.before, change.after, change.doc_id) == (2, 1, "b")
