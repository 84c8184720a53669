"""Lists the files of /etc that an engine needs in any sandbox."""

from __future__ import annotations

from typing import Final

WRITTEN: Final = {
    "/etc/passwd": b"odf:x:1000:1000::/tmp:/bin/sh\n",
    "/etc/group": b"odf:x:1000:\n",
    "/etc/hosts": b"127.0.0.1 localhost\n::1 localhost\n",
    "/etc/nsswitch.conf": b"passwd: files\ngroup: files\nhosts: files\n",
}
"""Without an entry for its user Hadoop finds no home and fails; without hosts nothing resolves ``localhost``."""
