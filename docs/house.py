"""Draws the package as a house, from its imports: rooms, the floors they stand on, and who uses whom.

    python docs/house.py            prints the table of floors
    python docs/house.py --write    puts it into docs/ideas/architecture.md and draws docs/images/house.svg

A room is a direct child of the package. It stands one floor above the highest room that it uses, so nothing here is
decided by hand; imports for type checkers do not count. A test holds the page against this program.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

DOCS = Path(__file__).parent
PACKAGE = DOCS.parent / "src" / "sharpen"
PAGE = DOCS / "ideas" / "architecture.md"
PICTURE = DOCS / "images" / "house.svg"
BEGIN, END = "<!-- house: begin -->", "<!-- house: end -->"

Uses = dict[str, set[str]]


def rooms() -> dict[str, list[Path]]:
    """The modules of every room."""
    found: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if not name.startswith("_"):
            found.setdefault(name, []).append(path)
    return found


def purpose(room: str) -> str:
    """What the room says about itself: the first sentence of its docstring."""
    folder = PACKAGE / room
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(said.split("\n\n")[0].split()).rstrip(".")


def uses() -> Uses:
    """The rooms that each room imports, also inside functions."""
    known = rooms()
    found: Uses = {room: set() for room in known}
    for room, paths in known.items():
        for path in paths:
            found[room] |= {other for other in _imported(path) if other in known and other != room}
    return found


def _imported(path: Path) -> Iterator[str]:
    """The first name below the package of whatever a module imports from it."""
    here = ["sharpen", *path.relative_to(PACKAGE).parts[:-1]]
    for node in _walk(ast.parse(path.read_text(encoding="utf-8"))):
        for target in _targets(node, here):
            if target[0] == "sharpen" and len(target) > 1:
                yield target[1]


def _walk(tree: ast.AST) -> Iterator[ast.stmt]:
    """Every statement, except those for type checkers only. Expressions hold no imports and are passed over."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            if isinstance(node, ast.stmt):
                yield node
            if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
                yield from _walk(node)


def _targets(node: ast.AST, here: list[str]) -> list[list[str]]:
    if isinstance(node, ast.Import):
        return [alias.name.split(".") for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = here[: len(here) - node.level + 1] if node.level else []
    whole = [*base, *(node.module.split(".") if node.module else [])]
    return [[*whole, alias.name] for alias in node.names]


def floors(used: Uses) -> list[list[str]]:
    """The rooms of each floor, from the ground up. Rooms that use each other in a circle are an error."""
    levels: list[list[str]] = []
    placed: set[str] = set()
    while len(placed) < len(used):
        level = sorted(room for room in used if room not in placed and used[room] <= placed)
        if not level:
            raise SystemExit(f"house: these rooms use each other: {', '.join(sorted(set(used) - placed))}")
        levels.append(level)
        placed |= set(level)
    return levels


def table(used: Uses) -> str:
    """The floors from the roof to the ground, as Markdown."""
    lines = ["| floor | room | what it is for |", "| --- | --- | --- |"]
    for number, level in reversed(list(enumerate(floors(used)))):
        for place, room in enumerate(level):
            lines.append(f"| {number if place == 0 else ''} | `{room}` | {purpose(room)} |".replace("|  |", "| |"))
    return "\n".join(lines)


def direct(used: Uses) -> Uses:
    """Only what is not used by way of another room: lines that say something new."""

    def below(room: str) -> set[str]:
        return used[room].union(*(below(other) for other in used[room]))

    return {room: others - set().union(*(below(other) for other in others)) for room, others in used.items()}


WIDTH, STEP, BOX = 1000, 86, 36


def picture(used: Uses) -> str:
    """The house as SVG: one row of boxes a floor, and lines down to the rooms that a room stands on."""
    levels = floors(used)
    height, centre = STEP * len(levels) + 20, {}
    boxes = []
    for number, level in enumerate(levels):
        y = height - STEP * number - BOX - 20
        for place, room in enumerate(level):
            x = WIDTH * (place + 0.5) / len(level)
            centre[room] = (x, y)
            boxes.append(_box(room, x, y))
    lines = [_line(centre[a], centre[b]) for a, others in sorted(direct(used).items()) for b in sorted(others)]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>\n'
    )
    return head + "\n".join([*lines, *boxes]) + "\n</svg>\n"


def _box(room: str, x: float, y: float) -> str:
    width = 24 + 9 * len(room)
    return (
        f'<rect x="{x - width / 2:.0f}" y="{y}" width="{width}" height="{BOX}" rx="6" fill="#e4f2ef" stroke="#00796b"/>'
        f'<text x="{x:.0f}" y="{y + 23}" font-size="15" text-anchor="middle" fill="#123">{escape(room)}</text>'
    )


def _line(above: tuple[float, float], under: tuple[float, float]) -> str:
    (x, y), (to_x, to_y) = above, under
    bend = (to_y - y - BOX) / 2
    path = f"M{x:.0f} {y + BOX} C{x:.0f} {y + BOX + bend:.0f} {to_x:.0f} {to_y - bend:.0f} {to_x:.0f} {to_y}"
    return f'<path d="{path}" fill="none" stroke="#9bb" stroke-width="1.3"/>'


def main() -> None:
    used = uses()
    if sys.argv[1:] != ["--write"]:
        sys.stdout.write(table(used) + "\n")
        return
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{table(used)}\n{END}{after}", encoding="utf-8")
    PICTURE.write_text(picture(used), encoding="utf-8")


if __name__ == "__main__":
    main()
