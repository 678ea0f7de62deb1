"""The database: schema, connections and transactions, locks, versions of the schema."""
