"""The documentation site: `make docs` builds it from the pages of this repository, offline, into build/site."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = [str(ROOT / "docs" / "extensions"), str(ROOT / "src")]
sys.path[:0] = FOLDERS
# For the tutorials: this checkout, its commands, and one thread, so that numbers are the same everywhere.
os.environ["PYTHONPATH"] = os.pathsep.join([*FOLDERS, os.environ.get("PYTHONPATH", "")])
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
os.environ["OMP_NUM_THREADS"] = "1"

from kcl import __version__  # noqa: E402

project = "kcl"
author = "The kcl developers"
copyright = author
release = version = __version__
html_title = f"kcl {release}"

# Pages are read where they are, so that their links are the same here and on a code host.
root_doc = "docs/index"
include_patterns = ["docs/**.md", "results/README.md", "CHANGELOG.md", "CONTRIBUTING.md", "REPRODUCIBILITY.md"]
exclude_patterns = [".*", "benches", "build", "examples", "results/*/*", "runs", "src", "tests", "tools"]
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "myst_nb",
    "checked_site",
    "commands",
    "mathml",
    "repository_files",
]

nitpicky = False  # annotations name types of other projects, whose indexes cannot be reached offline
toc_object_entries_show_parents = "hide"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
default_role = "code"
smartquotes_action = "qe"  # two hyphens begin an option
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
add_module_names = False

myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_timeout = 120
nb_execution_raise_on_error = True
nb_merge_streams = True
suppress_warnings = ["mystnb.unknown_mime_type"]

html_theme = "furo"
pygments_dark_style = "github-dark"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_additional_pages = {"index": "redirect.html"}
templates_path = ["templates"]
html_math_renderer = "mathml"
copybutton_exclude = ".linenos, .gp, .go"
html_theme_options = {"sidebar_hide_name": False, "navigation_with_keys": True}


def setup(app):  # type: ignore[no-untyped-def]
    """Spread the tutorials over the processes that read pages: each process gets neighbours of this list."""
    app.connect("env-before-read-docs", lambda *event: event[2].sort(key=lambda name: name[::-1]))
