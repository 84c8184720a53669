"""Reads certificates for the node's servers that other machines reach."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path

from chain.errors import Environment


def tls_context(certificate: str, key: str, setting: str, protocols: Sequence[str]) -> ssl.SSLContext:
    """Makes the TLS context of a server. ``setting`` names the setting of the certificate. Raises Environment."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise _unusable(setting, str(error)) from error
    context.set_alpn_protocols(list(protocols))
    return context


def hosts_of(certificate: str, setting: str) -> tuple[str, ...]:
    """Returns names and addresses in the first certificate of a file, in the form of URLs. Raises Environment."""
    from cryptography import x509

    try:
        first = x509.load_pem_x509_certificate(Path(certificate).read_bytes())
        extension = first.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = extension.get_values_for_type(x509.DNSName)
        addresses = extension.get_values_for_type(x509.IPAddress)
    except (OSError, ValueError, x509.ExtensionNotFound) as error:
        raise _unusable(setting, str(error)) from error
    # Requests must name the node by a name of its own, and a wildcard is the name of other hosts too
    # (test_over_tls_only_names_of_the_certificate_are_answered).
    hosts = [*(name.lower() for name in names if "*" not in name)]
    hosts += [f"[{address}]" if ":" in str(address) else str(address) for address in addresses]
    if not hosts:
        raise _unusable(setting, "it names no host; one for all names below another is not enough")
    return tuple(hosts)


def _unusable(setting: str, why: str) -> Environment:
    return Environment(
        f"the certificate in {setting} cannot be used: {why}",
        rule=setting.replace(".", "-"),
        hint=f"{setting} and {setting.replace('certificate', 'key')} name files in PEM",
    )
