"""Small trained models, one directory each, which `dart_train` finds by name."""
