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
os.environ["JUPYTER_PATH"] = FOLDERS[0]  # a kernel that warns of nothing: it listens on this machine only

from kcl import __version__  # noqa: E402

project = "kcl"
author = "The kcl developers"
copyright = author
release = version = __version__
html_title = f"kcl {release}"

# Pages are read where they are, so that their links are the same here and on a code host.
root_doc = "docs/index"
include_patterns = ["docs/**.md", "docs/gallery/*.rst", "results/README.md", "*.md"]
exclude_patterns = [".*", "README.md", "benches", "build", "examples", "results/*/*", "runs", "src", "tests", "tools"]
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
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

# The gallery is written beside the pages, from scripts that the tests run too.
sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "docs/gallery",
    "filename_pattern": r"\.py$",
    "abort_on_example_error": True,
    "run_stale_examples": True,
    "download_all_examples": False,
    "write_computation_times": False,
    "show_signature": False,
    "copyfile_regex": "",
}

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
    app.connect("doctree-read", _dashes)


def _dashes(_, tree):  # type: ignore[no-untyped-def]
    """Between an argument and its meaning Sphinx writes two hyphens, for smart quotes to join, which must not do so."""
    for text in list(tree.findall(lambda node: node == " -- ")):
        text.parent.replace(text, type(text)(" – "))
