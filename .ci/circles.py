#!/usr/bin/env python3
"""Finds circles of imports between the files of each crate: files that need each other can only be read together.

    .ci/circles.py [ROOT]

A file imports another when a path in it leads there, as it is written: in `use`, or in the middle of code. No imports are:

- `mod x;`;
- `pub use` by which a module hands on a name of its own submodule;
- a path up to a module that the file is part of. Parent and child are one family, of which the parent uses the child.

Tests are left out: files named `tests.rs`, folders named `tests`, and items under `#[cfg(test)]` that stand in a file with other
code. Simulations are read as everything else.

Prints each circle with the lines that tie it. Exits with 1 if there is one, or if fewer files than FEWEST were read.
"""

import os
import re
import sys
from collections import defaultdict

# Fewer files mean that the tree was not found, and not that it has no circle.
FEWEST = 200
SKIPPED_FOLDERS = {"target", "tests", "examples", "node_modules"}

# An item that begins with one of these words is not over at a comma.
ITEMS = {"pub", "fn", "impl", "struct", "enum", "trait", "type", "const", "static", "use", "mod", "unsafe", "async"}

TOKEN = re.compile(
    r"""
      (?P<comment>//[^\n]*|/\*)
    | (?P<raw>\b(?:b|c)?r(?P<hashes>\#*)")
    | (?P<string>\b[bc]?"(?:[^"\\]|\\.)*"|"(?:[^"\\]|\\.)*")
    | (?P<char>b?'(?:[^'\\]|\\(?:x..|u\{[^}]*\}|.))')
    | (?P<lifetime>'[A-Za-z_]\w*)
    | (?P<word>(?:r\#)?[A-Za-z_]\w*)
    | (?P<number>\d[\w.]*)
    | (?P<sign>::|\S)
    """,
    re.VERBOSE | re.DOTALL,
)


def tokens_of(text):
    """The words and signs of a source with their lines; no comments, no contents of strings."""
    tokens, at, line, counted = [], 0, 1, 0
    while (found := TOKEN.search(text, at)) is not None:
        line += text.count("\n", counted, found.start())
        counted, at = found.start(), found.end()
        kind, value = found.lastgroup, found.group()
        if kind == "hashes" or found["raw"] is not None:
            end = text.find('"' + found["hashes"], at)
            at = len(text) if end < 0 else end + 1 + len(found["hashes"])
        elif value == "/*":
            depth = 1
            while depth and (mark := re.compile(r"/\*|\*/").search(text, at)):
                depth += 1 if mark.group() == "/*" else -1
                at = mark.end()
        elif found["word"] is not None:
            tokens.append((value.removeprefix("r#"), line))
        elif found["number"] is not None:
            # `0..x` is a number, a range and a word.
            if ".." in value:
                at = found.start() + value.index("..")
            tokens.append(("0", line))
        elif found["sign"] is not None:
            tokens.append((value, line))
        elif found["comment"] is None:
            tokens.append(('""', line))
    return tokens


def closing(tokens, at):
    """The place behind the bracket that closes the one at `at`."""
    depth = 0
    for place in range(at, len(tokens)):
        if tokens[place][0] in "([{":
            depth += 1
        elif tokens[place][0] in ")]}":
            depth -= 1
            if depth == 0:
                return place + 1
    return len(tokens)


def end_of_item(tokens, at):
    """The place behind the item, statement or field that begins at `at`."""
    ends = (";",) if tokens[at][0] in ITEMS else (";", ",")
    while at < len(tokens):
        value = tokens[at][0]
        if value in "([{":
            at = closing(tokens, at)
            if value == "{" and (at == len(tokens) or tokens[at][0] not in (";", ",", ".", "?")):
                return at
        elif value in ends:
            return at + 1
        elif value in ")]}":
            return at
        else:
            at += 1
    return at


def is_for_tests(attribute):
    """Whether an attribute's words say `cfg(test)` or `cfg(all(.., test, ..))`."""
    words = [word for word, _ in attribute]
    if words[:2] != ["cfg", "("]:
        return False
    if words[2:] == ["test", ")"]:
        return True
    return words[2:4] == ["all", "("] and "test" in words and "not ( test )" not in " ".join(words)


class Module:
    def __init__(self, file, folder, parent=None, name="crate"):
        self.file, self.folder, self.parent, self.name = file, folder, parent, name
        self.children = {}
        # Pairs of segments and line: paths, and those of names that are handed on by `pub use`.
        self.paths, self.shown = [], []

    def root(self):
        return self if self.parent is None else self.parent.root()

    def is_part_of(self, other):
        return self is other or (self.parent is not None and self.parent.is_part_of(other))


def is_test_file(path):
    return os.path.basename(path) == "tests.rs" or "/tests/" in path


class Crate:
    """All modules of one crate, from its root file on."""

    def __init__(self, root):
        self.modules = []
        folder = os.path.dirname(root)
        self.read(Module(root, folder))

    def read(self, module):
        self.modules.append(module)
        with open(module.file, encoding="utf-8") as source:
            self.walk(module, tokens_of(source.read()))

    def walk(self, module, tokens):
        at, path_attribute, is_test = 0, None, False
        while at < len(tokens):
            value, line = tokens[at]
            following = tokens[at + 1][0] if at + 1 < len(tokens) else ""
            if value == "#" and following == "[":
                end = closing(tokens, at + 1)
                is_test = is_test or is_for_tests(tokens[at + 2 : end - 1])
                at = end
                continue
            if is_test and not self.is_file_of_simulation(tokens, at, module):
                at = end_of_item(tokens, at)
            elif value == "mod" and at + 2 < len(tokens) and tokens[at + 2][0] in (";", "{"):
                at = self.enter(module, tokens, at)
            elif value == "use" and following != "<":
                end = end_of_item(tokens, at)
                shown = module.shown if at > 0 and tokens[at - 1][0] in ("pub", ")") else module.paths
                self.read_use(shown, tokens[at + 1 : end], [])
                at = end
            elif re.match(r"[A-Za-z_]", value) and following == "::" and (at == 0 or tokens[at - 1][0] != "::"):
                segments = [value]
                while at + 2 < len(tokens) and tokens[at + 1][0] == "::" and re.match(r"\w", tokens[at + 2][0]):
                    at += 2
                    segments.append(tokens[at][0])
                module.paths.append((segments, line))
                at += 1
            else:
                at += 1
            is_test = False

    def is_file_of_simulation(self, tokens, at, module):
        """Whether a test item is a module in a file of its own that is no `tests.rs`."""
        while tokens[at][0] in ("pub", "(", ")", "super", "crate", "in"):
            at += 1
        if tokens[at][0] != "mod" or tokens[at + 2][0] != ";":
            return False
        file = self.file_of(module, tokens[at + 1][0])
        return file is not None and not is_test_file(file)

    @staticmethod
    def file_of(module, name):
        for file in (f"{module.folder}/{name}.rs", f"{module.folder}/{name}/mod.rs"):
            if os.path.exists(file):
                return file
        return None

    def enter(self, module, tokens, at):
        name = tokens[at + 1][0]
        if tokens[at + 2][0] == "{":
            end = closing(tokens, at + 2)
            inner = Module(module.file, f"{module.folder}/{name}", module, name)
            module.children[name] = inner
            self.modules.append(inner)
            self.walk(inner, tokens[at + 3 : end - 1])
            return end
        file = self.file_of(module, name)
        if file is None:
            sys.exit(f"{module.file}:{tokens[at][1]}: no file of module {name} was found")
        if not is_test_file(file):
            inner = Module(file, f"{module.folder}/{name}", module, name)
            module.children[name] = inner
            self.read(inner)
        return at + 3

    def read_use(self, paths, tokens, before):
        """All paths of a tree of imports."""
        at, segments, line = 0, list(before), None
        while at < len(tokens):
            value, here = tokens[at]
            line = line or here
            if value == "{":
                end = closing(tokens, at)
                self.read_use(paths, tokens[at + 1 : end - 1], segments)
                at, segments, line = end, None, None
            elif value in (",", ";"):
                if segments is not None and line is not None:
                    paths.append((segments, line))
                at, segments, line = at + 1, list(before), None
            elif value == "as":
                at += 2
            else:
                if re.match(r"\w", value) and segments is not None:
                    segments.append(value)
                at += 1
        if segments is not None and line is not None:
            paths.append((segments, line))

    def imports(self):
        """(from module, to module, name, line) for each path that leads into another file of the crate."""
        for module in self.modules:
            shown = [(path, True) for path in module.shown]
            for (segments, line), is_shown in shown + [(path, False) for path in module.paths]:
                to, rest = self.resolve(module, segments)
                if to is None or to.file == module.file or module.is_part_of(to):
                    continue
                if not (is_shown and to.is_part_of(module)):
                    yield module, to, rest, line

    def resolve(self, module, segments):
        first, *rest = segments
        if first == "crate":
            at = module.root()
        elif first == "self":
            at = module
        elif first == "super":
            at = module.parent
        elif first in module.children:
            at = module.children[first]
        else:
            return None, None
        while at is not None and rest and (rest[0] == "super" or rest[0] in at.children):
            at, rest = (at.parent if rest[0] == "super" else at.children[rest[0]]), rest[1:]
        return at, (rest[0] if rest else "*")


def roots_of(top):
    """The root files of all crates."""
    roots = []
    for folder, folders, files in os.walk(top):
        folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS and not name.startswith("."))
        if "Cargo.toml" not in files:
            continue
        source = f"{folder}/src"
        for name in ("lib.rs", "main.rs"):
            if os.path.exists(f"{source}/{name}"):
                roots.append(f"{source}/{name}")
        if os.path.isdir(f"{source}/bin"):
            roots += sorted(f"{source}/bin/{name}" for name in os.listdir(f"{source}/bin") if name.endswith(".rs"))
    return roots


def circles_of(graph):
    """The strongly connected components with more than one file (Tarjan's algorithm)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            part = stack[at:]
            del stack[at:]
            if len(part) > 1:
                found.append(sorted(part))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(found)


def main():
    top = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    os.chdir(top)
    sys.setrecursionlimit(10_000)
    files, count, graph, ties = set(), 0, defaultdict(set), defaultdict(list)
    for root in roots_of("."):
        crate = Crate(root)
        files.update(module.file for module in crate.modules)
        for module, to, name, line in crate.imports():
            count += 1
            graph[module.file].add(to.file)
            ties[module.file, to.file].append((line, name))
    circles = circles_of(graph)
    for number, circle in enumerate(circles, 1):
        print(f"circle {number}: {len(circle)} files")
        for (here, there), places in sorted(ties.items()):
            if here in circle and there in circle:
                where = ", ".join(f"{name} (line {line})" for line, name in sorted(set(places)))
                print(f"  {here[2:]} -> {there[2:]}: {where}")
    print(f"{len(files)} files and {count} imports were read: {len(circles)} circles")
    if len(files) < FEWEST:
        print(f"fewer than {FEWEST} files were read: this is not the whole tree")
    return 1 if circles or len(files) < FEWEST else 0


if __name__ == "__main__":
    sys.exit(main())
