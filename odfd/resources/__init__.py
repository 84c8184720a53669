"""Stores users' declarations as events: datasets by name, mirrors, networks. Knows no concrete kind."""
