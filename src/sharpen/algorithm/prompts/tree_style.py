"""The colours of the picture of a search, for light and for dark screens.

Every rule stands below one class, so that the picture can be put into a page without changing the page.
"""

NUM_SHADES = 7
_TOP = ".sharpen-candidates"

# Fill and text of a node, from the lowest score to the highest.
_LIGHT_SHADES = (
    ("#edf4f7", "#1d2b33"),
    ("#d3e6ee", "#1d2b33"),
    ("#b0d4e2", "#1d2b33"),
    ("#83bcd2", "#10202a"),
    ("#4a9abb", "#06141c"),
    ("#1f7599", "#ffffff"),
    ("#0b5375", "#ffffff"),
)
_DARK_SHADES = (
    ("#1c262e", "#d7e2ea"),
    ("#1f3642", "#d7e2ea"),
    ("#1f4a5d", "#e6f0f5"),
    ("#21627d", "#f2f8fb"),
    ("#2f86a8", "#04141c"),
    ("#58adcd", "#04141c"),
    ("#93d7ee", "#04141c"),
)
_LIGHT = {"paper": "#ffffff", "ink": "#1d2b33", "faint": "#5c6b75", "line": "#c3ced5", "gold": "#c77700"}
_DARK = {"paper": "#12171c", "ink": "#e8eef2", "faint": "#9aa9b3", "line": "#3c4a54", "gold": "#f2b134"}

_RULES = """
{top} {{ font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; font-size: 13px; }}
{top} .title {{ font-size: 20px; font-weight: 600; }}
{top} .column {{ font-size: 12px; font-weight: 600; text-anchor: middle; }}
{top} .node text {{ text-anchor: middle; white-space: pre; }}
{top} .node rect {{ stroke-width: 1.2; }}
{top} .node.best rect {{ stroke-width: 3; }}
{top} .node.best text {{ font-weight: 700; }}
{top} .node.dropped rect {{ stroke-dasharray: 4 3; }}
{top} .node.rejected rect {{ stroke-dasharray: 1.5 3; }}
{top} .node.rejected text {{ text-decoration: line-through; }}
{top} .edge {{ fill: none; stroke-width: 1.4; }}
{top} .edge.path {{ stroke-width: 3.5; }}
{top} .edge.merge {{ stroke-dasharray: 5 4; }}
"""
_COLOURS = """
{top} .paper {{ fill: {paper}; }}
{top} .title, {top} .node text {{ fill: {ink}; }}
{top} .note, {top} .column, {top} .node.rejected text {{ fill: {faint}; }}
{top} .node rect {{ stroke: {faint}; }}
{top} .node.unscored rect, {top} .node.rejected rect {{ fill: {paper}; }}
{top} .node.best rect {{ stroke: {gold}; }}
{top} .star {{ fill: {gold}; stroke: {paper}; stroke-width: 1.5; }}
{top} .edge {{ stroke: {line}; }}
{top} .edge.path {{ stroke: {gold}; }}
{top} .edge.merge {{ stroke: {faint}; }}
"""


def style_sheet(*, dark: bool) -> str:
    """Dark always, or light unless the viewer prefers dark."""
    if dark:
        return _rules() + _colours(_DARK, _DARK_SHADES)
    night = _colours(_DARK, _DARK_SHADES)
    return f"{_rules()}{_colours(_LIGHT, _LIGHT_SHADES)}@media (prefers-color-scheme: dark) {{{night}}}\n"


def _rules() -> str:
    return _RULES.format(top=_TOP)


def _colours(names: dict[str, str], shades: tuple[tuple[str, str], ...]) -> str:
    rules = [
        f"{_TOP} .s{number} rect, {_TOP} rect.s{number} {{ fill: {fill}; }} {_TOP} .s{number} text {{ fill: {text}; }}"
        for number, (fill, text) in enumerate(shades)
    ]
    # The shades come last: they overrule the plain colours of a node, but not those of a rejected one.
    return _COLOURS.format(top=_TOP, **names) + "\n".join(rules) + "\n"
