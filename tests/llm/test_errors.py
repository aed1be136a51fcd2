"""Errors tell where, also in another process."""

import pickle

from sharpen.llm import RewardTimeoutError, RowError


def test_errors_keep_what_they_know_on_their_way_to_another_process() -> None:
    row = pickle.loads(pickle.dumps(RowError.of(3, "answer", "it is empty")))
    assert (row.row, row.column, str(row)) == (
        3,
        "answer",
        "row 3 of the data set (the first is row 0), column 'answer': it is empty",
    )
    late = pickle.loads(pickle.dumps(RewardTimeoutError.of("judge", "took long")))
    assert (late.reward, late.row, str(late)) == ("judge", None, "reward 'judge': took long")
