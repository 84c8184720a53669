"""Defines the values of the control API. Their JSON (camelCase, times in RFC 3339) is that of ``odfctl -o json``.

Plain values, made for one answer and then dropped. Fields are only ever added. An optional field is ``null`` when it
does not apply; hashes and identities are text as the format writes them. A value is declared in the module of its
subject; ``module_of_name`` is made of the modules. A module is loaded at the first use of one of its values: ``odfctl``
needs few of them, and starts often.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from chain.libraries import kept_out


def import_msgspec() -> None:
    """Imports ``msgspec`` without ``typing_extensions``, which takes as long as ``msgspec`` itself.

    It would use functions of it in place of those of ``typing``, which are equal from Python 3.11 on.
    """
    with kept_out(("typing_extensions",)):
        import msgspec  # noqa: F401


if TYPE_CHECKING:
    from odfd.control.wire.authority import *
    from odfd.control.wire.cards import *
    from odfd.control.wire.datasets import *
    from odfd.control.wire.lineage import *
    from odfd.control.wire.node import *
    from odfd.control.wire.pins import *
    from odfd.control.wire.portals import *
    from odfd.control.wire.queries import *
    from odfd.control.wire.raw import *
    from odfd.control.wire.renditions import *
    from odfd.control.wire.replication import *
    from odfd.control.wire.resources import *
    from odfd.control.wire.rewriting import *
    from odfd.control.wire.transfer import *
    from odfd.control.wire.trust import *
    from odfd.control.wire.value import *
else:

    def __getattr__(name: str) -> Any:
        from odfd.control.wire.module_of_name import MODULE_OF_NAME

        module = MODULE_OF_NAME.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import_msgspec()
        value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
        return value
