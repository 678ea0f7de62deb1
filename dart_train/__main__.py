"""`python -m dart_train`: the same as the program `dart-train`."""

from dart_train.commands.train_cli import main

main()
