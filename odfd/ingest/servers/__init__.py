"""Reads files of servers by FTP or SFTP, in a separate process."""
