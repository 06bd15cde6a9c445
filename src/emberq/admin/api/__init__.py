"""The JSON under /api, and /config. Internal.

request     the JSON that requests bring, and what is answered when the cluster has no answer
reading     what is shown: topics, nodes, live views, history, Graphite
changing    create, delete, pause, empty, tombstone, policies
message     peek, publish, journals, seek, redrive, on every nsqd of a topic
own         nsqadmin itself: login, logout, /config
"""
