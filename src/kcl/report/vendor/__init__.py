"""The plotting library of the page, as its makers release it: nothing is fetched when a page is written or read."""

from __future__ import annotations

import hashlib
from importlib import resources

from kcl.errors import KclError

# plotly.js-cartesian-dist-min 4.1.1 of the npm registry, MIT (`plotly-LICENSE`): lines, bars and heat maps.
PLOTLY_VERSION = "4.1.1"
PLOTLY_SHA256 = "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"


def plotly() -> str:
    """The script, checked to be the one that was taken in."""
    content = resources.files(__name__).joinpath("plotly-cartesian.min.js").read_bytes()
    if hashlib.sha256(content).hexdigest() != PLOTLY_SHA256:
        raise KclError("the plotting library of the page is not the one kcl came with; install kcl again")
    return content.decode()
