"""In which shapes steps are recorded, without a GPU."""

import torch

from tests.llm.internals import RecordedShapes, StepGraphs


def test_a_step_takes_the_least_recorded_shape_that_holds_it() -> None:
    shapes = RecordedShapes()
    for shape in ((512, 8), (512, 64), (1024, 64)):
        shapes.add("prefill", shape)
    assert shapes.choose("prefill", (448, 6)) == (512, 8)
    assert shapes.choose("prefill", (448, 12)) == (512, 64)
    assert shapes.choose("prefill", (640, 4)) == (1024, 64)
    assert shapes.choose("prefill", (512, 8)) == (512, 8)
    assert shapes.choose("decode", (448, 6)) == (448, 6)


def test_a_shape_that_is_much_too_large_or_too_small_is_not_taken() -> None:
    shapes = RecordedShapes()
    shapes.add("prefill", (2048,))
    shapes.add("prefill", (256,))
    assert shapes.choose("prefill", (896,)) == (896,)
    assert shapes.choose("prefill", (1024,)) == (2048,)
    assert shapes.choose("prefill", (1,)) == (256,)  # few rows take no longer than one
    assert shapes.choose("prefill", (320,)) == (320,)


def test_a_shape_that_is_wanted_often_gets_its_own() -> None:
    shapes = RecordedShapes()
    shapes.add("decode", (256,))
    taken = [shapes.choose("decode", (128,)) for _ in range(40)]
    assert taken[0] == (256,)
    assert taken[-1] == (128,)
    assert taken.count((256,)) == 32


def test_where_nothing_is_recorded_every_step_has_its_own_shape() -> None:
    graphs = StepGraphs(torch.device("cpu"), is_enabled=True)
    assert graphs.shape("decode", (7,)) == (7,)
