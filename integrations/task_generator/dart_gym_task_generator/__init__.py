"""New tasks: suites from templates, and tasks from recorded episodes. `dart-gym tasks new` asks for what they need."""
