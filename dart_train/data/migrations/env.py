"""Alembic's entry: run the migrations over the given connection, within the caller's transaction."""

from alembic import context

from dart_train.data.store.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
