"""Runs the examples of docs/python.md and of the package."""

import doctest
import pathlib

import papilio


def test_the_tour(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tour = pathlib.Path(__file__).parents[3] / "docs/python.md"
    text = tour.read_text().replace("```python\n", "").replace("```\n", "")
    test = doctest.DocTestParser().get_doctest(text, {}, "python.md", str(tour), 0)
    assert len(test.examples) > 30
    assert doctest.DocTestRunner().run(test).failed == 0


def test_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(papilio).failed == 0
