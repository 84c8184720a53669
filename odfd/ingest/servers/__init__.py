"""Reads files of servers that are asked by FTP or SFTP, in a process apart."""
