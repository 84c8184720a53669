"""Implements the commands of ``odfctl``, one module a family; each is imported only when its command is typed."""
