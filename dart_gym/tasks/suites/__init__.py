"""The bundled suites: `miniwob` (pages in a browser), `dialogs` (GTK applications), `fake` (drawn, for tests)."""
