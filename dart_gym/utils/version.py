"""The version of the installed distribution, which all three packages share."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("dart-gui")
except PackageNotFoundError:  # a source tree on PYTHONPATH that nobody installed
    VERSION = "0+not.installed"
