"""Converts files of kinds that the parsers do not take to kinds that they do, each in a process of its own.

Tables of office programs, shapefiles, GeoPackages, XML and Avro are parsed by libraries that were written for files of
friends. So a process with limits reads one file and writes another, and ends; what kills it kills nothing else.
"""
