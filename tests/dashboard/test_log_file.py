"""The log of a run, read from its end."""

from pathlib import Path

from tests.dashboard.internals import MOST, PIECE_BYTES, parse, read_log

LINE = "2026-11-15 22:00:00.000 INFO    trainer: "


def test_a_traceback_belongs_to_the_line_before_it() -> None:
    text = "cut off\n" + LINE + "begins\n2026-11-15 22:00:01,000 ERROR [runner-0 7] runner.agent: bad\nTraceback\n  x\n"
    first, begins, bad = parse(text.encode())
    assert (first.level, first.words) == ("info", "cut off")
    assert (begins.room, begins.words) == ("trainer", "begins")
    assert (bad.level, bad.who, bad.room, bad.words) == ("error", "runner-0 7", "runner.agent", "bad\nTraceback\n  x")


def test_a_long_log_is_read_piece_by_piece_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    count = 2 * PIECE_BYTES // 1000
    path.write_text("".join(f"{LINE}{number} {'x' * 950}\n" for number in range(count)))
    seen: list[int] = []
    piece = read_log(path)
    while True:
        seen = [int(each.words.split()[0]) for each in piece.entries] + seen
        if piece.start == 0:
            break
        piece = read_log(path, before=piece.start)
    assert seen == list(range(count))


def test_of_many_short_lines_the_last_are_shown_and_the_others_follow(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text("".join(f"{LINE}{number} über\x0b\nmore\n" for number in range(MOST + 50)))
    piece = read_log(path)
    assert len(piece.entries) == MOST
    assert piece.entries[-1].words == f"{MOST + 49} über\x0b\nmore"
    older = read_log(path, before=piece.start)
    assert [each.words.split()[0] for each in older.entries] == [str(number) for number in range(50)]
    assert older.start == 0


def test_short_entries_are_all_reached_by_paging_and_by_searching(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    count = 3 * PIECE_BYTES // 50
    path.write_text("".join(f"{LINE}{number}{' odd' if number % 997 == 0 else ''} \u00e9\n" for number in range(count)))
    for text, wanted in (("", range(count)), ("odd", range(0, count, 997))):
        seen: list[int] = []
        piece = read_log(path, text=text)
        while piece.start > 0:
            seen = [int(each.words.split()[0]) for each in piece.entries] + seen
            piece = read_log(path, before=piece.start, text=text)
        seen = [int(each.words.split()[0]) for each in piece.entries] + seen
        assert seen == list(wanted)


def test_a_search_looks_beyond_the_last_piece(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text(f"{LINE}the cause\n" + f"{LINE}{'x' * 950}\n" * (2 * PIECE_BYTES // 1000))
    assert [each.words for each in read_log(path, text="cause").entries] == ["the cause"]


def test_bytes_that_are_no_text_are_shown_harmlessly(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_bytes(LINE.encode() + b"\xff\xfe\x00 odd\n")
    assert "odd" in read_log(path).entries[0].words
    path.write_bytes(b"")
    assert read_log(path).entries == []
