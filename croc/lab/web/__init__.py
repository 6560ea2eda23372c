"""Shared by the web pages: templates, styles, and charts without any library."""
