"""The files of this project that `python -m MODULE` may run or read: what a DVC stage must have as dependencies.

Static and conservative: a file counts when any statement, wherever it stands, may import it or read it.

* Every import counts, at the top, inside a function, under TYPE_CHECKING; with the `__init__.py` of each package on the
  way.
* A string that is the dotted name of a module counts as an import of it: `import_module("abstain.x")`, an entry point
  `"abstain.x:run"`, `[python, "-m", "abstain.x"]`. An import by a name that is put together at run time cannot be
  followed and is an error.
* `abstain/__init__.py` counts, but not what it hands on to others: no code here asks it for that.
* A module that looks for its own files (`__file__`, `importlib.resources`, `pkgutil`, a template loader) counts with
  all data files of its package, and of each package that it names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

DOTTED = re.compile(r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)+)(:[\w.]+)?")
IMPORTERS = frozenset({"import_module", "__import__", "run_module", "load_module"})
FACE = Path("abstain", "__init__.py")
LOOKS_FOR_FILES = frozenset({"__file__", "__path__", "__spec__", "PackageLoader", "pkgutil"})


@dataclass(frozen=True)
class SourceTree:
    """Python packages under `source`, of which files are named relative to `root`."""

    root: Path
    source: Path

    def closure(self, module: str) -> set[str]:
        """The files that `python -m module` may run or read, relative to `root`."""
        return {str(file.relative_to(self.root)) for file in self._closure(module)}

    def _closure(self, module: str) -> set[Path]:
        found: set[Path] = set()
        todo = self._files_of(module)
        assert todo, f"there is no module {module}"
        while todo:
            file = todo.pop()
            if file in found:
                continue
            found.add(file)
            if file.suffix == ".py" and file != self.source / FACE:
                mentioned = _mentions(file, file.relative_to(self.source).parent.parts)
                for name in mentioned.modules:
                    todo |= self._files_of(name)
                if mentioned.looks_for_files:
                    todo |= self._data_of(file, mentioned)
        return found

    def _files_of(self, name: str) -> set[Path]:
        """The module, or the part of a module, called `name`, with all `__init__.py` on the way; empty: not ours."""
        at, found = self.source, set()
        for part in name.split("."):
            if (at / f"{part}.py").is_file():
                return found | {at / f"{part}.py"}
            at = at / part
            if not at.is_dir():
                break
            found |= {file for file in (at / "__init__.py", at / "__main__.py") if file.is_file()}
        return found

    def _data_of(self, file: Path, mentioned: _Mentions) -> set[Path]:
        named = (self.source.joinpath(*name.split(".")) for name in mentioned.strings)
        folders = {file.parent, *(folder for folder in named if folder.is_dir())}
        return {data for folder in folders for data in _data_files(folder)}


@dataclass(frozen=True)
class _Mentions:
    """What one source file mentions; `package`: the names of the package that holds it."""

    file: Path
    package: tuple[str, ...]

    @cached_property
    def _nodes(self) -> list[ast.AST]:
        return list(ast.walk(ast.parse(self.file.read_text(encoding="utf-8"))))

    @cached_property
    def modules(self) -> set[str]:
        """Dotted names that are imported, or may be."""
        return {name for node in self._nodes for name in self._imported(node)} | self.strings

    def _imported(self, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = self.package[: len(self.package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from abstain.evaluate import metrics` names a module, `from abstain.core.files import x` a part of one.
            yield from (module, *(f"{module}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.Call) and _last_name(node.func) in IMPORTERS:
            name = node.args[0] if node.args else None
            if not (isinstance(name, ast.Constant) and isinstance(name.value, str)):
                raise ValueError(f"{self.file}:{node.lineno}: imports a name that is made at run time")
            level = len(name.value) - len(name.value.lstrip("."))
            base = self.package[: len(self.package) - level + 1] if level else ()
            yield ".".join([*base, name.value.lstrip(".")])

    @cached_property
    def strings(self) -> set[str]:
        """Strings that may be the dotted name of a module, or of a thing in one."""
        constants = (node.value for node in self._nodes if isinstance(node, ast.Constant))
        matches = (DOTTED.fullmatch(value) for value in constants if isinstance(value, str))
        return {match["module"] for match in matches if match}

    @cached_property
    def looks_for_files(self) -> bool:
        names = {_last_name(node) for node in self._nodes}
        resources = any(name.startswith(("importlib.resources", "pkgutil")) for name in self.modules)
        return resources or bool(names & LOOKS_FOR_FILES)


@cache
def _mentions(file: Path, package: tuple[str, ...]) -> _Mentions:
    """Of one file once, however many closures hold it."""
    return _Mentions(file, package)


def _last_name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _data_files(folder: Path) -> Iterator[Path]:
    """The files of a package that are no code, those of its folders too that are no packages."""
    for path in folder.iterdir():
        if path.is_dir():
            if path.name != "__pycache__" and not (path / "__init__.py").exists():
                yield from _data_files(path)
        elif path.suffix not in (".py", ".pyc"):
            yield path
