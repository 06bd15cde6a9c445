"""nsqlookupd: who publishes which topic, and where."""
