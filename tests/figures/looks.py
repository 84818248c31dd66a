"""What a reader needs of any figure: every label within the page, large enough, clear of its neighbours."""

from itertools import combinations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

SMALLEST = 6.0


def visible_texts(figure: Figure) -> list[Text]:
    """Draw the figure and return its non-empty visible texts."""
    FigureCanvasAgg(figure).draw()
    hidden = [axes for axes in figure.axes if not axes.get_visible()]
    return [
        text
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and text.axes not in hidden
    ]


def assert_readable(figure: Figure) -> None:
    """Fail if a text is below 6 pt, leaves the page, or covers another text."""
    boxes = []
    texts = visible_texts(figure)
    unused = _unused_ticks(figure)
    for text in texts:
        assert text.get_fontsize() >= SMALLEST, text
        if text in unused:
            continue
        box = text.get_window_extent()
        assert figure.bbox.x0 - 1 <= box.x0, (text, "left")
        assert box.x1 <= figure.bbox.x1 + 1, (text, "right")
        assert figure.bbox.y0 - 1 <= box.y0, (text, "bottom")
        assert box.y1 <= figure.bbox.y1 + 1, (text, "top")
        boxes.append((text, box.padded(-1)))
    assert boxes
    for (one, a), (other, b) in combinations(boxes, 2):
        assert not a.overlaps(b), (one, other)


def _unused_ticks(figure: Figure) -> set[Text]:
    """Return the tick labels that their axis does not draw, being outside its limits."""
    unused = set()
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        drawn = axis._update_ticks()
        for tick in axis.majorTicks + axis.minorTicks:
            if tick not in drawn:
                unused |= {tick.label1, tick.label2}
    return unused
