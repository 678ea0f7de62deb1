"""One module per process of a run, as functions of a configuration: prepare, demonstrate, roll out, learn, ..."""
