"""The colours of all pictures: visible on light and dark, and distinct for the colour-blind."""

import itertools

import numpy as np
import pytest

from traces_jax.host.show import palette

# Machado, Oliveira, Fernandes 2009: what is seen, of linear red, green and blue, without one kind of cone.
SEEN = {
    "everything": np.eye(3),
    "without L cones": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "without M cones": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "without S cones": np.array([[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.9505, 1.0, 1.089])


def linear(colour: str) -> np.ndarray:
    share = np.array(palette.rgb(colour)) / 255
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def contrast(first: str, second: str) -> float:
    """Of the accessibility guidelines: 1 for equal colours, 21 for black on white; 3 is what they ask of graphics."""
    low, high = sorted(float(TO_XYZ[1] @ linear(colour)) for colour in (first, second))
    return (high + 0.05) / (low + 0.05)


def lab(light: np.ndarray) -> np.ndarray:
    """CIELAB, in which a distance of 2 can just be seen."""
    share = TO_XYZ @ np.clip(light, 0, 1) / WHITE
    x, y, z = np.where(share > 0.008856, np.cbrt(share), 7.787 * share + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_contrast_by_hand():
    assert contrast("#000000", "#ffffff") == pytest.approx(21, abs=0.01)
    assert contrast("#777777", "#777777") == 1


@pytest.mark.parametrize("paper", [palette.LIGHT_PAPER, palette.DARK_PAPER])
def test_every_colour_is_visible_on_light_and_dark(paper):
    assert all(contrast(colour, paper) >= 3 for colour in (*palette.SERIES, palette.RED))


@pytest.mark.parametrize("kind", list(SEEN))
@pytest.mark.parametrize("together", [palette.SERIES, (palette.CREDIT, palette.PROBABILITY, palette.COST)])
def test_colours_of_one_picture_differ_for_everyone(kind, together):
    seen = [lab(SEEN[kind] @ linear(colour)) for colour in together]
    assert min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2)) > 15
