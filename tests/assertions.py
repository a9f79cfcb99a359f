"""Which test functions assert nothing. Read from their source, so that it costs no run.

A test asserts by an `assert` of something that is no constant, by `pytest.raises`, `pytest.warns` or `pytest.fail`, by a
function or method called `assert_...` (numpy.testing, pandas.testing, torch.testing), by playwright's `expect(...)`, or
by a helper of the tests that does one of these, directly or through others. Printing a figure is none of them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef

OF_PYTEST = ("raises", "warns", "fail", "deprecated_call")
"""Names of pytest's own ways to fail a test."""


@dataclass(frozen=True)
class _Module:
    """One file of the tests: its functions and methods, and what its names stand for.

    `functions`: by name, `Class.method` for methods. `imported`: local name to (module, name in it), or to (module, None)
    where the name is a module.
    """

    name: str
    functions: dict[str, Function] = field(default_factory=dict)
    imported: dict[str, tuple[str, str | None]] = field(default_factory=dict)


def without_assertion(sources: Mapping[str, str]) -> list[str]:
    """`module::test` of every test function or method that asserts nothing, in order.

    `sources`: text by the dotted name of the module; helpers are looked for in the same mapping.
    """
    modules = {name: _parse(name, source) for name, source in sources.items()}
    return [
        f"{module.name}::{name.replace('.', '::')}"
        for module in modules.values()
        for name, function in module.functions.items()
        if name.rpartition(".")[2].startswith("test_") and not _asserts(function, module, modules, set())
    ]


def read_tests(root: Path) -> dict[str, str]:
    """Source by dotted name of every Python file in `root`/tests."""
    files = sorted((root / "tests").rglob("*.py"))
    return {".".join(file.relative_to(root).with_suffix("").parts): file.read_text() for file in files}


def _parse(name: str, source: str) -> _Module:
    module = _Module(name)
    tree = ast.parse(source)
    for node in tree.body:
        if isinstance(node, Function):
            module.functions[node.name] = node
        elif isinstance(node, ast.ClassDef):
            module.functions.update({f"{node.name}.{f.name}": f for f in node.body if isinstance(f, Function)})
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            origin = _origin(node, name)
            module.imported.update({alias.asname or alias.name: (origin, alias.name) for alias in node.names})
        elif isinstance(node, ast.Import):
            module.imported.update({alias.asname: (alias.name, None) for alias in node.names if alias.asname})
    return module


def _origin(node: ast.ImportFrom, importing: str) -> str:
    if not node.level:
        return node.module or ""
    package = importing.split(".")[: -node.level]
    return ".".join([*package, *([node.module] if node.module else [])])


def _asserts(function: Function, module: _Module, modules: Mapping[str, _Module], seen: set[tuple[str, str]]) -> bool:
    """Whether `function` of `module` asserts, or calls what does. `seen`: helpers that have been looked at."""
    inner = {node.name: node for node in ast.walk(function) if isinstance(node, Function) and node is not function}
    for node in _own(function):
        if isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant):
            return True
        if isinstance(node, ast.Call) and _is_assertion(node.func):
            return True
        if isinstance(node, ast.Name) and node.id in inner:  # called here, or handed to what calls it
            key = (f"{module.name}.{function.name}", node.id)
            if key not in seen:
                seen.add(key)
                if _asserts(inner[node.id], module, modules, seen):
                    return True
        if isinstance(node, ast.Call) and (found := _helper(node.func, module, modules)):
            home, name = found
            if (home.name, name) not in seen:
                seen.add((home.name, name))
                if _asserts(home.functions[name], home, modules, seen):
                    return True
    return False


def _own(function: Function) -> Iterator[ast.AST]:
    """The nodes of `function` but those of functions and lambdas inside: those need not run."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if not isinstance(node, Function | ast.Lambda):
            yield node
            waiting += ast.iter_child_nodes(node)


def _is_assertion(called: ast.expr) -> bool:
    if isinstance(called, ast.Name):
        return called.id.startswith("assert_")
    if not isinstance(called, ast.Attribute):
        return False
    owner = called.value
    return (
        called.attr.startswith("assert_")
        or (isinstance(owner, ast.Name) and owner.id == "pytest" and called.attr in OF_PYTEST)
        or (isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "expect")
    )


def _helper(called: ast.expr, module: _Module, modules: Mapping[str, _Module]) -> tuple[_Module, str] | None:
    """The function or method of the tests that is called, where its name tells."""
    if isinstance(called, ast.Name):
        return _find(called.id, module, modules)
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
        origin, name = module.imported.get(called.value.id, ("", None))
        home = modules.get(f"{origin}.{name}" if name else origin)
        if home and called.attr in home.functions:
            return home, called.attr
    return None


def _find(name: str, module: _Module, modules: Mapping[str, _Module]) -> tuple[_Module, str] | None:
    if name in module.functions:
        return module, name
    origin, original = module.imported.get(name, ("", None))
    home = modules.get(origin)
    if home is None or original is None:
        return None
    return (home, original) if original in home.functions else _find(original, home, modules)
