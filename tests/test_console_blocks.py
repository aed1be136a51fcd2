"""The reader of console blocks tells what is true from what is not."""

import pytest

from .console_blocks import Command, PageFile, is_run, sharpen_arguments, steps_of

PAGE = """
<!-- file: notes/a.txt -->
```text
hello
```

```console
$ sharpen dashboard   # not run
```

<!-- run -->
```console
$ cat notes/a.txt
hello
$ TOKEN=1 sharpen train config.yaml \\
    n_runners=2 2> log.txt
```

<!-- run: exit 3 -->
```console
$ sharpen runs show nobody
```
"""


def test_files_and_commands_come_in_the_order_of_the_page() -> None:
    file, *commands = steps_of(PAGE)
    assert file == PageFile("notes/a.txt", "hello\n")
    assert [(each.line, each.exit_code) for each in commands if isinstance(each, Command)] == [
        ("cat notes/a.txt", 0),
        ("TOKEN=1 sharpen train config.yaml n_runners=2 2> log.txt", 0),
        ("sharpen runs show nobody", 3),
    ]


def test_only_marked_blocks_are_run() -> None:
    assert is_run(PAGE)
    assert not is_run(PAGE.replace("<!-- run", "<!-- do not"))


def test_commands_that_are_not_run_are_checked_all_the_same() -> None:
    assert sharpen_arguments(PAGE)[0] == ["dashboard"]
    assert sharpen_arguments(PAGE)[1][:3] == ["train", "config.yaml", "n_runners=2"]


@pytest.mark.parametrize(
    ("shown", "printed", "is_right"),
    [
        ("", "anything", True),
        ("done 3", "done 3  \n", True),
        ("done 3", "done 4\n", False),
        ("begin\n…\nend", "begin\n1\n2\nend\n", True),
        ("begin\n…\nend", "begin\n1\n2\n", False),
        ("took … s", "took 1.5 s\n", True),
        ("done", "done\nand more\n", False),
    ],
)
def test_what_a_page_shows_is_what_was_printed(shown: str, printed: str, is_right: bool) -> None:
    assert Command("true", shown).fits(printed) is is_right
