"""nsqadmin's pages. Internal.

pages    their HTML: one shell, and a table of pages
asset    the scripts, styles and pictures they need, in `static`
"""
