"""YAML whose values know their places."""

import pytest

from sharpen.errors import ConfigError
from tests.cli.internals import Document
from tests.errors import raises


def read(text: str) -> Document:
    return Document(text, "c.yaml")


def test_scalars_are_those_of_yaml_1_2() -> None:
    text = "{a: 1e-4, b: no, c: true, d: 0x10, e: ~, f: 2024-01-02, g: 1_000, h: .inf, i: -3, j: '1', k: .5, l: 0o17}"
    assert read(text).value == {
        "a": 1e-4,
        "b": "no",
        "c": True,
        "d": 16,
        "e": None,
        "f": "2024-01-02",
        "g": "1_000",
        "h": float("inf"),
        "i": -3,
        "j": "1",
        "k": 0.5,
        "l": 15,
    }


def test_every_value_knows_its_line_and_column() -> None:
    document = read("a: 1\nb:\n  - x\n  - {c: 2}\n")
    found = {path: (each.line, each.column) for path, each in document.sources.items()}
    assert found[("a",)] == (1, 1)
    assert found[("b", 0)] == (3, 5)
    assert found[("b", 1, "c")] == (4, 6)
    assert str(document.sources[("b", 1, "c")]) == "c.yaml:4"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a: 1\nb: 2\na: 3\n", ("c.yaml:3:1", "a", 1)),
        ("a: [1\n", ("c.yaml:2:1",)),
        ("a: 1\n b: 2\n", ("c.yaml:2:3",)),
        ("a: !!python/object:os.system x\n", ("c.yaml:1:4",)),
        ("? [1, 2]\n: 3\n", ("c.yaml:1:3",)),
        ("a: 1\n---\nb: 2\n", ("c.yaml:2:1",)),
        ("a: &x [*x]\n", ()),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(text: str, named: tuple[object, ...]) -> None:
    with raises(ConfigError, *named):
        read(text)


def test_aliases_that_grow_without_bound_are_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(ConfigError):
        read("\n".join(lines))


def test_merged_keys_give_way_to_those_that_are_given() -> None:
    assert read("base: &b {x: 1, y: 2}\nmine: {<<: *b, y: 3}\n").value["mine"] == {"x": 1, "y": 3}
