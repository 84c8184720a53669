"""Routes that are found by the beginning of a path: each request gets the route that a search of all finds."""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.routing import BaseRoute, Match

from odfd.api.routes import METHODS, _key, _router


def answering(routes: Sequence[BaseRoute], path: str, method: str) -> BaseRoute | None:
    """As Starlette chooses: the first that matches, else the first of another method."""
    scope = {"type": "http", "path": path, "method": method, "headers": []}
    found = [(route.matches(scope)[0], route) for route in routes]
    full = (route for match, route in found if match is Match.FULL)
    return next(full, next((route for match, route in found if match is Match.PARTIAL), None))


def test_each_path_finds_the_route_that_a_search_of_all_finds() -> None:
    router = _router()
    paths = {re.sub(r"{[^}]*}", "x", route.path) for route in router.routes}  # type: ignore[attr-defined]
    changed = {path + more for path in paths for more in ("", "/", "/x")} | {path.rsplit("/", 1)[0] for path in paths}
    for path in changed:
        some = router._by.get(_key(path), router._any).routes
        for method in METHODS:
            assert answering(some, path, method) is answering(router.routes, path, method), (path, method)
    assert max(len(each.routes) for each in router._by.values()) < len(router.routes) / 2
