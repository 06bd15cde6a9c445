"""The broker: topics, channels and subscribers. Synchronous, without sockets; time and disk are given to it."""
