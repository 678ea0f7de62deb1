"""What Alembic runs: the migrations, over the connection that it was given, within the caller's transaction."""

from alembic import context

from dart_train.data.store.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
