"""nsqadmin: the cluster as people see it and act on it.

options       every setting
daemon        what there is, and in which order it starts and stops
site          what the pages may know of the server
access/       who asks, and what they may do: users, roles, sessions, origins, addresses
api/          the JSON under /api
live          server-sent events: one gathering loop for all who look
history       figures since nsqadmin started
audit         a line for every action
notification  a POST for every action
graphite      rates and graphs of somebody else's
web/          the pages
"""
