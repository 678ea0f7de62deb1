"""The kinds of engines that are built in, one file each: `NAME_server.py` with the class as `KIND`."""
