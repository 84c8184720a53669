"""Converts files of kinds that the parsers do not read to kinds that they do, each in a process of its own.

Spreadsheets, shapefiles, GeoPackages, XML and Avro are parsed by libraries that were not written for hostile files. So
a process with limits reads one file, writes another, and ends; if it is killed, nothing else is.
"""
