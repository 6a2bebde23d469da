"""The colours of every picture: the report, videos, the terminal, the documents.

All are of medium brightness, so that they can be seen on white and on black (contrast of at least 3), and can be told
apart with each of the three kinds of colour blindness; tests/test_palette.py measures both.
"""

BLUE, AMBER, GREEN, MAGENTA, BROWN, SLATE = "#2b7bd6", "#c68700", "#14a772", "#ad10b2", "#795d1e", "#556779"
RED = "#c0392b"
# Groups of a plot, in this order.
SERIES = (BLUE, AMBER, GREEN, MAGENTA, BROWN, SLATE)
# The same quantity has the same colour everywhere.
CREDIT, PROBABILITY, COST = AMBER, BLUE, RED
# Text and background, on light and on dark.
LIGHT_INK, LIGHT_PAPER = "#1f2328", "#ffffff"
DARK_INK, DARK_PAPER = "#e6edf3", "#0d1117"


def rgb(colour: str) -> tuple[int, int, int]:
    """Red, green and blue from 0 to 255."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return red, green, blue


def lighter(colour: str, share: float) -> tuple[int, int, int]:
    """The colour mixed with white, for dark backgrounds. share: of white."""
    red, green, blue = (round(part + share * (255 - part)) for part in rgb(colour))
    return red, green, blue
