"""The JSON under /api, and /config.

document   figures as the API words them
body       the JSON that requests bring
failure    what is answered when the cluster has no answer
reading    topics, channels, nodes, counters
changing   create, delete, pause, empty, tombstone
message    peek, publish, journals, seek, redrive
watching   live views and history
config     /config
login      /login and /logout
"""
