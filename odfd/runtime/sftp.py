"""Connects to SFTP servers whose key is known. Imports the client, asyncssh, which is an extra.

Configuration, agent and keys of this machine's user are not used.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import asyncssh

from chain.errors import Fault, Invalid, Refused, Remote

_KEY_RULE: Final = "sftp-host-key"


class SftpLogin(NamedTuple):
    """A user of a server, with what the server and the user prove themselves with."""

    addresses: tuple[str, ...]
    """Addresses or names that are dialled, in this order."""
    port: int
    host_key: str
    """The only key that the server may show, as a line of OpenSSH."""
    user: str
    password: str | None
    private_key: str | None
    connect: float
    silence: float
    """Seconds without a word from the server after which a request fails."""


class _Client(asyncssh.SSHClient):
    """Records the fingerprint of a server's key that is not the expected one."""

    def __init__(self) -> None:
        self.shown = ""

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:  # noqa: ARG002
        self.shown = key.get_fingerprint()
        return False


async def connect(login: SftpLogin, rule: str, declared: str) -> asyncssh.SSHClientConnection:
    """Connects and logs in. ``rule``: of a server that cannot be asked; ``declared``: what names the server's key.

    Raises Refused, Invalid, Remote.
    """
    known, keys = _keys(login)
    fault: Fault | None = None
    for address in login.addresses:
        client = _Client()
        try:
            return await asyncssh.connect(
                address,
                login.port,
                config=None,
                client_factory=lambda client=client: client,
                known_hosts=([known], [], []),
                x509_trusted_certs=None,
                username=login.user,
                password=login.password,
                client_keys=keys or None,  # an empty list stands for the keys of this machine's user
                agent_path=None,
                gss_auth=False,
                host_based_auth=False,
                connect_timeout=login.connect,
                login_timeout=login.silence,
                keepalive_interval=max(1.0, login.silence / 3),
            )
        except (asyncssh.HostKeyNotVerifiable, asyncssh.KeyExchangeFailed):
            raise _other_server(client.shown, known, declared) from None
        except asyncssh.PermissionDenied:
            raise Refused(
                f"the server refuses {login.user!r}",
                rule="sftp-credentials",
                hint="check user, password and privateKey",
            ) from None
        except (asyncssh.Error, OSError, TimeoutError) as error:
            fault = not_asked(error, rule)
    raise fault or Remote("it has no address", rule=rule)


def not_asked(error: BaseException, rule: str) -> Remote:
    """Returns a fault named by the kind of the error; the error's text may quote secrets that were sent."""
    return Remote(f"the server cannot be asked: {type(error).__name__}", rule=rule, hint="try again later")


def _other_server(shown: str, known: asyncssh.SSHKey, declared: str) -> Refused:
    who = f"the server's key is {shown}" if shown else f"the server has no key of type {known.get_algorithm()}"
    return Refused(
        f"{who}, and the {declared} names {known.get_fingerprint()}",
        rule=_KEY_RULE,
        hint="another server answers, or its key was changed: ask its owner, then write the new one as hostKey",
    )


def _keys(login: SftpLogin) -> tuple[asyncssh.SSHKey, list[asyncssh.SSHKey]]:
    """Returns the key of the server, and those of the user. Raises Invalid."""
    try:
        known = asyncssh.import_public_key(login.host_key)
    except (asyncssh.KeyImportError, ValueError):
        raise Invalid("hostKey is no public key", rule=_KEY_RULE, hint="write a line of ssh-keyscan HOST") from None
    try:
        return known, [] if login.private_key is None else [asyncssh.import_private_key(login.private_key)]
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError, ValueError):
        raise Invalid(
            "privateKey is no private key without a passphrase",
            rule="sftp-credentials",
            hint="ssh-keygen -t ed25519 makes one; an empty passphrase, since it is sealed as a secret",
        ) from None
