"""One module per revision, named after the package's version that brought it; its statements stand beside it."""
