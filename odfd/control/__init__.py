"""The control API: wire values, ports to the services, HTTP on a unix socket, and the client of all that."""
