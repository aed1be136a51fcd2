"""Tasks by their places."""

from tests.algorithm.internals import Item, as_items


def test_tasks_of_a_data_set_are_its_items_and_others_are_numbered_by_what_they_say() -> None:
    tasks = [{"a": 1}, {"b": 2}]
    known = [Item("val", index, task) for index, task in enumerate(tasks)]
    assert as_items(tasks[::-1], "val", known) == known[::-1]
    strange = [{"c": 3}, {"c": 3}, {(1, 2): {3}}, "\ud800"]
    first, again = as_items(strange, "val", known), as_items(strange, "val", known)
    assert first == again
    assert len({each.index for each in first}) == 4
    assert min(each.index for each in first) > len(known)


def test_the_same_object_twice_in_a_data_set_is_two_items() -> None:
    known = [Item("val", index, "task") for index in range(2)]
    assert [each.index for each in as_items(["task", "task"], "val", known)] == [0, 1]
