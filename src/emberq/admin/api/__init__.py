"""The JSON under /api, and /config.

document     figures as the API words them
body         the JSON that requests bring
failure      what is answered when the cluster has no answer
topic_nsqds  having nsqds do what only emberq's can
reading      topics, channels, nodes, counters
changing     create, delete, pause, empty, tombstone
message      peek, publish, journals, seek, redrive
policy       when a channel gives up on a message
watching     live views and history
config       /config
login        /login and /logout
"""
