"""Calls the operations of a node as its API does, each by the service and the name: ``await api.datasets.tail(…)``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from odfd.api.access.requests import Dispatcher
from odfd.api.services import operations
from odfd.services.access.calls import TaskOwners
from odfd.services.access.guard import Guard


@cache
def _functions() -> Mapping[str, Callable[..., Any]]:
    """Returns the function of each operation by its service and name; the first, where two have one name."""
    found: dict[str, Callable[..., Any]] = {}
    for function, declared in operations().items():
        found.setdefault(declared.name, function)
    return found


class CalledServices(Dispatcher):
    """The services of a node: their operations as ``Dispatcher`` performs them, everything else as it is."""

    def __init__(self, services: Any, guard: Guard | None = None, tasks: TaskOwners | None = None) -> None:
        super().__init__(services, guard, tasks)
        self._called = {field: _Called(self, field, getattr(services, field)) for field in services.__slots__}

    @classmethod
    def of(cls, dispatcher: Dispatcher) -> CalledServices:
        """What a caller may call, in this form."""
        return cls(dispatcher._services, dispatcher._guard, dispatcher._tasks)

    @property
    def services(self) -> Any:
        return self._services

    def __getattr__(self, field: str) -> Any:
        if field.startswith("_"):
            raise AttributeError(field)
        return self._called[field]


class _Called:
    def __init__(self, dispatcher: Dispatcher, field: str, service: Any) -> None:
        vars(self).update(_asking=dispatcher, _field=field, _service=service, _former={})

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._service, name)
        function = _functions().get(f"{self._field}.{name}")
        if function is None or isinstance(vars(self._service).get(name), partial):
            return found
        return partial(self._asking.follow if inspect.isasyncgenfunction(function) else self._asking.do, function)

    def __setattr__(self, name: str, value: Any) -> None:
        own = vars(self._service)
        if name in own:
            self._former.setdefault(name, own[name])
        setattr(self._service, name, value)

    def __delattr__(self, name: str) -> None:
        """Takes back what was set, as ``monkeypatch`` does at its end."""
        if name in self._former:
            setattr(self._service, name, self._former.pop(name))
        else:
            delattr(self._service, name)
