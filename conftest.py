"""Every block of Python in the pages, and every example in a docstring, runs as a test."""

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser
from sybil.parsers.rest import DocTestParser

pages = Sybil(parsers=[PythonCodeBlockParser()], patterns=["docs/**/*.md"])
docstrings = Sybil(parsers=[DocTestParser()], patterns=["src/**/*.py"])

pytest_collect_file = (pages + docstrings).pytest()
