"""Known bugs, planted one at a time; see __main__.py."""
