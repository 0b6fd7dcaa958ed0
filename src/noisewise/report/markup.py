"""The few pieces of HTML that the report is written with."""

from __future__ import annotations

import html
from collections.abc import Sequence


def text(value: object) -> str:
    """Escaped text."""
    return html.escape(str(value))


def section(name: str, title: str, content: Sequence[str]) -> list[str]:
    """A section with a heading and a place to link to; nothing where there is no content."""
    return [f'<section id="{name}">\n<h2>{text(title)}</h2>', *content, "</section>"] if content else []


def note(words: str) -> str:
    """A paragraph in small print."""
    return f'<p class="note">{text(words)}</p>'


def block(words: str) -> str:
    """Preformatted text that wraps."""
    return f"<pre>{text(words)}</pre>"


def folded(title: str, words: str) -> str:
    """Preformatted text behind a heading that opens it."""
    return f"<details><summary>{text(title)}</summary>\n{block(words)}</details>"


def table(head: Sequence[str], body: Sequence[Sequence[str]], groups: Sequence[tuple[str, int]] = ()) -> str:
    """A table whose first column heads its rows; wide ones scroll in their own frame, which can be reached by keyboard.

    ``groups`` are headings above the columns after the first, each with the number of columns that it spans.
    """
    top = "".join(f'<th scope="col">{text(cell)}</th>' for cell in head)
    rows = "\n".join(
        f'<tr><th scope="row">{text(row[0])}</th>{"".join(f"<td>{text(cell)}</td>" for cell in row[1:])}</tr>'
        for row in body
    )
    over = "".join(f'<th scope="colgroup" colspan="{columns}">{text(title)}</th>' for title, columns in groups)
    above = f"<tr><th></th>{over}</tr>" if over else ""
    header = f"<thead>{above}<tr>{top}</tr></thead>\n" if any(head) else ""
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="table">'
        f"<table>\n{header}<tbody>\n{rows}\n</tbody></table></div>"
    )
