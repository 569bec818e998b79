"""What other systems were found to do wrong without a word, and the tests here that would see it.

Each line is a mistake that was reported of a public trainer or retriever. A test that is renamed is renamed here too.
"""

from __future__ import annotations

import ast

import pytest

from tests.support.tiny import ROOT

SEEN_BY = {
    "gradient caching forgets the temperature": ["components/training/test_loop.py::recomputing_knows_temperature"],
    "gradient caching keeps the gradient of its last piece alone": [
        "components/compute/test_chunking.py::with_dropout_recomputing_gives_the_gradient_of_one_draw",
        "components/objectives/parts/test_scoring.py::pieces_and_recomputing_change_no_gradient",
        "components/training/test_self_check.py::what_cuts_a_batch_is_not_compared_with_itself",
    ],
    "gathered documents move the targets": ["components/compute/test_gather.py::two_workers_train_as_one"],
    "mined negatives are taken up again though prompts or lengths changed": [
        "workflows/recipes/test_recipes.py::what_moves_a_vector_moves_what_is_mined_with_it"
    ],
    "too little is retrieved, as positives are taken out of it": [
        "workflows/steps/test_mine.py::the_ranks_that_are_read_leave_room_for_positives"
    ],
    "a collection smaller than k": [
        "components/retrieval/test_topk.py::more_than_there_is_gives_all_there_is",
        "workflows/steps/test_search.py::mistakes_change_nothing",
    ],
    "FAISS's -1 is taken for a document": [
        "components/retrieval/test_index.py::no_document_is_nothing_rather_than_minus_one"
    ],
    "results depend on shards, batches or workers, or ties on luck": [
        "components/retrieval/test_topk.py::blocks_and_shards_do_not_matter",
        "components/retrieval/test_topk.py::equals_sorting_everything_with_many_ties",
        "workflows/steps/test_search.py::how_the_work_is_cut_does_not_matter",
        "workflows/steps/test_encode.py::each_text_is_encoded_once_and_alike_whatever_the_shards",
        "workflows/steps/test_score.py::shards_and_batches_do_not_matter_and_each_pair_is_scored_once",
        "system/test_scale_out.py::three_nodes_give_the_same",
    ],
    "scores added up in half precision tie": [
        "components/retrieval/test_topk.py::half_precision_vectors_are_multiplied_in_single_precision",
        "components/models/test_cross_encoder.py::half_precision_scores_come_in_fp32",
    ],
    "a query finds itself": [
        "workflows/recipes/test_zeroshot.py::the_queries_themselves_are_not_found_where_they_are_left_out",
        "workflows/steps/test_mine.py::a_query_is_no_negative_of_itself",
    ],
    "judgements of documents that are not there go unsaid": [
        "workflows/steps/test_ingest.py::bad_input_is_one_clear_line"
    ],
    "documents are encoded twice or not at all": [
        "workflows/steps/test_encode.py::each_text_is_encoded_once_and_alike_whatever_the_shards"
    ],
    "the same query twice loses the first one's positives": [
        "workflows/steps/test_ingest.py::the_same_query_and_the_same_judgement_twice_merge",
        "components/objectives/parts/test_scoring.py::a_query_is_spared_what_answers_its_duplicate",
        "workflows/steps/test_screen.py::what_answers_a_query_with_the_same_text_is_relevant",
    ],
    "negatives depend on the order in which they are drawn": [
        "workflows/steps/test_mine.py::a_querys_draw_does_not_depend_on"
    ],
    "the exported model is another": [
        "components/retrieval/kinds/test_dense.py::other_vectors_than_ours_are_not_exported",
        "system/test_coder.py::the_exported_retriever_makes_the_vectors_that_were_searched",
    ],
    "reciprocal rank fusion counts from 0, or ranks what a system did not find": [
        "components/retrieval/test_fusion.py::reciprocal_ranks_are_a_loop"
    ],
    "a training that was resumed is another": [
        "components/training/test_resume.py::interrupted_anywhere_it_ends_as_if_never_interrupted",
        "system/test_kill.py::a_driver_killed_again_and_again",
    ],
    "p values are corrected for a number of comparisons that is not theirs": [
        "workflows/steps/test_evaluate.py::p_is_corrected_within_a_table",
        "workflows/report/test_report.py::the_table_can_be_read",
    ],
    "a query without hits moves the others": [
        "workflows/steps/test_queries_without_hits.py::a_query_without_hits_moves_no_other"
    ],
    "importing wants Java, a GPU, the network or a key": [
        "test_architecture.py::planning_loads_nothing_heavy",
        "components/retrieval/test_lucene.py::the_runtime_is_found_without_importing_pyserini_or_starting_java",
    ],
    "an export writes over another": ["workflows/commands/test_export.py::export_overwrites_nothing"],
    "RR of a cut ranking is taken for that of the whole": [
        "workflows/steps/test_score.py::what_lies_beyond_the_depth_follows_in_its_old_order",
        "components/evaluation/test_measures.py::values_are_those_of_ir_measures",
    ],
    "memory grows with the collection": [
        "workflows/steps/test_ingest.py::memory_does_not_grow_with_the_collection",
        "workflows/steps/test_search.py::vectors_are_mapped_while_they_are_looked_at",
    ],
    "work is lost with the driver or its machine": [
        "system/test_object_store.py::a_driver_that_vanished_with_its_machine",
        "system/test_kill_loop.py::thirty_kills",
    ],
}
"""A file of tests, and how one of them begins."""


@pytest.mark.parametrize("mistake", SEEN_BY)
def test_there_is_a_test_for(mistake: str) -> None:
    for place in SEEN_BY[mistake]:
        file, _, name = place.partition("::")
        tree = ast.parse((ROOT / "tests" / file).read_text())
        tests = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        assert any(test.startswith(f"test_{name}") for test in tests), place
