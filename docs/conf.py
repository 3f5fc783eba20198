# SPDX-License-Identifier: Apache-2.0
"""How the site is made of the pages that docs/make has put together: `make docs`."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs/make"))

project = "partialcoll"
author = "The partialcoll developers"
copyright = author
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
autodoc_member_order = "bysource"
autodoc_typehints = (
    "none"  # the signature stands in the text of the docstring, with shapes and units
)
python_display_short_literal_types = True
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types in docstrings are words
suppress_warnings = ["ref.python"]  # names that partialcoll and partialcoll.torch share

html_theme = "furo"
html_title = "partialcoll"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"top_of_page_buttons": []}
pygments_style = "friendly"
pygments_dark_style = "native"
highlight_language = "none"
