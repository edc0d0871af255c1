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


def test_the_types_name_what_there_is():
    """Each class and method of the native module is in its stub file, and the reverse."""
    import ast

    from papilio import _papilio

    stub = ast.parse((pathlib.Path(papilio.__file__).parent / "_papilio.pyi").read_text())
    for node in stub.body:
        if not isinstance(node, ast.ClassDef) or node.name.endswith("Error"):
            continue
        typed = {getattr(item, "name", None) or getattr(getattr(item, "target", None), "id", None) for item in node.body}
        typed = {name for name in typed if name and not name.startswith("__")}
        there = {name for name in vars(getattr(_papilio, node.name)) if not name.startswith("__")}
        assert typed == there, node.name
    names = {node.name for node in stub.body if hasattr(node, "name")}
    assert names == {name for name in vars(_papilio) if not name.startswith("__") and name != "DEFAULT_SUBVOLUME"}
