"""Reads the texts of errors from source code, without running it.

Every use of an error class must be one of: its construction with a text, a ``raise`` or ``except``, an
``isinstance``, an annotation, a base, an import. Anything else could be an error that the guide does not have, and is
``Unreadable``. A placeholder of an f-string becomes ``{words}``; a name that stands for a text (a constant, also an
imported one, a local variable, an argument of a helper such as ``refuse(what, remedy)``) becomes that text, one
failure per call of the helper.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT_ERROR = "EpochError"
PLAIN = frozenset({"ValueError", "SystemExit", "AirflowFailException"})
"""Others that people see. They have no separate remedy: it is in the text, if any."""
TESTING = "testing/"
"""Shipped, but seen in tests only."""

_WRAPPERS = frozenset(
    {"sorted", "list", "str", "repr", "map", "first_line", "shown", "describe", "describe_txn", "_describe"}
)
_NAMED = {
    "len": "how many",
    "waive_command": "airflow epochs waive …",
    "_undo": "how to take the commit back",
}
_OF_OBJECT = frozenset({"isoformat", "upper", "splitlines", "group", "keys", "items", "get"})
_LABELS = {
    "where.name": "table",
    "this.where.name": "table",
    "this.target": "table",
    "this.txn": "transaction",
    "self.table": "place",
    "self.number": "epoch",
    "self.conn_id": "connection",
    "connection.conn_id": "connection",
    "conn_id": "connection",
    "self._config.conn_id": "connection",
    "self.ledger_conn_id": "connection",
    "self._conn_id": "connection",
    "view.state.value": "state",
    "_JARS[source]": "package",
    "error.what": "why",
    "refused.what": "why",
    "gone.what": "what is gone",
    "gone.undo": "how to take the commit back",
    "self._access.conn_id": "connection",
    "json.dumps(resume)": "offsets",
    "shape.id if shape else 'gone'": "id",
    "type(error).__name__": "error",
    "address[0]": "host",
    "address[1]": "port",
    "gap.why": "reason",
}
_WORD = re.compile(r"[A-Za-z]{2,}")


class Unreadable(Exception):
    """An error that cannot be told from the source."""


@dataclass(frozen=True)
class Failure:
    """One error as a reader may see it."""

    kind: str
    what: str
    remedy: str
    module: str
    line: int

    @property
    def where(self) -> str:
        return f"{self.module}:{self.line}"


@dataclass(frozen=True)
class Module:
    path: str
    tree: ast.Module
    parents: Mapping[ast.AST, ast.AST]
    constants: Mapping[str, ast.expr]
    calls: Mapping[str, list[ast.Call]]

    @classmethod
    def read(cls, path: Path, provider: Path) -> Module:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        constants = {
            node.targets[0].id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        calls: dict[str, list[ast.Call]] = {}
        for node in parents:
            if isinstance(node, ast.Call):
                calls.setdefault(_name(node.func) or "", []).append(node)
        return cls(path.relative_to(provider).as_posix(), tree, parents, constants, calls)

    def function_of(self, node: ast.AST) -> ast.FunctionDef | None:
        """The function that the node is in."""
        while node in self.parents:
            node = self.parents[node]
            if isinstance(node, ast.FunctionDef):
                return node
        return None


@dataclass(frozen=True)
class Scope:
    """Where an expression stands, and what its function's parameters stand for."""

    module: Module
    function: ast.FunctionDef | None
    given: Mapping[str, tuple[ast.expr, Scope]] = field(default_factory=dict)


def read_failures(provider: Path, relays: set[tuple[str, str]]) -> list[Failure]:
    """Every error that a module of the provider constructs, in the order of modules and lines."""
    modules = [Module.read(path, provider) for path in sorted(provider.rglob("*.py"))]
    modules = _with_imported([module for module in modules if not module.path.startswith(TESTING)], provider.name)
    kinds = _kinds(modules) | PLAIN
    return [
        failure
        for module in modules
        for call in sorted(_constructions(module, kinds, relays), key=lambda call: call.lineno)
        if not (_is_relay(module, call, relays) and _hides_text(call))
        for failure in _failures(module, call, modules)
    ]


def _with_imported(modules: list[Module], package: str) -> list[Module]:
    """The modules, each with the constants that it imports from another one among its own."""
    exported = {f"{package}.{each.path.removesuffix('.py').replace('/', '.')}": each.constants for each in modules}
    return [replace(each, constants={**dict(_imported(each, exported)), **each.constants}) for each in modules]


def _imported(module: Module, exported: Mapping[str, Mapping[str, ast.expr]]) -> Iterator[tuple[str, ast.expr]]:
    """Texts alone: other constants would have to be followed in the module that they come from."""
    for node in module.tree.body:
        constants = exported.get(node.module or "", {}) if isinstance(node, ast.ImportFrom) else {}
        for name in (alias.name for alias in getattr(node, "names", ())):
            if isinstance(value := constants.get(name), ast.Constant):
                yield name, value


def _is_relay(module: Module, node: ast.AST, relays: set[tuple[str, str]]) -> bool:
    function = module.function_of(node)
    return (module.path, function.name if function else "") in relays


def _hides_text(call: ast.Call) -> bool:
    return not any(isinstance(node, (ast.Constant, ast.JoinedStr)) for node in call.args)


def _kinds(modules: list[Module]) -> frozenset[str]:
    """The root error and all that derive from it, wherever they are defined."""
    classes = [node for module in modules for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)]
    kinds = {ROOT_ERROR}
    while more := {node.name for node in classes if kinds & {_name(base) for base in node.bases}} - kinds:
        kinds |= more
    return frozenset(kinds)


def _name(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else None


def _constructions(module: Module, kinds: frozenset[str], relays: set[tuple[str, str]]) -> Iterator[ast.Call]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and any(a.asname and a.name in kinds for a in node.names):
            raise Unreadable(f"{module.path}:{node.lineno}: an error is imported under another name")
        if not isinstance(node, (ast.Name, ast.Attribute)) or _name(node) not in kinds:
            continue
        parent = module.parents[node]
        if isinstance(parent, ast.Call) and parent.func is node:
            yield parent
        elif not _is_harmless(module, node) and not _is_relay(module, node, relays):
            raise Unreadable(f"{module.path}:{node.lineno}: {_name(node)} is used in a way that hides its text")


def _is_harmless(module: Module, node: ast.AST) -> bool:
    """Whether a mention of an error class cannot make an error."""
    child, parent = node, module.parents[node]
    while isinstance(parent, (ast.Tuple, ast.BinOp, ast.Subscript)):
        child, parent = parent, module.parents[parent]
    if isinstance(parent, ast.Call):
        return _name(parent.func) in {"isinstance", "issubclass"}
    if isinstance(parent, ast.FunctionDef):
        return child is parent.returns
    if isinstance(parent, ast.AnnAssign):
        return child is parent.annotation
    return isinstance(parent, (ast.ExceptHandler, ast.ClassDef, ast.arg))


def _failures(module: Module, call: ast.Call, modules: list[Module]) -> Iterator[Failure]:
    kind = _name(call.func) or ""
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    what = call.args[0] if call.args else keywords.get("what")
    remedy = keywords.get("remedy")
    if what is None or (remedy is None and kind not in PLAIN):
        raise Unreadable(f"{module.path}:{call.lineno}: {kind} without a text or a remedy")
    for scope in _scopes(module, call, [what, *([remedy] if remedy else [])], modules):
        try:
            whats = [_text(choice, scope) for choice in _choices(what)]
            remedies = [_text(choice, scope) for choice in _choices(remedy)] if remedy else [""]
        except Unreadable as error:
            raise Unreadable(f"{module.path}:{call.lineno}: the text of {kind} cannot be read: {error}") from error
        for one in whats:
            if not _literal_words(one):
                raise Unreadable(f"{module.path}:{call.lineno}: {kind} says nothing by itself: {one!r}")
            yield Failure(kind, one, " / ".join(remedies), module.path, call.lineno)


def _choices(node: ast.expr) -> list[ast.expr]:
    return [*_choices(node.body), *_choices(node.orelse)] if isinstance(node, ast.IfExp) else [node]


def _literal_words(text: str) -> int:
    """How many words there are beside the placeholders."""
    return len(_WORD.findall(re.sub(r"\{[^{}]*\}", "", text)))


def _is_text(text: str) -> bool:
    return _literal_words(text) > 1


# -- helpers that raise with a text they are given ----------------------------------------------------------------


def _scopes(module: Module, call: ast.Call, texts: list[ast.expr], modules: list[Module]) -> Iterator[Scope]:
    """One scope for every call of the function that the error is made in, if callers say a part of the text."""
    function = module.function_of(call)
    plain = Scope(module, function)
    used = {name for text in texts for name in _text_names(text)} & set(_parameters(function))
    if function is None or not used:
        yield plain
        return
    given = [
        {name: (node, scope) for name, node in bound.items() if name in used}
        for bound, scope in _calls_of(module, function, modules)
    ]
    whole = {node.id for text in texts for node in _choices(text) if isinstance(node, ast.Name)} & used
    said = [bound for bound in given if any(_is_text(_text_or_label(*value)) for value in bound.values())]
    if not said and not whole:
        yield plain
        return
    if whole and not given:
        raise Unreadable(f"{module.path}:{call.lineno}: nobody calls {function.name}, which is given its text")
    yield from (Scope(module, function, bound) for bound in given)


def _text_names(node: ast.expr) -> Iterator[str]:
    """Names that stand for a text or a part of one."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.JoinedStr):
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                yield from _text_names(part.value)
    elif isinstance(node, (ast.IfExp, ast.BinOp)):
        for side in (node.body, node.orelse) if isinstance(node, ast.IfExp) else (node.left, node.right):
            yield from _text_names(side)


def _parameters(function: ast.FunctionDef | None) -> list[str]:
    if function is None:
        return []
    arguments = function.args
    return [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _calls_of(
    home: Module, function: ast.FunctionDef, modules: list[Module]
) -> Iterator[tuple[dict[str, ast.expr], Scope]]:
    """The arguments of each call by the function's name; of a private one, in its own module."""
    names = [name for name in _parameters(function) if name not in ("self", "cls")]
    for module in [home] if function.name.startswith("_") else modules:
        for node in module.calls.get(function.name, ()):
            bound = dict(zip(names, node.args, strict=False))
            bound |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg in names}
            yield bound, Scope(module, module.function_of(node))


# -- one expression ----------------------------------------------------------------------------------------------


def _text(node: ast.expr, scope: Scope) -> str:
    """The expression as a text with placeholders."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text_or_label(part, scope) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return _text_or_label(node.value, scope)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left, scope) + _text(node.right, scope)
    if isinstance(node, ast.IfExp):
        return _either([_text(choice, scope) for choice in _choices(node)])
    if isinstance(node, ast.Name):
        return _named(node.id, scope)
    if isinstance(node, ast.Attribute) and node.attr == "remedy":
        return "As the error in the message says."
    if isinstance(node, ast.Call):
        return _returned(node, scope)
    raise Unreadable(ast.unparse(node))


def _text_or_label(node: ast.expr, scope: Scope) -> str:
    """A part of a text: what it says, if the source knows, or a placeholder."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Name) and node.id in scope.given:
        return _text_or_label(*scope.given[node.id])
    try:
        text = _text(node, scope)
    except Unreadable:
        text = ""
    literal = isinstance(node, (ast.JoinedStr, ast.FormattedValue)) or _is_text(text)
    return text if text and literal else f"{{{_label(node)}}}"


def _either(texts: list[str]) -> str:
    said = [text for text in texts if text]
    joined = " / ".join(said)
    return f"[{joined}]" if len(said) < len(texts) else f"({joined})"


def _named(name: str, scope: Scope) -> str:
    if name in scope.given:
        return _text(*scope.given[name])
    if scope.function and name in _parameters(scope.function):
        raise Unreadable(f"the argument {name}")
    if local := _assigned(name, scope):
        return local
    if name in scope.module.constants:
        return _text(scope.module.constants[name], scope)
    raise Unreadable(name)


def _assigned(name: str, scope: Scope) -> str:
    """A local text: what is assigned once, and what is added to it, in brackets if only sometimes."""
    found = ""
    for node in ast.walk(scope.function) if scope.function else ():
        if isinstance(node, ast.Assign) and any(_name(target) == name for target in node.targets):
            if found:
                raise Unreadable(f"{name} is assigned twice")
            found = _text(node.value, scope)
    for node in ast.walk(scope.function) if scope.function else ():
        if isinstance(node, ast.AugAssign) and _name(node.target) == name:
            more = _text(node.value, scope)
            found += more if scope.module.parents[node] is scope.function else f"[{more}]"
    return found


def _returned(call: ast.Call, scope: Scope) -> str:
    """What a function of the same module returns, if that is a text."""
    for node in ast.walk(scope.module.tree):
        if isinstance(node, ast.FunctionDef) and node.name == _name(call.func):
            returns = [inner.value for inner in ast.walk(node) if isinstance(inner, ast.Return) and inner.value]
            if len(returns) == 1:
                return _text(returns[0], Scope(scope.module, node))
    raise Unreadable(ast.unparse(call))


def _label(node: ast.expr) -> str:
    """A few words for a value that only a run knows."""
    source = ast.unparse(node)
    if source in _LABELS:
        return _LABELS[source]
    inner = _inside(node)
    if inner is not None:
        return _label(inner)
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Call):
        function = _name(node.func) or source
        return _NAMED.get(function, _words(function))
    name = _name(node)
    if name is None:
        raise Unreadable(source)
    return _words(name)


def _inside(node: ast.expr) -> ast.expr | None:
    """The expression that says best what the value is about, if the node only wraps it."""
    if isinstance(node, (ast.GeneratorExp, ast.ListComp)):
        return node.generators[0].iter
    if isinstance(node, ast.BoolOp):
        return node.values[0]
    if isinstance(node, ast.IfExp):
        return node.orelse if isinstance(node.body, ast.Constant) else node.body
    if isinstance(node, ast.Subscript):
        return node.slice if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str) else node.value
    if isinstance(node, ast.BinOp):
        return node.left
    if isinstance(node, ast.Starred):
        return node.value
    return _inside_call(node) if isinstance(node, ast.Call) else None


def _inside_call(node: ast.Call) -> ast.expr | None:
    name = _name(node.func)
    if isinstance(node.func, ast.Attribute):
        if name == "join" and node.args:
            return node.args[0]
        if name == "get" and node.args and isinstance(node.args[0], ast.Constant):
            return node.args[0]
        return node.func.value if name in _OF_OBJECT else None
    return node.args[-1 if name == "map" else 0] if name in _WRAPPERS and node.args else None


def _words(name: str) -> str:
    return name.strip("_").replace("_", " ").lower()
