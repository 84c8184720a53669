"""Commands on files and folders that need no daemon: the part of the command line that knows ``chain``."""
